"""An optimizer's state by parameter name, so that it fits any strategy and number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from phalanx.engine.model.shards import Shard, shard_of
from phalanx.engine.model.tensor_file import TensorFile
from phalanx.engine.strategies.optimizers import Optimizer


class OptimizerState(NamedTuple):
    """Each entry is named `PARAMETER:KEY`, such as `head.weight:exp_avg`."""

    tensors: dict[str, Shard]
    numbers: dict[str, Any]
    """What is no tensor, for JSON."""


def named_state(model: nn.Module, optimizer: Optimizer, *, is_first: bool) -> OptimizerState:
    """The state a torch optimizer keeps on this rank."""
    names = _names(model)
    tensors: dict[str, Shard] = {}
    numbers: dict[str, Any] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for key, value in optimizer.state.get(parameter, {}).items():
                name = f"{names[id(parameter)]}:{key}"
                if isinstance(value, torch.Tensor):
                    tensors[name] = shard_of(value, is_first=is_first)
                else:
                    numbers[name] = value
    return OptimizerState(tensors, numbers)


def put_state(
    model: nn.Module, optimizer: Optimizer, file: TensorFile, numbers: Mapping[str, Any]
) -> None:
    """Put state from a file in place; this rank reads only what it holds."""
    names = _names(model)
    keys = keys_by_parameter(file, numbers)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for index, parameter in enumerate(parameters):
        name = names[id(parameter)]
        for key in keys.get(name, ()):
            full = f"{name}:{key}"
            value = numbers[full] if full in numbers else _read(file, full, parameter)
            state.setdefault(index, {})[key] = value
    record = optimizer.state_dict()
    record["state"] = state
    optimizer.load_state_dict(record)


def keys_by_parameter(file: TensorFile, numbers: Mapping[str, Any]) -> dict[str, list[str]]:
    """What there is for each parameter."""
    keys: dict[str, list[str]] = {}
    for full in [*file.names, *numbers]:
        name, _, key = full.rpartition(":")
        keys.setdefault(name, []).append(key)
    return keys


def _read(file: TensorFile, name: str, parameter: torch.Tensor) -> torch.Tensor:
    if file.shape(name) != tuple(parameter.shape) or parameter.dim() == 0:
        return file.read(name)  # a count of steps
    like = torch.empty_like(parameter, requires_grad=False)
    file.read_into(name, shard_of(like, is_first=True))
    return like


def _names(model: nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in model.named_parameters()}
