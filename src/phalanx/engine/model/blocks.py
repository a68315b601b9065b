"""The repeated parts of a model: what is sharded, checkpointed and compiled one at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from torch import nn

from phalanx.recipe.interface import Recipe

Block = tuple[str, nn.Module]
"""A block's name in the model, and the block."""


def find_blocks(recipe: Recipe, model: nn.Module) -> list[Block]:
    """The recipe's own blocks, or else the outermost modules of a kind that occurs repeatedly."""
    names = {id(module): name for name, module in model.named_modules()}
    chosen = list(recipe.blocks(model))
    if chosen:
        blocks = [(names[id(module)], module) for module in chosen]
    else:
        blocks = list(_outermost(model, _repeated(model), ""))
    return [block for block in blocks if not _shares_weights(block[1], model)]


def find_beside(model: nn.Module, blocks: Iterable[Block]) -> list[Block]:
    """The largest modules with weights outside of all blocks: heads, above all, and norms. Not
    embeddings, whose backward is quicker and in order as it is written."""
    inside = {id(block) for _, block in blocks}

    def search(module: nn.Module, prefix: str) -> Iterator[Block]:
        for name, child in module.named_children():
            parts = list(child.modules())
            if id(child) in inside:
                continue
            is_list = isinstance(child, (nn.ModuleList, nn.ModuleDict))  # nobody calls one
            if is_list or any(id(part) in inside for part in parts):
                yield from search(child, f"{prefix}{name}.")
            elif _has_weights_to_compile(parts):
                yield prefix + name, child

    return list(search(model, "")) if inside else []


def _has_weights_to_compile(parts: list[nn.Module]) -> bool:
    with_weights = [p for p in parts if next(p.parameters(recurse=False), None) is not None]
    return not all(isinstance(part, (nn.Embedding, nn.EmbeddingBag)) for part in with_weights)


def _repeated(model: nn.Module) -> set[type[nn.Module]]:
    """Kinds of modules that make up repeated layers: several siblings in a list or a sequence, each
    with parts of its own and weights."""
    repeated: set[type[nn.Module]] = set()
    for module in model.modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            kinds = Counter(type(child) for child in module.children() if _is_layer(child))
            repeated |= {kind for kind, count in kinds.items() if count > 1}
    return repeated


def _is_layer(module: nn.Module) -> bool:
    has_parts = next(module.children(), None) is not None
    return has_parts and next(module.parameters(), None) is not None


def _outermost(module: nn.Module, kinds: set[type[nn.Module]], prefix: str) -> Iterator[Block]:
    for name, child in module.named_children():
        if type(child) in kinds and _is_layer(child):
            yield prefix + name, child
        else:
            yield from _outermost(child, kinds, f"{prefix}{name}.")


def _shares_weights(block: nn.Module, model: nn.Module) -> bool:
    """Whether a weight of the block is also used outside of it: only the whole model can hold it
    then."""
    inside = {id(parameter) for parameter in block.parameters()}
    members = {id(module) for module in block.modules()}
    return any(
        id(parameter) in inside
        for module in model.modules()
        if id(module) not in members
        for parameter in module.parameters(recurse=False)
    )
