"""A checkpoint as a .pt of Ultralytics: `ultralytics.YOLO("best.pt")` loads, validates, exports it.

The weights are those that were evaluated, in full precision, so that its figures are the run's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor

from phalanx.recipe import sign_file
from phalanx.recipes.detection.library import ultralytics
from phalanx.recipes.detection.network import make_network

if TYPE_CHECKING:
    from phalanx.recipes.detection.recipe import DetectionRecipe


def write_pt(recipe: DetectionRecipe, tensors: Mapping[str, Tensor], file: Path) -> None:
    """Build the model, put the tensors in, and write it as Ultralytics' trainer does."""
    package = ultralytics()
    with torch.random.fork_rng(devices=[]):  # training goes on meanwhile
        model = make_network(recipe.options, recipe.names)
    model.load_state_dict({name: tensors[name] for name in tensors} | _frozen(recipe, tensors))
    arguments = train_arguments(recipe)
    attached: Any = model
    attached.args = arguments
    attached.task = "detect"
    del attached.cell_sizes
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    torch.save(
        {
            "epoch": -1,
            "best_fitness": None,
            "model": model.eval(),
            "ema": None,
            "updates": None,
            "optimizer": None,
            "train_args": arguments,
            "date": datetime.now(UTC).isoformat(),
            "version": package.__version__,
            "license": "AGPL-3.0 (https://ultralytics.com/license)",
            "docs": "https://docs.ultralytics.com",
        },
        file,
    )
    sign_file(recipe, file)


def _frozen(recipe: DetectionRecipe, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a checkpoint leaves out: pretrained weights that do not learn."""
    missing = {name: at for name, at in recipe.weights().items() if name not in tensors}
    found: dict[str, Tensor] = {}
    for file in {at.file for at in missing.values()}:
        with safe_open(file, framework="pt") as opened:
            found |= {
                name: opened.get_tensor(at.name) for name, at in missing.items() if at.file == file
            }
    return found


def train_arguments(recipe: DetectionRecipe) -> dict[str, Any]:
    """What Ultralytics looks up in a checkpoint, by its own names."""
    options = recipe.options
    return {
        "task": "detect",
        "mode": "train",
        "model": options.model,
        "data": str(options.data.resolve()) if options.data is not None else None,
        "imgsz": options.size,
        "single_cls": options.single_class,
        "box": options.box,
        "cls": options.cls,
        "dfl": options.dfl,
    }
