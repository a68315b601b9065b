"""DeepSpeed as a library: imported for this process, on its device, quiet; and its loss scale."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch

from phalanx.engine.process.group import Process


def import_deepspeed(process: Process) -> Any:
    """DeepSpeed, talking through the ranks' own process group."""
    os.environ["DS_ACCELERATOR"] = process.device.type  # otherwise it goes by what is installed
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    # An operator for sums in shared memory, which would be compiled here and is for inference only.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if process.device.type == "cpu":
        # It asks whether oneDNN has fp16; torch computes it anyway, as `phalanx check` has tried.
        get_accelerator().is_fp16_supported = lambda: True
    _skip_broadcasts()
    deepspeed.init_distributed(dist_backend=process.backend, dist_init_required=False)
    # torch 2.13 has new names for what DeepSpeed 0.19 calls.
    warnings.filterwarnings(
        "ignore", r"`torch\.distributed\.(all_gather_into|reduce_scatter)_tensor", FutureWarning
    )
    return deepspeed


def _skip_broadcasts() -> None:
    """Every rank has built the same weights; and DeepSpeed 0.19.8 fails when it sends a parameter
    without a dimension to the others. It has no setting for that:
    https://deepspeed.readthedocs.io/en/latest/initialize.html"""
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.zero.partition_parameters import Init

    def cut(self: Any, parameter: Any) -> None:
        self._convert_to_deepspeed_param(parameter)
        parameter.partition()

    DeepSpeedEngine._broadcast_model = lambda self: None
    Init._zero_init_param = cut


@contextmanager
def on_device(process: Process) -> Iterator[None]:
    """DeepSpeed takes the GPU whose number is LOCAL_RANK; a rank may have been given another."""
    before = os.environ.get("LOCAL_RANK", "0")
    os.environ["LOCAL_RANK"] = str(process.device.index or 0)
    yield
    os.environ["LOCAL_RANK"] = before


@contextmanager
def throwing_away(zero: Any) -> Iterator[None]:
    """Inside, a step that overflows on purpose leaves no warning and no trace in the loss scale."""
    from deepspeed.utils import logger

    level, scaler = logger.level, zero.loss_scaler
    logger.setLevel("ERROR")
    zero.loss_scaler = copy(scaler)
    zero.loss_scaler.raise_error_at_min_scale = False
    yield
    zero.loss_scaler = scaler
    logger.setLevel(level)


class LossScale(torch.amp.GradScaler):
    """DeepSpeed's loss scale where torch's is looked for: in events and in checkpoints, which any
    strategy can continue."""

    def __init__(self, scaler: Any) -> None:
        super().__init__("cpu", enabled=True)
        self._deepspeed = scaler

    def get_scale(self) -> float:
        return float(self._deepspeed.cur_scale)

    def state_dict(self) -> dict[str, Any]:
        own = self._deepspeed
        record = super().state_dict() | {"scale": self.get_scale()}
        if own.dynamic:
            good_steps = own.cur_iter - own.last_overflow_iter - 1
            record |= {
                "growth_interval": own.scale_window,
                "_growth_tracker": good_steps % own.scale_window,
                # DeepSpeed's own: it tells 0 good steps from a whole window of them.
                "good_steps": good_steps,
                "hysteresis": own.cur_hysteresis,
            }
        return record

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = self._deepspeed
        if not own.dynamic:
            return  # the scale is what the job says
        own.cur_scale = state_dict["scale"]
        good_steps = state_dict.get("good_steps", state_dict["_growth_tracker"])
        own.cur_iter, own.last_overflow_iter = good_steps, -1
        own.cur_hysteresis = state_dict.get("hysteresis", own.delayed_shift)
