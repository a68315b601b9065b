"""Whether gradients are those that others are, but for rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from phalanx.engine.process.group import Process

Gradients = list[Tensor | None]
"""Of each parameter; last the sums of the loss."""

# Half a unit in the last place of what is multiplied: bf16 keeps 8 bits, fp16 and TF32 11. Under
# fp64 a recipe may well compute some of its loss in fp32.
ROUNDING = {"bf16": 2**-9, "fp16": 2**-12, "tf32": 2**-12, "fp32": 2**-25, "fp64": 2**-25}
# Roundings that gradients may be apart at least; sums of a million numbers in fp32 in another order
# are some hundreds of them apart, in a narrow type they are added up in fp32.
_ROUNDINGS = {"fp32": 2**11, "fp64": 2**11}
_FEW_ROUNDINGS = 32
_NOISE = 4.0  # times what rounding the weights alone changes: a deep model with norms amplifies it
_NOISE_OF_ONE = 8.0  # the same of one tensor: of hundreds, one is always far off
# Gradients without anything in common are 1.4 apart. A deep model with norms at its random start
# may be as far from itself by rounding alone (ResNet-50 in bf16): what is no further is no
# difference, and the loss, which rounding hardly moves, is what tells.
_MOST = 0.5
_AS_FAR = 1.5
_SMALL = 16  # elements of a tensor that is not judged alone: chance


class Distance(NamedTuple):
    """How far gradients are from others, relative to their norm."""

    whole: float
    each: list[float]
    """By parameter."""
    weight: list[float]
    """Norm of each parameter's gradient, relative to all."""
    loss: float


def distance_of(reference: Gradients, other: Gradients, process: Process) -> Distance:
    """Over all ranks; a gradient that was not finite as written says nothing."""
    rows = [_norms(a, b) for a, b in zip(reference, other, strict=True)]
    # Gradients may be on the host, where their state is.
    table = torch.stack([row.to(rows[0].device) for row in rows]).cpu().double().square()
    if pending := process.reduce_control(table):
        pending.wait()
    (*differing, of_loss), (*sizes, loss) = table.T.tolist()
    total = math.sqrt(sum(sizes)) or 1.0
    return Distance(
        math.sqrt(sum(differing)) / total,
        [
            math.sqrt(d / s) if s else (0.0 if d == 0 else math.inf)
            for d, s in zip(differing, sizes, strict=True)
        ],
        [math.sqrt(size) / total for size in sizes],
        math.sqrt(of_loss / loss) if loss else 0.0,
    )


def too_far(
    found: Distance,
    noise: Distance,
    parameters: Sequence[tuple[str, Tensor]],
    precision: str,
) -> str | None:
    """What is further apart than rounding explains; `noise` is what rounding the weights once
    changes."""
    least = _ROUNDINGS.get(precision, _FEW_ROUNDINGS) * ROUNDING[precision]

    def say(what: str, whole: str, apart: float, allowed: float, by_noise: float) -> str:
        return (
            f"{what} {apart:.2g} of {whole} away from that of the recipe as it is written, "
            f"{allowed:.2g} is allowed ({precision}; rounding the weights once changes that by "
            f"{by_noise:.2g})"
        )

    of_loss = max(least, _NOISE_OF_ONE * noise.loss)
    if not found.loss <= of_loss:
        return say("the loss is", "itself", found.loss, of_loss, noise.loss)
    allowed = min(_MOST, max(least, _NOISE * noise.whole))
    allowed = max(allowed, _AS_FAR * noise.whole)
    if not found.whole <= allowed:
        what = "the gradient of all parameters is"
        return say(what, "its norm", found.whole, allowed, noise.whole)
    for index, (name, parameter) in enumerate(parameters):
        own = max(4 * least, _NOISE_OF_ONE * noise.each[index])
        is_judged = parameter.numel() >= _SMALL and found.weight[index] > allowed
        if is_judged and found.each[index] > own:
            what = f"the gradient of `{name}` is"
            return say(what, "its norm", found.each[index], own, noise.each[index])
    return None


def _norms(reference: Tensor | None, other: Tensor | None) -> Tensor:
    """Of the difference, and of the reference."""
    known = reference if reference is not None else other
    if known is None:
        return torch.zeros(2)
    nothing = torch.zeros_like(known)
    reference = nothing if reference is None else reference
    other = nothing if other is None else other
    size = torch.linalg.vector_norm(reference).float()
    differing = torch.linalg.vector_norm(other - reference).float()
    row = torch.stack([torch.nan_to_num(differing, nan=math.inf, posinf=math.inf), size])
    return torch.where(torch.isfinite(size), row, torch.zeros_like(row))
