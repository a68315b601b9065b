"""The same bits on any number of ranks: gradients of fixed micro-batches, added in one fixed tree.

Every slot's gradient is kept apart and the slots are added up in a binary tree over their numbers,
which depends on the batch alone. A rank adds up the whole subtrees it holds, the ranks exchange
those few sums, and each finishes the tree. It costs a gather of the model's size from every rank
instead of a reduction that overlaps with the backward pass, and a copy of the gradients for each
level of the tree.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from phalanx.engine.process.group import Process
from phalanx.engine.strategies.base import StepSums
from phalanx.engine.strategies.together import Together
from phalanx.job.strategies import facts_of
from phalanx.planner.schema.micro_batches import deal
from phalanx.recipe.interface import Recipe

_CHUNK = 4 * 2**20  # numbers exchanged at a time: 16 MiB of fp32 from every rank


class _Addable(Protocol):
    def __add__(self, other: Any) -> Any: ...


T = TypeVar("T", bound=_Addable)
Node = tuple[int, int]
"""(level, index): the slots from index x 2^level to (index + 1) x 2^level."""


class SlotTree(Generic[T]):
    """A sum over slots in the order of one fixed binary tree, whatever order they arrive in."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self.nodes: dict[Node, T] = {}

    def add(self, node: Node, value: T) -> None:
        """Put a sum in its place and add up all that is complete."""
        level, index = node
        while (1 << level) < self._num_slots:
            has_right = ((index | 1) << level) < self._num_slots
            if has_right:
                if (level, index ^ 1) not in self.nodes:
                    break
                value = self.nodes.pop((level, index ^ 1)) + value
            level, index = level + 1, index >> 1
        self.nodes[level, index] = value


def nodes_of(first: int, last: int, num_slots: int) -> list[Node]:
    """The complete subtrees that a rank with slots `first` to `last` ends up with."""
    tree: SlotTree[int] = SlotTree(num_slots)
    for slot in range(first, last):
        tree.add((0, slot), 0)
    return sorted(tree.nodes)


class Exact(Together):
    """Replicas whose gradients are added in the slot tree."""

    facts = facts_of("exact")

    def __init__(self, recipe: Recipe, model: nn.Module, process: Process) -> None:
        super().__init__(recipe, model, process)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._tree: SlotTree[Tensor] = SlotTree(0)
        self._used: list[bool] = []
        self._row_size = 0

    def before_step(self, num_slots: int) -> None:
        self._tree = SlotTree(num_slots)
        self._used = [False] * len(self._parameters)

    def after_slot(self, slot: int, sums: StepSums) -> None:
        """Take the slot's gradients and loss sums out and give them their place in the tree."""
        parts = []
        for index, parameter in enumerate(self._parameters):
            if parameter.grad is None:
                parts.append(parameter.new_zeros(parameter.numel()))
            else:
                self._used[index] = True
                parts.append(parameter.grad.flatten())
            parameter.grad = None
        dtype = torch.float64 if parts[0].dtype == torch.float64 else torch.float32
        row = torch.cat([part.detach().to(dtype) for part in [*parts, sums.take()]])
        self._row_size = len(row)
        self._tree.add((0, slot), row)
        super().after_slot(slot, sums)

    def after_step(self, num_slots: int, sums: StepSums) -> None:
        total = self._finish_tree(num_slots)
        position = 0
        for parameter, is_used in zip(self._parameters, self._used_anywhere(), strict=True):
            size = parameter.numel()
            if is_used:
                part = total[position : position + size]
                parameter.grad = part.view_as(parameter).to(parameter.dtype)
            position += size
        sums.put(total[position:])
        super().after_step(num_slots, sums)

    def _finish_tree(self, num_slots: int) -> Tensor:
        process = self.process
        if process.world == 1:
            return next(iter(self._tree.nodes.values()))
        shares = [
            nodes_of(*deal(num_slots, rank, process.world), num_slots)
            for rank in range(process.world)
        ]
        size = process.agree(self._row_size)  # a rank without a slot in the first step has no row
        mine = [self._tree.nodes[node] for node in shares[process.rank]]
        most = max(len(nodes) for nodes in shares)
        like = mine[0] if mine else self._like()
        chunks = []
        for start in range(0, size, _CHUNK):
            width = min(_CHUNK, size - start)
            sent = like.new_zeros(most, width)
            for index, row in enumerate(mine):
                sent[index] = row[start : start + width]
            gathered = [torch.empty_like(sent) for _ in shares]
            dist.all_gather(gathered, sent)
            tree: SlotTree[Tensor] = SlotTree(num_slots)
            for nodes, rows in zip(shares, gathered, strict=True):
                for node, row in zip(nodes, rows, strict=False):
                    tree.add(node, row)
            chunks.append(next(iter(tree.nodes.values())))
        return torch.cat(chunks)

    def _like(self) -> Tensor:
        first = self._parameters[0]
        dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
        return torch.empty(0, dtype=dtype, device=first.device)

    def _used_anywhere(self) -> list[bool]:
        """Which parameters some slot reached; the others keep no gradient, as on one rank."""
        return [count > 0 for count in self.process.count(self._used)]
