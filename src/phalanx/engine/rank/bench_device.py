"""Measures a device, inside the ranks: matrix products, copies, small operators, the link between
ranks. Each takes a second or two at most."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from phalanx.engine.process.device_memory import clear_device, context_bytes
from phalanx.engine.process.group import Process
from phalanx.engine.process.telemetry import synchronise
from phalanx.machine.calibration import Calibration, MeasuredLink, device_kind
from phalanx.machine.host import cpu_model

_WINDOW_S = {"cuda": 0.5, "mps": 0.5, "cpu": 0.2}  # clocks of a GPU settle first
_SMALL_CALLS = 2000  # fewer than fill the queue of a GPU, which holds at least 1024 while it drains
_QUEUED = 500  # small kernels that wait behind a large one, so that no launch delays them
_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
_AMPERE = (8, 0)

Say = Callable[[str], None]


def measure_device(process: Process, say: Say = lambda what: None) -> Calibration:
    """What the first rank's device does at its best while the others rest, and the link between
    all of them; on the other ranks only the link is filled in. A CPU is measured with the cores of
    all ranks."""
    device = process.device
    figures = _Figures({})
    if process.is_first:
        threads = torch.get_num_threads()
        torch.set_num_threads(threads * (process.world if device.type == "cpu" else 1))
        figures = _measure(device, say)
        torch.set_num_threads(threads)
    process.barrier()
    links: tuple[MeasuredLink, ...] = ()
    if process.world > 1:
        say(f"all-reduce between {process.world} ranks")
        links = (_measure_link(process),)
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return Calibration(
        device=device_kind(device.type, gpu=gpu, cpu=cpu_model()),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        torch_version=torch.__version__,
        links=links,
        **figures._asdict(),
    )


class _Figures(NamedTuple):
    product_tflops: dict[str, float]
    copy_gb_per_s: float | None = None
    host_call_us: float | None = None
    kernel_us: float | None = None
    context_bytes: int | None = None


def _measure(device: torch.device, say: Say) -> _Figures:
    clear_device(device)
    say("matrix products")
    products = {name: rate for name in _TYPES if (rate := _product_tflops(name, device))}
    say("memory and small operators")
    copy = _guarded(lambda: _copy_gb_per_s(device))
    host_call = _guarded(lambda: _host_call_us(device))
    kernel = _guarded(lambda: _kernel_us(device))
    clear_device(device)
    return _Figures(products, copy, host_call, kernel, context_bytes(device))


def _guarded(measure: Callable[[], float | None]) -> float | None:
    """A figure, or None when the device cannot do it: too little memory, an unknown operator."""
    try:
        return measure()
    except RuntimeError:
        return None


def _product_tflops(name: str, device: torch.device) -> float | None:
    if name == "tf32" and not (
        device.type == "cuda" and torch.cuda.get_device_capability(device) >= _AMPERE
    ):
        return None
    size = 8192 if device.type == "cuda" else 512  # 1.1 TFLOP, 0.27 GFLOP

    def measure() -> float:
        left, right = (torch.randn(size, size, device=device, dtype=_TYPES[name]) for _ in range(2))
        result = torch.empty_like(left)
        with _fp32_products("high" if name == "tf32" else "highest"):
            seconds = _seconds_per_call(lambda: torch.mm(left, right, out=result), device)
        return float(2 * size**3 / seconds / 1e12)

    rate = _guarded(measure)
    clear_device(device)
    return rate


@contextmanager
def _fp32_products(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _copy_gb_per_s(device: torch.device) -> float:
    size = 2**30 if device.type == "cuda" else 2**27
    if device.type == "cuda":
        size = min(size, torch.cuda.mem_get_info(device)[0] // 8)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = _seconds_per_call(lambda: target.copy_(source), device)
    return 2 * size / seconds / 1e9


def _host_call_us(device: torch.device) -> float:
    """Host time of one small operator that autograd follows; the device is not waited for."""
    values = torch.ones(8, device=device, requires_grad=True)
    best = float("inf")
    for _ in range(3):
        synchronise(device)
        started = time.perf_counter()
        for _ in range(_SMALL_CALLS):
            values + 1.0
        best = min(best, (time.perf_counter() - started) / _SMALL_CALLS)
    synchronise(device)
    return 1e6 * best


def _kernel_us(device: torch.device) -> float | None:
    """Device time of one small kernel among others. They queue up behind a large product: started
    one by one they would be as slow as the host starts them."""
    if device.type != "cuda":
        return None
    large = torch.randn(8192, 8192, device=device)
    values = torch.ones(8, device=device)
    best = float("inf")
    with _fp32_products("highest"):
        for _ in range(3):
            torch.mm(large, large)
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
            events[0].record()
            for _ in range(_QUEUED):
                values.add_(1.0)
            events[1].record()
            synchronise(device)
            best = min(best, events[0].elapsed_time(events[1]) / _QUEUED)
    return 1000 * best


def _measure_link(process: Process) -> MeasuredLink:
    """Two sizes of all-reduce give latency and bandwidth."""
    small, large = (2**13, 2**26) if process.device.type == "cuda" else (2**13, 2**23)
    seconds = [_all_reduce_seconds(process, size) for size in (small, large)]
    factor = 2 * (process.world - 1) / process.world
    slope = max((seconds[1] - seconds[0]) / (factor * (large - small)), 1e-15)  # seconds per byte
    latency = max(0.0, seconds[0] - factor * small * slope)
    return MeasuredLink(
        ranks=process.world,
        backend=process.backend,
        latency_us=1e6 * latency,
        gb_per_s=1e-9 / slope,
    )


def _all_reduce_seconds(process: Process, size: int) -> float:
    tensor = torch.zeros(size // 4, device=process.device)

    def reduce(count: int) -> float:
        process.barrier()
        synchronise(process.device)
        started = time.perf_counter()
        for _ in range(count):
            dist.all_reduce(tensor)
        synchronise(process.device)
        return (time.perf_counter() - started) / count

    reduce(3)  # connections are made on first use
    # The first rank counts for all: a rank with another number would wait forever.
    count = process.agree(
        int(min(100, max(3, _WINDOW_S[process.device.type] / max(reduce(2), 1e-7))))
    )
    return min(reduce(count) for _ in range(2))


def _seconds_per_call(call: Callable[[], Any], device: torch.device) -> float:
    """Sustained: the mean of a window of time, or of one call, after a warm-up."""
    call()
    seconds = _timed(call, 1, device)
    count = int(max(1, min(1000, _WINDOW_S[device.type] / max(seconds, 1e-7))))
    return _timed(call, count, device)


def _timed(call: Callable[[], Any], count: int, device: torch.device) -> float:
    synchronise(device)
    started = time.perf_counter()
    for _ in range(count):
        call()
    synchronise(device)
    return (time.perf_counter() - started) / count
