"""Object detection: Ultralytics' YOLO11 models, data format and loss, trained by Phalanx.

The default needs nothing prepared: yolo11n finds generated shapes. Ultralytics is AGPL-3.0.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from phalanx.recipe import (
    Batch,
    Data,
    Exported,
    Exporting,
    ExportingGraphs,
    Finding,
    Media,
    Portable,
    PretrainedWeights,
    Recipe,
    Sample,
    Showing,
    Split,
    Stored,
    Term,
    UserError,
)
from phalanx.recipes.detection.check import check_labels, check_names, check_options
from phalanx.recipes.detection.library import missing_packages
from phalanx.recipes.detection.options import DetectionOptions
from phalanx.recipes.detection.source import Source, read_source

if TYPE_CHECKING:
    from phalanx.recipes.detection.labels import Labels

NOMINAL_BATCH = 64
"""Ultralytics' loss is a sum over the images of a batch, and its rates are found for 64 of them."""


class DetectionRecipe(Recipe, PretrainedWeights, Exporting, ExportingGraphs, Portable, Showing):
    """A YOLO model that learns to put boxes around things."""

    Options = DetectionOptions
    options: DetectionOptions
    metric = "fitness"
    metric_mode = "max"
    loss_gain = float(NOMINAL_BATCH)
    least_weight = 1.0  # as Ultralytics has it: wanted scores are near 0 before anything is found
    export_forms: ClassVar[Mapping[str, str]] = {
        "ultralytics": "best.pt, which ultralytics.YOLO loads, validates and exports",
    }
    one_shape: ClassVar[Mapping[str, Any]] = {"rect": False}

    @functools.cached_property
    def source(self) -> Source:
        """The data set, with the images of the splits that are used."""
        return self._read_source(self.splits)

    def _read_source(self, splits: Sequence[Split]) -> Source:
        from phalanx.recipes.detection.shapes import shapes_file

        file = self.options.data or shapes_file()
        source, findings = read_source(file, splits=splits, tested=self.options.split)
        if source is None or any(finding.severity == "error" for finding in findings):
            raise UserError(findings)
        return source

    @functools.cached_property
    def names(self) -> dict[int, str]:
        if self.options.single_class:
            return {0: "object"}
        given = self.options.names
        return self.source.names if given is None else dict(enumerate(given))

    def labels(self, split: Split) -> Labels:
        from phalanx.recipes.detection.labels import read_labels

        source = self.source if split in self.splits else self._read_source([split])
        return read_labels(
            source.images[split],
            classes=len(self.source.names),
            check_images=self.options.check_images,
        )

    def check(self) -> list[Finding]:
        if found := missing_packages():
            return found
        findings = check_options(self.options)
        try:
            source = self.source
        except UserError as error:
            return [*findings, *error.findings]
        if not self.options.single_class:
            findings += check_names(self.names, source.names, source.file)
        for split in self.splits:
            findings += check_labels(split, self.labels(split), source.file, source.names)
        return findings

    def portable_options(self) -> Mapping[str, Any]:
        from phalanx.recipes.detection.network import structure_of

        carried: dict[str, Any] = {}
        if not self.options.single_class:
            carried["names"] = list(self.names.values())
        if (structure := structure_of(self.options)) is not None:
            carried["structure"] = structure
        return carried

    def weights_file(self, path: Path) -> Path | None:
        from phalanx.recipes.detection.pretrained import open_pretrained

        try:
            return open_pretrained(path).file
        except UserError:  # no model of Ultralytics: who asked says what it is not
            return None

    def model(self) -> nn.Module:
        from phalanx.recipes.detection.network import make_network

        return make_network(self.options, self.names)

    def weights(self) -> Mapping[str, Stored]:
        from phalanx.recipes.detection.network import find_pretrained
        from phalanx.recipes.detection.pretrained import place_weights

        pretrained = find_pretrained(self.options)
        return {} if pretrained is None else place_weights(pretrained, self.model())

    def check_weights(self) -> list[Finding]:
        from phalanx.recipes.detection.network import find_pretrained
        from phalanx.recipes.detection.pretrained import weights_note

        pretrained = find_pretrained(self.options)
        if pretrained is None:
            return []
        return weights_note(pretrained, self.model(), self.options.model)

    def data(self, split: Split) -> Data:
        from phalanx.recipes.detection.data import open_split

        return open_split(split, self.labels(split), self.options)

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        from phalanx.recipes.detection.network import group_parameters

        return group_parameters(model, warmup_bias_lr=self.options.warmup_bias_lr)

    def weight(self, batch: Batch) -> None:
        return None

    def loss(self, model: nn.Module, batch: Batch, keys: Tensor) -> Mapping[str, Term]:
        from phalanx.recipes.detection.data import as_input, resized

        images = as_input(batch["image"], model)
        if "size" in batch:
            images = resized(images, batch["size"])
        return self._terms(model, model(images), batch)

    def _terms(self, model: nn.Module, predictions: Any, batch: Batch) -> dict[str, Term]:
        from phalanx.recipes.detection.loss import sum_losses
        from phalanx.recipes.detection.network import cell_sizes

        sums = sum_losses(predictions, batch["classes"], batch["boxes"], strides=cell_sizes(model))
        return {
            "box": Term(self.options.box * sums.box, sums.weight),
            "cls": Term(self.options.cls * sums.cls, sums.weight),
            "dfl": Term(self.options.dfl * sums.dfl, sums.weight),
        }

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Any]:
        from phalanx.recipes.detection.data import as_input
        from phalanx.recipes.detection.scoring import score, suppress

        boxes, predictions = model(as_input(batch["image"], model))
        sums = score(suppress(boxes, self.options), batch, self.names)
        if predictions is None:  # an exported file, which gives what is read from them alone
            return sums
        terms = self._terms(model, predictions, batch)
        losses = {name: term.sum for name, term in terms.items()}
        return {**losses, "weight": terms["box"].weight, **sums}

    def metrics(self, sums: Mapping[str, Any]) -> Mapping[str, float]:
        from phalanx.recipes.detection.scoring import summarise

        return summarise(sums, self.names)

    def samples(self, model: nn.Module) -> Sequence[Sample | Media]:
        if not self.options.pictures:
            return []
        from phalanx.recipes.detection.pictures import show_detections

        return show_detections(model, self._shown_data, self.options, self.names)

    @functools.cached_property
    def _shown_data(self) -> Any:
        return self.data("test")

    def charts(self, sums: Mapping[str, Any]) -> Iterable[Media]:
        if not self.options.pictures:
            return []
        from phalanx.recipes.detection.pictures import draw_charts

        return draw_charts(sums, self.names)

    def exported(self, model: nn.Module) -> Exported:
        from phalanx.recipes.detection.graph import describe_graph

        return describe_graph(model, self.options)

    def export_metadata(self) -> Mapping[str, Any]:
        from phalanx.recipes.detection.graph import graph_metadata

        return graph_metadata(self.options, self.names)

    def example(self) -> Batch | None:
        """Generated images where the data is not at hand, so that an export can be tried."""
        try:
            _ = self.source
        except UserError:
            from phalanx.recipes.detection.shapes import drawn_batch

            return drawn_batch(self.options.size)
        return None

    def export(self, tensors: Mapping[str, Tensor], folder: Path, form: str) -> None:
        from phalanx.recipes.detection.exporting import write_pt

        name = "last.pt" if form == "checkpoint" else "best.pt"
        write_pt(self, tensors, folder / name)
