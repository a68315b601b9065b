"""Which arithmetic a step uses: autocast, loss scaling, TF32. Weights that learn stay in fp32 (or
fp64). Also where numbers lie in memory: with the channels of images last, if the plan says so."""

from __future__ import annotations

from collections.abc import Container
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from phalanx.engine.data.micro_batches import map_tensors
from phalanx.engine.model.frozen import narrow_frozen

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """The numeric choices of a run on one device."""

    def __init__(
        self,
        name: str,
        device: torch.device,
        *,
        is_channels_last: bool = False,
        is_frozen_narrow: bool = False,
    ) -> None:
        self.name = name
        self.is_channels_last = is_channels_last
        self._device = device
        self._is_frozen_narrow = is_frozen_narrow
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def configure(self) -> None:
        """Set what torch keeps globally."""
        # "high" lets fp32 products run on TF32 tensor cores where there are any; bf16 and fp16
        # runs want it too for the operators that autocast keeps in fp32.
        is_tf32 = self.name in ("tf32", "bf16", "fp16")
        torch.set_float32_matmul_precision("high" if is_tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = is_tf32

    def convert(self, model: nn.Module, *, unread: Container[str] = ()) -> nn.Module:
        """The model in the types its weights are kept in; those named in `unread` have no values
        yet."""
        if self._is_frozen_narrow and self.half is not None:
            narrow_frozen(model, self.name, self.half, unread=unread)
        return model.double() if self.name == "fp64" else model

    def convert_batch(self, tree: Any) -> Any:
        """Floating inputs in fp64 under fp64; autocast looks after the other precisions. Images, on
        the device already, in the layout of the weights: one copy, where each convolution would
        make its own."""
        if self.name == "fp64":
            tree = map_tensors(tree, lambda t: t.double() if t.is_floating_point() else t)
        return map_tensors(tree, _with_channels_last) if self.is_channels_last else tree

    def lay_out(self, model: nn.Module) -> nn.Module:
        """The model with its weights laid out in memory as the plan says. After it is on the
        device, before anything holds its parameters; files and copies do not notice."""
        if not self.is_channels_last:
            return model
        moved: nn.Module = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return moved

    def autocast(self) -> AbstractContextManager[object]:
        """The context of forward and loss."""
        if self.name not in _AUTOCAST:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=_AUTOCAST[self.name])

    @property
    def half(self) -> torch.dtype | None:
        """The narrow type of this precision, if it has one."""
        return _AUTOCAST.get(self.name)

    @property
    def loss_scale(self) -> float | None:
        return self.scaler.get_scale() if self.scaler.is_enabled() else None


def _with_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Of floats and of bytes, which become floats in the same layout."""
    is_image = tensor.dim() == 4 and (tensor.is_floating_point() or tensor.dtype == torch.uint8)
    return tensor.contiguous(memory_format=torch.channels_last) if is_image else tensor
