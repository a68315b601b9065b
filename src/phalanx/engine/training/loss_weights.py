"""Weights that the terms of a loss are divided by, over the global batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from phalanx.engine.data.micro_batches import ANY_TERM
from phalanx.errors import Finding, UserError
from phalanx.recipe.interface import Term

Weight = TypeVar("Weight", float, torch.Tensor)


def divide(total: Any, weight: float) -> Any:
    """A sum by its weight; a term without any weight in the global batch is nothing, not 0/0."""
    return total / weight if weight else total * 0.0


def reciprocal(weight: float) -> float:
    """The factor that stands for dividing by a weight, as `divide` does."""
    return 1 / weight if weight else 0.0


def weight_of(weights: Mapping[str, Weight], term: str) -> Weight:
    """The global weight of a term: its own, or the one that stands for every term."""
    for name in (term, ANY_TERM):
        if name in weights:
            return weights[name]
    raise UserError(
        Finding(
            slug="term-weight",
            what=f"the loss has a term `{term}` that the recipe's weight() does not name",
            why=f"weight() names: {', '.join(weights)}",
            fix=f'return {{..., "{term}": weight}} from weight(batch)',
        )
    )


def shared_weight(terms: Mapping[str, Term]) -> float | torch.Tensor:
    """The one weight of terms whose weights are not known beforehand."""
    first, *others = (term.weight for term in terms.values())
    is_shared = isinstance(first, torch.Tensor) and all(weight is first for weight in others)
    if others and not is_shared:
        raise UserError(_several_late_weights(list(terms)))
    return first


def _several_late_weights(names: list[str]) -> Finding:
    """Several terms with several weights that are not known beforehand."""
    return Finding(
        slug="late-weights",
        what=f"the loss has {len(names)} terms whose weights depend on the predictions",
        why=f"weight() returned None and loss() returned {', '.join(names)}: after the reduction "
        "only one common divisor can be applied",
        fix="return one term, give all of them the same tensor as weight, or return the weights "
        "from weight(batch)",
    )
