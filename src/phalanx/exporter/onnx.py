"""A model as an ONNX file: torch.onnx's dynamo exporter writes it, onnxruntime runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from phalanx.engine.model.onnx_model import require_onnx
from phalanx.errors import Finding, UserError
from phalanx.exporter.samples import Inputs
from phalanx.recipe.graphs import Exported
from phalanx.recipe.questions import ExportQuestion

ONNX_FILE = "model.onnx"


def write_onnx(
    request: ExportQuestion, module: nn.Module, exported: Exported, example: Inputs, path: Path
) -> None:
    """Write the module as ONNX with what it says of itself."""
    require_onnx()
    try:
        program: Any = torch.onnx.export(
            module,
            tuple(example.values()),
            input_names=list(example),
            output_names=list(exported.outputs),
            dynamic_shapes=_dynamic(request, exported, example),
            opset_version=request.opset,
            dynamo=True,
            verbose=False,
        )
    except Exception as error:  # the exporter's own kinds, and what the model raises when traced
        raise UserError(_not_exported(request, error)) from error
    for name, value in request.record.items():
        program.model.metadata_props[name] = value
    program.save(str(path))


def _dynamic(request: ExportQuestion, exported: Exported, example: Inputs) -> Any:
    if not request.is_dynamic:
        return None
    axes: dict[str, Any] = {"batch": torch.export.Dim("batch")}
    shapes = []
    for name in example:
        named = {0: "batch", **exported.dynamic.get(name, {})}
        for axis in named.values():
            step, _, word = axis.rpartition("*")  # `32*height`
            dim = axes.get(axis) or torch.export.Dim(word)
            axes[axis] = int(step) * dim if step and axis not in axes else dim
        shapes.append({place: axes[axis] for place, axis in named.items()})
    return (tuple(shapes),)


def _not_exported(request: ExportQuestion, error: Exception) -> Finding:
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)  # type: ignore[arg-type]
    deepest = f"{type(causes[-1]).__name__}: {' '.join(str(causes[-1]).split())[:500]}"
    return Finding(
        slug="onnx-not-offered",
        what="this model cannot be written as ONNX",
        why=f"torch.onnx of torch {torch.__version__}: {deepest}",
        fix="without --dynamic, with another --opset, or --to torchscript"
        if request.is_dynamic
        else "another --opset, or --to torchscript",
    )


def describe(record: dict[str, Any]) -> dict[str, str]:
    """Metadata as the formats have it: names and texts."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in record.items()
    }
