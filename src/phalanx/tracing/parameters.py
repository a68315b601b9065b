"""The parameters of a model as planning needs them: shapes, types, what updates them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from phalanx.engine.model.blocks import Block
from phalanx.engine.model.frozen import find_frozen
from phalanx.planner.schema.trace import Weight
from phalanx.recipe.interface import Recipe


def list_weights(recipe: Recipe, model: nn.Module, blocks: Sequence[Block]) -> list[Weight]:
    """Every parameter, in the order in which the optimizer gets them, then the others."""
    groups = _groups(recipe, model)
    group_of = {id(p): index for index, group in enumerate(groups) for p in group}
    block_of = {id(p): i for i, (_, block) in enumerate(blocks) for p in block.parameters()}
    known = [p for group in groups for p in group]
    held = find_frozen(model)
    others = [p for p in model.parameters() if id(p) not in group_of]
    return [
        Weight(
            tuple(parameter.shape),
            parameter.element_size(),
            parameter.requires_grad,
            group_of.get(id(parameter)),
            block_of.get(id(parameter)),
            parameter.is_floating_point(),
            held.get(parameter, ""),
        )
        for parameter in [*known, *others]
    ]


def _groups(recipe: Recipe, model: nn.Module) -> list[list[nn.Parameter]]:
    everything = [[p for p in model.parameters() if p.requires_grad]]
    try:
        groups = recipe.groups(model)
    except Exception:
        return everything  # it may look at values, which are not there yet; the ranks call it again
    if groups is None:
        return everything
    return [[p for p in group["params"] if p.requires_grad] for group in groups]
