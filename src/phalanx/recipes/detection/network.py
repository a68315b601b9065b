"""Ultralytics' detection model by name, by .yaml, or with the structure of a .pt."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from phalanx.recipe import Finding, UserError, did_you_mean
from phalanx.recipes.detection.library import ultralytics
from phalanx.recipes.detection.options import DetectionOptions
from phalanx.recipes.detection.pretrained import Pretrained, open_pretrained

_NAMES = tuple(f"yolo11{size}" for size in "nsmlx")


def find_pretrained(options: DetectionOptions) -> Pretrained | None:
    """What the model's .pt holds; None where it is no .pt, or one that is left behind where the
    structure is known without it."""
    file = Path(options.model)
    if file.suffix != ".pt" or (options.structure is not None and not file.is_file()):
        return None
    return open_pretrained(file)


def structure_of(options: DetectionOptions) -> dict[str, Any] | None:
    """The layers of a model that comes from a file; None: its name says enough."""
    if options.structure is not None:
        return options.structure
    if (pretrained := find_pretrained(options)) is not None:
        return pretrained.structure
    if not options.model.endswith((".yaml", ".yml")):
        return None
    ultralytics()
    from ultralytics.nn.tasks import yaml_model_load

    loaded: dict[str, Any] = yaml_model_load(_structure(options.model))
    return {key: value for key, value in loaded.items() if key != "yaml_file"}


def make_network(options: DetectionOptions, names: dict[int, str]) -> nn.Module:
    """The model with fresh weights for these classes."""
    package = ultralytics()
    structure: Any = copy.deepcopy(structure_of(options)) or _structure(options.model)
    # Its layers look at their grids while they are made: that takes values, also where a plan only
    # wants shapes.
    place = torch.get_default_device()
    with torch.device("cpu"):
        network: nn.Module = package.nn.tasks.DetectionModel(
            structure, ch=3, nc=len(names), verbose=False
        )
    head: Any = network.model[-1]  # type: ignore[index]
    if getattr(head, "one2one_cv2", None) is not None or not hasattr(head, "reg_max"):
        raise UserError(_wrong_head(options.model, type(head).__name__))
    attached: Any = network
    attached.nc, attached.names = len(names), dict(names)
    # As numbers: on a device, or where nothing has values, a tensor of them would have to be read.
    attached.cell_sizes = [int(stride) for stride in head.stride.tolist()]
    for name, parameter in network.named_parameters():
        is_frozen = any(name.startswith(f"model.{layer}.") for layer in range(options.freeze))
        # The bins' values are weights of a convolution, and no parameter to learn.
        parameter.requires_grad_(not is_frozen and ".dfl." not in name)
    return network.to(place)


def _structure(model: str) -> str:
    """A file that describes a model, Ultralytics' own or the user's."""
    if model.endswith((".yaml", ".yml")):
        if Path(model).is_file():
            return model
        raise UserError(_no_model(model, "the file is not there"))
    package = ultralytics()
    # One file describes all sizes: yolo11.yaml is that of yolo11n to yolo11x.
    family = re.sub(r"(\d+)[nslmx]$", r"\1", model)
    known = Path(package.__file__).parent.joinpath("cfg", "models").rglob(f"{family}.yaml")
    if not re.fullmatch(r"[A-Za-z0-9_-]+", model) or not any(known):
        raise UserError(_no_model(model, "Ultralytics has no model of that name"))
    return f"{model}.yaml"


def _no_model(model: str, why: str) -> Finding:
    return Finding(
        slug="detection-model",
        what=f"there is no model `{model}`{did_you_mean(model, list(_NAMES))}",
        why=f"options.model = {model}; {why}",
        fix=f"model={_NAMES[0]} (up to {_NAMES[-1]}), model=FILE.pt or model=FILE.yaml",
    )


def _wrong_head(model: str, head: str) -> Finding:
    return Finding(
        slug="detection-model",
        what=f"`{model}` is not a model whose detections are trained here",
        why=f"options.model; it ends in {head}, trained are heads with one branch that give boxes "
        "as distributions: YOLOv8, v9, 11 and 12",
        fix="model=yolo11n",
    )


def cell_sizes(network: nn.Module) -> list[int]:
    """Pixels of a cell on each of the model's grids."""
    sizes: Any = network.cell_sizes
    return list(sizes)


def group_parameters(network: nn.Module, *, warmup_bias_lr: float) -> list[dict[str, Any]]:
    """Weights that decay, norms that do not, and biases with a warm-up of their own."""
    norms = tuple(v for k, v in vars(nn).items() if "Norm" in k and isinstance(v, type))
    groups: dict[str, list[nn.Parameter]] = {"weight": [], "norm": [], "bias": []}
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            kind = "bias" if "bias" in name else "norm" if isinstance(module, norms) else "weight"
            groups[kind].append(parameter)
    made: list[dict[str, Any]] = [
        {"params": groups["weight"]},
        {"params": groups["norm"], "weight_decay": 0.0},
        {"params": groups["bias"], "weight_decay": 0.0, "warmup_lr": warmup_bias_lr},
    ]
    return [group for group in made if group["params"]]
