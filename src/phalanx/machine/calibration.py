"""What was measured on a machine: how fast its parts are, and how long the steps of jobs took.

`phalanx bench` writes it for each user and kind of device, `plan` reads it. Nothing here measures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A job's own step at one micro-batch."""

    job_key: str
    """Hash of what decides how long one rank computes: recipe, options, optimizer, precision,
    activation checkpointing (`planner.measuring.job_key`)."""
    strategy: str = "single"
    ranks: int = 1
    micro_batch: int
    accumulation: int
    step_s: float
    """The whole step, as a run has it: median."""
    data_s: float
    """Of it, waiting for samples."""
    compute_s: float
    """The device computing forward, backward and update."""
    communication_s: float
    """Exposed: not hidden behind computing."""
    overhead_s: float
    """The device waiting for the host: what is left."""
    fetch_s: float
    """Fetching one sample, in one loader process."""
    jitter: float | None = None
    """Standard deviation of a step's time, relative to it."""
    allocated_bytes: int | None = None
    """Peak of torch's allocator; None without CUDA."""
    reserved_bytes: int | None = None
    process_bytes: int | None = None
    """All that the process holds of the device at its peak, as nvidia-smi shows it."""


@dataclass(frozen=True, kw_only=True)
class MeasuredLink:
    """All-reduce between some ranks: `latency_us` + 2 (n - 1) / n x size / bandwidth."""

    ranks: int
    backend: str
    latency_us: float
    gb_per_s: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """One kind of device, as measured."""

    schema_version: Literal[1] = 1
    device: str
    """The GPU's name as the driver has it, or the processor's."""
    measured_at: str
    torch_version: str
    product_tflops: dict[str, float] = field(default_factory=dict)
    """Large matrix products, by `fp32`, `tf32`, `bf16`, `fp16`."""
    copy_gb_per_s: float | None = None
    """Device memory: read plus written."""
    host_call_us: float | None = None
    """Host time to start one small operator through autograd."""
    kernel_us: float | None = None
    """The least time the device takes for an operator."""
    context_bytes: int | None = None
    """What the process holds of the device besides torch's allocator."""
    links: tuple[MeasuredLink, ...] = ()
    steps: tuple[MeasuredStep, ...] = ()


def device_kind(device: str, *, gpu: str | None, cpu: str) -> str:
    """What a calibration is for: the name of the GPU, or of the processor."""
    if device == "cuda" and gpu is not None:
        return gpu
    return f"{cpu}, MPS" if device == "mps" else cpu
