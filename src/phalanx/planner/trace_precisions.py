"""In which precisions a plan needs to know what a recipe computes: tracing each takes time."""

from __future__ import annotations

from phalanx.job.schema import Job
from phalanx.machine import Machine
from phalanx.planner.schema.footprint import COMPILED

_HALF = ("bf16", "fp16")


def wanted_precisions(job: Job, *, accelerator: str) -> tuple[str, ...]:
    """Those of eager code, then those of compiled code; fp16 is traced as bf16."""
    return _eager(job, accelerator) + tuple(
        name + COMPILED for name in compiled_precisions(job, has_cuda=accelerator == "cuda")
    )


def wanted_on(job: Job, machine: Machine) -> tuple[str, ...]:
    """The same once it is known what is there."""
    wanted = wanted_precisions(job, accelerator=machine.accelerator)
    is_known = all(gpu.compute_capability is not None for gpu in machine.visible_gpus)
    if machine.accelerator == "cuda" and not is_known and "fp32" not in wanted:
        return ("fp32", *wanted)
    return wanted


def compiled_precisions(job: Job, *, has_cuda: bool) -> tuple[str, ...]:
    """In which traced precisions a plan may need to know compiled code; each takes a second to
    trace. Only CUDA is compiled without being asked."""
    traced = ("bf16",) if job.precision in (*_HALF, "auto") else ("fp32",)
    if job.compile == "on":
        return ("fp32", "bf16") if job.precision == "auto" else traced
    is_open = job.compile == "auto" and job.fast == "auto" and has_cuda
    is_against = job.sync_batchnorm or job.determinism == "exact" or job.strategy == "deepspeed"
    return traced if is_open and job.devices.cpu is None and not is_against else ()


def _eager(job: Job, accelerator: str) -> tuple[str, ...]:
    is_cpu = job.devices.cpu is not None or accelerator == "cpu"
    if job.precision in _HALF or (job.precision == "auto" and accelerator == "cuda" and not is_cpu):
        return ("bf16",)
    if is_cpu:
        return ("fp32",)
    return ("fp32", "bf16")  # where the one does not fit, the other may
