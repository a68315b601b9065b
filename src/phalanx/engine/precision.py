"""Which arithmetic a step uses: autocast, loss scaling, TF32. Weights stay in fp32 (or fp64)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from phalanx.engine.data import map_tensors

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """The numeric choices of a run on one device."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self._device = device
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def configure(self) -> None:
        """Set what torch keeps globally."""
        # "high" lets fp32 products run on TF32 tensor cores where there are any; bf16 and fp16
        # runs want it too for the operators that autocast keeps in fp32.
        is_tf32 = self.name in ("tf32", "bf16", "fp16")
        torch.set_float32_matmul_precision("high" if is_tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = is_tf32

    def convert(self, model: nn.Module) -> nn.Module:
        """The model in the dtype its weights are kept in."""
        return model.double() if self.name == "fp64" else model

    def convert_batch(self, tree: Any) -> Any:
        """Floating inputs in fp64 under fp64; autocast looks after the other precisions."""
        if self.name != "fp64":
            return tree
        return map_tensors(tree, lambda t: t.double() if t.is_floating_point() else t)

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
