"""What DeepSpeed's file says of ZeRO, and everything else in it: handed on, passed over, refused.

Which key is which is in `job.deepspeed.keys`."""

from __future__ import annotations

from phalanx.job.deepspeed.keys import OFFLOAD, SET_BY_PHALANX, TOP, TYPE, ZERO
from phalanx.job.deepspeed.training import TRAINING_KEYS
from phalanx.job.deepspeed.translation import Translation
from phalanx.job.source.origin import show

_SECTIONS = ("zero_optimization", "data_types", *TRAINING_KEYS)
_OFFLOADS = {"offload_optimizer": "offload_optimizer", "offload_param": "offload_parameters"}
_OLD_OFFLOADS = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_parameters"}
# They matter with NVMe only, which is refused.
_OFFLOAD_NVME = (
    *("nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "fast_init"),
    *("pipeline", "pipeline_read", "pipeline_write", "cpuadam_cores_perc"),
)


def translate_sections(made: Translation) -> None:
    _zero(made)
    _data_types(made)
    for key in made.file.content:
        if key not in (*_SECTIONS, *SET_BY_PHALANX):
            made.settle(key, TOP, *_SECTIONS)


def _zero(made: Translation) -> None:
    for key in made.section("zero_optimization"):
        full = f"zero_optimization.{key}"
        if key == "stage":
            _stage(made, full)
        elif key in _OFFLOADS:
            _offload(made, full, f"deepspeed.{_OFFLOADS[key]}")
        elif key in _OLD_OFFLOADS:
            made.say(full, f"deepspeed.{_OLD_OFFLOADS[key]}")
        else:
            made.settle(full, ZERO, "stage", *_OFFLOADS)


def _data_types(made: Translation) -> None:
    for key in made.section("data_types"):
        full = f"data_types.{key}"
        if key == "grad_accum_dtype":
            made.hand_on(full, TYPE)
        elif made.is_said(full):
            made.refuse(full, "weights and buffers are of the types that the precision gives them")


def _stage(made: Translation, full: str) -> None:
    value = made.file.value(full)
    if value == 0 and not isinstance(value, bool):
        made.refuse(
            full,
            "stage 0 spreads nothing over the ranks",
            '"stage": 2, or without DeepSpeed: `strategy: ddp`',
        )
    else:
        made.say(full, "deepspeed.stage")


def _offload(made: Translation, full: str, job_key: str) -> None:
    section = made.section(full)
    device = f"{full}.device"
    if made.is_said(device) and made.file.value(device) not in ("cpu", "none"):
        made.refuse_value(
            device,
            f"`{device}` is {show(made.file.value(device))}, it must be `cpu` or `none`: "
            "what is offloaded goes to host memory",
            '"device": "cpu"',
        )
    elif made.is_said(device):
        made.add(device, job_key, made.file.value(device) == "cpu")
    for key in section:
        if key not in ("device", *_OFFLOAD_NVME):
            made.settle(f"{full}.{key}", OFFLOAD, "device")
