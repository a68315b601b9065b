"""A model as TorchScript: traced, and run without the recipe's code."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.errors import Finding, UserError
from phalanx.exporter.samples import Inputs
from phalanx.recipe.questions import ExportQuestion

TORCHSCRIPT_FILE = "model.torchscript"


def write_torchscript(
    request: ExportQuestion, module: nn.Module, example: Inputs, path: Path
) -> None:
    """Trace the module on an example, and save it with what it says of itself."""
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # that a shape is a constant is found by comparing
            trace: Any = torch.jit.trace
            traced = trace(module, tuple(example.values()), check_trace=False)
    except Exception as error:  # what the model raises when traced
        raise UserError(
            Finding(
                slug="torchscript-not-offered",
                what="this model cannot be traced",
                why=f"torch.jit of torch {torch.__version__}: {type(error).__name__}: "
                f"{' '.join(str(error).split())[:500]}",
                fix="--to onnx",
            )
        ) from error
    torch.jit.save(traced, str(path), _extra_files=request.record)


def open_torchscript(path: Path) -> Callable[..., tuple[Tensor, ...]]:
    """Runs the file, as a program without the recipe would."""
    load: Any = torch.jit.load
    loaded = load(str(path))

    def run(*given: Tensor, **named: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return tuple(loaded(*given, *named.values()))

    return run
