"""What a training step computes: its operators, alike ones counted together."""

from __future__ import annotations

from typing import Literal, NamedTuple

from phalanx.planner.schema.footprint import Line

Kind = Literal["product", "attention", "recurrence", "norm", "copy", "reduction", "memory", "view"]
Phase = Literal["forward", "backward"]


class Shape(NamedTuple):
    """A product of matrices: `batch` times m x k by k x n."""

    batch: Line
    m: Line
    n: Line
    k: Line


class Operator(NamedTuple):
    """Operators of one kind and size, of one micro-batch. Lines are over its samples."""

    kind: Kind
    """`product` of matrices, and a convolution, which is one of unfolded windows; `attention` in
    one kernel; `recurrence` of an RNN; `norm` of rows or channels; `copy`, also into another dtype;
    `reduction` to far fewer numbers, or additions to rows of a table; `memory` for everything else
    that reads and writes more than it computes; `view` for what only the host does."""
    phase: Phase
    dtype: str
    """What is computed in: `fp32`, `half` or `fp64`."""
    times: int
    """How many of them there are."""
    flops: Line
    """Of one of them; a multiplication and an addition are two."""
    bytes: Line
    """Read and written by one of them."""
    shape: Shape | None = None
    """Of a product; a convolution's is (groups, output positions, output channels per group,
    input channels per group x window), a recurrence's that of its steps, which come one after
    another: (steps, samples, gates x units, units)."""
    name: str = ""
    """Of the operator in torch, for people who look for what takes the time."""
