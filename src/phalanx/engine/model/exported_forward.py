"""What of a model is exported: what the recipe says, or else the forward that its `evaluate` calls,
with the names of that forward's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_flatten_with_path, tree_unflatten

from phalanx.errors import Finding, UserError
from phalanx.recipe.graphs import Exported, ExportingGraphs
from phalanx.recipe.interface import Batch, Recipe

Run = Callable[..., tuple[Tensor, ...]]
"""Runs an exported file on its named inputs."""


def find_exported(recipe: Recipe, model: nn.Module, batch: Batch) -> Exported:
    """What the recipe exports of this model; `batch` is a micro-batch to find it with."""
    said = recipe.exported(model) if isinstance(recipe, ExportingGraphs) else None
    return said if said is not None else _Call.of(recipe, model, batch).exported(recipe, model)


def stand_in(exported: Exported, run: Run) -> nn.Module:
    """A model for the recipe's `evaluate` that runs an exported file."""
    if exported.stand_in is not None:
        return exported.stand_in(run)
    return _CalledLikeModule(run)


class _CalledLikeModule(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run_file = run

    def forward(self, *given: Tensor, **named: Tensor) -> Tensor | tuple[Tensor, ...]:
        outputs = self._run_file(*given, **named)
        return outputs[0] if len(outputs) == 1 else outputs


class Forward(nn.Module):
    """A module that takes and gives tensors alone, in order, and hides the type it computes in:
    what is wide comes in and goes out in fp32."""

    def __init__(self, module: nn.Module, *, is_half: bool = False) -> None:
        super().__init__()
        self.module = module
        self._is_half = is_half

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = [_cast(t, torch.float16) for t in inputs] if self._is_half else list(inputs)
        made = self.module(*given)
        outputs = made if isinstance(made, (tuple, list)) else (made,)
        return tuple(_cast(t, torch.float32) for t in outputs)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


class _Call(NamedTuple):
    """A forward as a recipe called it."""

    leaves: list[Any]
    spec: TreeSpec
    names: dict[str, int]
    """Of the leaves that are tensors, each with its place among them all."""
    outputs: list[str]
    made: TreeSpec

    @classmethod
    def of(cls, recipe: Recipe, model: nn.Module, batch: Batch) -> _Call:
        seen: list[tuple[Any, Any]] = []

        def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            bound = inspect.signature(module.forward).bind(*args, **kwargs)
            seen.append((dict(bound.arguments), output))

        handle = model.register_forward_hook(note, with_kwargs=True)
        try:
            with torch.no_grad():
                recipe.evaluate(model, batch)
        finally:
            handle.remove()
        if len(seen) != 1:
            why = f"{type(recipe).__name__}.evaluate calls the model {len(seen)} times"
            raise UserError(_unclear(recipe, why))
        given, output = seen[0]
        pairs, spec = tree_flatten_with_path(given)
        names = {_name(path): n for n, (path, leaf) in enumerate(pairs) if _is_tensor(leaf)}
        made, made_spec = tree_flatten_with_path(output)
        if not names or not all(_is_tensor(leaf) for _, leaf in made):
            raise UserError(
                _unclear(recipe, "its forward takes or gives other things than tensors")
            )
        outputs = [_name(path) or "output" for path, _ in made]
        if all(name.isdecimal() for name in outputs):
            outputs = [f"output_{name}" for name in outputs]
        return cls([leaf for _, leaf in pairs], spec, names, outputs, made_spec)

    def exported(self, recipe: Recipe, model: nn.Module) -> Exported:
        def inputs(batch: Batch) -> Mapping[str, Tensor]:
            call = _Call.of(recipe, model, batch)
            return {name: call.leaves[place] for name, place in call.names.items()}

        return Exported(
            _Recalled(self, model),
            inputs,
            self.outputs,
            stand_in=lambda run: _StandIn(self, model, run),
        )


class _Recalled(nn.Module):
    """The model, called with the tensors of a call that was seen and with its other arguments."""

    def __init__(self, call: _Call, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._call = call

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves = list(self._call.leaves)
        for place, tensor in zip(self._call.names.values(), tensors, strict=True):
            leaves[place] = tensor
        given = tree_unflatten(leaves, self._call.spec)
        positional, named = _bind(inspect.signature(self.model.forward), given)
        return tuple(tree_flatten(self.model(*positional, **named))[0])


class _StandIn(nn.Module):
    """Called as the model is, it runs a file instead."""

    def __init__(self, call: _Call, model: nn.Module, run: Run) -> None:
        super().__init__()
        self._call = call
        self._signature = inspect.signature(model.forward)
        self._run_file = run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = dict(self._signature.bind(*args, **kwargs).arguments)
        leaves = tree_flatten(given)[0]
        named = {name: leaves[place] for name, place in self._call.names.items()}
        return tree_unflatten(list(self._run_file(**named)), self._call.made)


def _bind(signature: inspect.Signature, given: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
    bound = inspect.BoundArguments(signature, given)
    return bound.args, bound.kwargs


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


def _name(path: Any) -> str:
    """`image`, `inputs_0`: the last parts of the way to a leaf, without `kwargs` before them."""
    words = [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path]
    return "_".join(word for word in words if word not in ("kwargs", "args"))


def _unclear(recipe: Recipe, why: str) -> Finding:
    return Finding(
        slug="export-unclear",
        what="what of the model is to be exported is not clear",
        why=f"{why}; without `exported` a recipe's model is exported as its `evaluate` calls it, "
        "once and with tensors",
        fix=f"say it: def exported(self, model) in {type(recipe).__name__}; or --to safetensors",
    )
