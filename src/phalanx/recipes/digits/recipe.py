"""Handwritten digits, 8x8 pixels, ten classes: the quick first run, no download.

The data ships inside scikit-learn (1,797 images of the UCI Optical Recognition of Handwritten
Digits test set). A folder of your own with `train.npz` and `test.npz` works the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import DirectoryPath, Field
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.recipe import (
    Batch,
    Data,
    Exported,
    ExportingGraphs,
    Finding,
    Options,
    Recipe,
    Split,
    Term,
)
from phalanx.recipes.digits.data import PEAK, missing_files, open_digits
from phalanx.recipes.digits.model import ConvNet


class DigitsOptions(Options):
    """Options of the digits recipe."""

    width: int = Field(default=32, ge=1, le=1024)
    """Channels of the first convolution."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout before the classifier."""
    augment: bool = True
    """Shift each training image by up to one pixel, at random per sample and epoch."""
    data: DirectoryPath | None = None
    """Folder with train.npz and test.npz (`images` uint8 N x 8 x 8 up to 16, `labels`). Default:
    scikit-learn's digits."""


class DigitsRecipe(Recipe, ExportingGraphs):
    """A small convolutional network on 8x8 digits."""

    Options = DigitsOptions
    metric = "accuracy"
    metric_mode = "max"
    options: DigitsOptions

    def model(self) -> nn.Module:
        return ConvNet(self.options.width, self.options.dropout)

    def data(self, split: Split) -> Data:
        augment = self.options.augment and split == "train"
        return open_digits(split, folder=self.options.data, augment=augment)

    def loss(self, model: nn.Module, batch: Batch, keys: Tensor) -> Mapping[str, Term]:
        logits = model(batch["image"])
        total = F.cross_entropy(logits, batch["label"], reduction="sum")
        return {"cross_entropy": Term(total, len(batch["label"]))}

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Any]:
        logits = model(batch["image"])
        return {
            "correct": (logits.argmax(1) == batch["label"]).sum(),
            "loss": F.cross_entropy(logits, batch["label"], reduction="sum"),
            "samples": len(batch["label"]),
        }

    def metrics(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        return {
            "accuracy": sums["correct"] / sums["samples"],
            "loss": sums["loss"] / sums["samples"],
        }

    def exported(self, model: nn.Module) -> Exported:
        return Exported(
            model,
            lambda batch: {"image": batch["image"]},
            ("logits",),
            decode=lambda outputs: {"digit": outputs["logits"].argmax(1)},
        )

    def export_metadata(self) -> Mapping[str, Any]:
        return {
            "classes": [str(digit) for digit in range(10)],
            "preprocessing": {"layout": "NCHW", "size": [8, 8], "channels": 1, "divide_by": PEAK},
        }

    def check(self) -> list[Finding]:
        return missing_files(self.options.data)
