"""What a rank holds of each tensor of a run: all of it, or a part.

FSDP2 cuts along the first dimension and ZeRO along the flattened tensor: either way a part is one
contiguous range of elements in row-major order, and so one range of bytes in a safetensors file.
Saving, loading, averaging and initialising work on such ranges and never see a whole model.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Shard:
    """A contiguous range of a tensor's elements."""

    tensor: Tensor
    """The elements here, live: writing into it changes the model. Of any shape."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    start: int = 0
    """Where the range begins in the flattened whole."""
    is_mine: bool = True
    """Whether this rank writes the range down; of several replicas only one does."""

    @property
    def stop(self) -> int:
        return self.start + self.tensor.numel()

    def with_tensor(self, tensor: Tensor) -> Shard:
        """The same range of another tensor of that shape, such as its average."""
        return replace(self, tensor=tensor)

    @torch.no_grad()
    def copy_from(self, whole: Tensor) -> None:
        """Take this range over from the whole tensor."""
        part = whole.detach().reshape(-1)[self.start : self.stop]
        self.tensor.copy_(part.view(self.tensor.shape))


def shard_of(tensor: Tensor, *, is_first: bool) -> Shard:
    """What this rank holds of a tensor; the first rank writes down what every rank has."""
    if not is_sharded(tensor):
        return Shard(tensor.detach(), tuple(tensor.shape), is_mine=is_first)
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = tensor.device_mesh, tensor.placements
    _, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    assert not any(offset[1:]), f"{tensor.shape} is cut along another dimension than the first"
    where = mesh.get_coordinate()
    assert where is not None
    return Shard(
        local_part(tensor),
        tuple(tensor.shape),
        start=offset[0] * prod(tensor.shape[1:]),
        is_mine=all(
            index == 0 or not isinstance(placement, Replicate)
            for index, placement in zip(where, placements, strict=True)
        ),
    )


def local_part(tensor: Tensor) -> Tensor:
    """The elements of a tensor that are on this rank, sharing its memory."""
    if is_sharded(tensor):
        local: Tensor = tensor.to_local()
        return local.detach()
    return tensor.detach()


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is torch's for several ranks. Where its module was never imported, which
    costs half a second, there is none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def find_aliases(model: nn.Module) -> dict[str, str]:
    """Names of the state that share their memory with an earlier name: tied weights, which a file
    holds once."""
    aliases: dict[str, str] = {}
    seen: dict[Any, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        place: Any = id(tensor)  # a shard may be empty, and then has no place in memory
        if not is_sharded(tensor) and tensor.numel():
            place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if place in seen:
            aliases[name] = seen[place]
        else:
            seen[place] = name
    return aliases
