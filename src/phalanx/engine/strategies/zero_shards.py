"""What DeepSpeed's ZeRO keeps on a rank, as shards.

ZeRO lays the parameters of an optimizer group end to end and gives each rank a stretch of that, in
fp32, which is what torch's optimizer updates (stages 1 and 2); or it cuts each parameter into equal
parts and lays those end to end (stage 3). Either way a rank holds one contiguous range of each
parameter, and the optimizer's state has the same layout. The model's own parameters are copies in
the precision of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.engine.model.shards import Shard, shard_of
from phalanx.engine.model.tensor_file import TensorFile
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.optimizer_state import OptimizerState, keys_by_parameter
from phalanx.engine.strategies.optimizers import Optimizer

_COUNT = "step"  # what torch's optimizers call their one number per parameter


@dataclass(frozen=True)
class Piece:
    """The range of one parameter that this rank updates."""

    name: str
    shape: tuple[int, ...]
    start: int
    """Where the range begins in the flattened parameter."""
    flat: Tensor
    """The fp32 weights that hold it, among those of other parameters."""
    offset: int
    """Where it begins in there."""
    length: int

    def in_flat(self, flat: Tensor) -> Shard:
        """The range in the fp32 weights, or in a state of the optimizer with the same layout."""
        return Shard(flat.detach().narrow(0, self.offset, self.length), self.shape, self.start)

    @property
    def weights(self) -> Shard:
        return self.in_flat(self.flat)


class ZeroPartitions:
    """The weights and the optimizer state that this rank holds, by parameter name."""

    def __init__(
        self, model: nn.Module, zero: Any, optimizer: Optimizer, process: Process, stage: int
    ) -> None:
        self._model = model
        self._zero = zero
        self._optimizer = optimizer
        self._process = process
        self._is_cut = stage == 3
        """Whether the model's own parameters are cut up too."""
        find = self._pieces_of_parts if self._is_cut else self._pieces_of_stretches
        names = {id(p): name for name, p in model.named_parameters()}
        self.pieces = {p.name: p for p in find(names)}
        self._names = names

    def _pieces_of_stretches(self, names: Mapping[int, str]) -> Iterator[Piece]:
        zero = self._zero
        for group, flat in zip(
            zero.bit16_groups, zero.single_partition_of_fp32_groups, strict=True
        ):
            for parameter in group:
                name, shape = names[id(parameter)], tuple(parameter.shape)
                found = parameter._hp_mapping
                if found is None:  # it lies in another rank's stretch
                    yield Piece(name, shape, 0, flat, 0, 0)
                    continue
                here, there = found.lp_fragment_address, found.hp_fragment_address
                yield Piece(name, shape, here.start, flat, there.start, there.numel)

    def _pieces_of_parts(self, names: Mapping[int, str]) -> Iterator[Piece]:
        zero = self._zero
        for group in zero.fp16_groups:
            for parameter in group:
                index, offset, _ = zero.grad_position[zero.get_param_id(parameter)]
                start, length = self._part_of(parameter)
                flat = zero.fp32_partitioned_groups_flat[index]
                shape = tuple(parameter.ds_shape)
                yield Piece(names[id(parameter)], shape, start, flat, offset, length)

    def _part_of(self, parameter: Any) -> tuple[int, int]:
        """Begin and length of this rank's part of a parameter; the last ones may be padding."""
        size = parameter.partition_numel()
        start = min(size * self._process.rank, parameter.ds_numel)
        return start, min(size, parameter.ds_numel - start)

    def model_state(self) -> dict[str, Shard]:
        """What this rank holds of the model's state: the fp32 weights of what learns."""
        return {
            name: self._shard(tensor)
            for name, tensor in self._model.state_dict(keep_vars=True).items()
        }

    def _shard(self, tensor: Any) -> Shard:
        name = self._names.get(id(tensor))
        if name in self.pieces:
            return self.pieces[name].weights
        if name is not None and self._is_cut:  # frozen
            start, length = self._part_of(tensor)
            held = tensor.ds_tensor.detach().narrow(0, 0, length)
            return Shard(held, tuple(tensor.ds_shape), start)
        return shard_of(tensor, is_first=self._process.is_first)

    def push(self) -> None:
        """Give the model's own parameters the values of the fp32 weights."""
        zero = self._zero
        if not self._is_cut:
            zero.update_lp_params()
            return
        zero._partition_all_parameters()  # lets go of gathered copies of the old values
        for index in range(len(zero.fp16_groups)):
            zero._reassign_or_swap_out_partitioned_parameters(index)

    def clear_gradients(self) -> None:
        """Forget gradients that ZeRO keeps in buffers of its own. It overwrites them only where a
        parameter gets a gradient: one that the next step does not reach would be given the old one
        again. Costs one pass over the buffers, a few percent of what the optimizer reads."""
        zero = self._zero
        if self._is_cut:
            zero.grad_partitions_flat_buffer.zero_()
        for buffer in getattr(zero, "accumulated_grads_in_cpu", {}).values():
            buffer.zero_()
        for flat in self._flats():
            if flat.grad is not None:
                flat.grad.zero_()

    def optimizer_state(self, without: set[str]) -> OptimizerState:
        """The optimizer's state by parameter, but for some of them."""
        tensors: dict[str, Shard] = {}
        numbers: dict[str, Any] = {}
        for name, piece in self.pieces.items():
            if name in without:
                continue
            for key, value in self._optimizer.state.get(piece.flat, {}).items():
                full = f"{name}:{key}"
                if not isinstance(value, Tensor):
                    numbers[full] = value
                elif value.shape == piece.flat.shape:
                    tensors[full] = piece.in_flat(value)
                else:
                    tensors[full] = shard_of(value, is_first=self._process.is_first)
        return OptimizerState(tensors, numbers)

    def load_optimizer(self, file: TensorFile, numbers: Mapping[str, Any]) -> None:
        """Put state from a file in place. ZeRO has one count of steps for many parameters: the
        largest, which parameters without a gradient in some steps may not have reached."""
        self._optimizer.state.clear()
        keys = keys_by_parameter(file, numbers)
        for name, piece in self.pieces.items():
            state = self._optimizer.state[piece.flat]
            for key in keys.get(name, ()):
                full = f"{name}:{key}"
                if full in numbers:
                    state[key] = numbers[full]
                elif key == _COUNT:
                    count = file.read(full)
                    state[key] = torch.maximum(state.get(key, count), count)
                else:
                    if key not in state:
                        state[key] = torch.zeros_like(piece.flat, requires_grad=False)
                    file.read_into(full, piece.in_flat(state[key]))
        for flat, state in self._optimizer.state.items():
            if _COUNT in state and self._optimizer.defaults.get("fused"):
                state[_COUNT] = state[_COUNT].to(flat.device)  # where fused kernels want it

    def _flats(self) -> list[Tensor]:
        return list({id(piece.flat): piece.flat for piece in self.pieces.values()}.values())
