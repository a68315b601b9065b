"""How fast a device is: peaks from the catalogue, and what was measured where there was a bench."""

from __future__ import annotations

from dataclasses import dataclass, replace

from phalanx.errors import Finding
from phalanx.machine import Gpu, Machine
from phalanx.machine.calibration import Calibration, device_kind
from phalanx.machine.catalogue import CATALOGUE, CatalogueGpu, match_gpu

# What the host takes to start operators, fitted on the fitted half of benchmarks/planner: the
# server beside an H200. A host is no part of the catalogue; `phalanx bench` measures this one,
# and all of these follow what it takes for a small operator through autograd.
HOST_MODULE_S = 47e-6  # a layer: Python, autocast, autograd
HOST_CALL_S = 15e-6  # any other operator
HOST_VIEW_S = 6e-6
HOST_STEP_S = 2.0e-3  # a step besides its operators: samples, optimizer, bookkeeping
GRAPH_HOST_S = 0.3e-3  # a step that is one CUDA graph: samples put in place; not fitted yet
MEASURED_CALL_S = 9.6e-6  # a small operator on that host, as `bench` measures it
KERNEL_S = 1.7e-6
# Shares of the peak that a large product and a large copy reach: ml-engineering, MAMF (77 to 87 %),
# and benchmarks/planner.
LARGE_PRODUCT_SHARE = 0.8
COPY_SHARE = 0.9
# Nine of ten points of benchmarks/planner lie within 0.32, all of an H200; other cards were
# never measured.
_SPREAD = 0.4
_UNMEASURED_SPREAD = 0.6
# A core with 256-bit FMA units at 2.5 GHz does 2 x 8 x 2 x 2.5e9 = 80 GFLOPS, of which a third is
# reached in products of the sizes that small models have; a core streams about 8 GB/s.
_CORE_TFLOPS = 0.08 / 3
_CORE_GB_PER_S = 8.0
_CPU_CALL_S = 3.4e-6  # a small operator on a CPU, as `bench` measures it


@dataclass(frozen=True, kw_only=True)
class Rates:
    """One device, dense and at its peak."""

    kind: str
    """`cuda`, `mps` or `cpu`."""
    name: str
    """As the catalogue has it."""
    driver_name: str = ""
    """As a calibration has it."""
    tflops: dict[str, float]
    """By `fp32`, `tf32`, `half` and `fp64`."""
    gb_per_s: float
    is_hopper: bool = False
    """Hopper or later: tensor cores that few kernels keep busy."""
    processors: int = 1
    """Streaming multiprocessors: what a small product cannot fill."""
    host: float = 1.0
    """How slow the host is, over the one that the constants above are of."""
    pads: bool = False
    """Whether products of unaligned rows are padded before they are computed."""
    kernel_s: float = KERNEL_S
    """The least a kernel takes."""
    board_w: float | None = None
    source: str = "catalogue"
    spread: float
    """A relative half-width."""


def device_rates(
    machine: Machine,
    device: str,
    cards: tuple[Gpu, ...],
    threads: int,
    calibration: Calibration | None = None,
) -> tuple[Rates | None, list[Finding]]:
    """The rates of the slowest of these devices; None when nothing is known. A CPU rank has
    `threads` cores."""
    if device == "cpu":
        return _cpu(machine, threads, calibration), []
    if device == "mps":
        chip = next(iter(match_gpu(machine.cpu.model)), None)
        if chip is None or chip.fp32_tflops is None or chip.memory_gb_per_s is None:
            return None, []
        kind = device_kind("mps", gpu=None, cpu=machine.cpu.model)
        return _calibrated(_card(chip), calibration, kind), []
    names = dict.fromkeys(card.name for card in cards)
    findings: list[Finding] = []
    rates = []
    for name in names:
        found, problem = _find(next(card for card in cards if card.name == name))
        findings += problem
        rates.append(_calibrated(_card(found), calibration, name))
    slowest = min(rates, key=lambda rate: rate.tflops["half"], default=None)
    return slowest, findings


def _cpu(machine: Machine, threads: int, calibration: Calibration | None) -> Rates:
    """Measured with all cores, of which a rank has some."""
    share = threads / machine.cpu.usable_cores
    rate, stream = _CORE_TFLOPS * threads, _CORE_GB_PER_S * threads
    source, spread, call_s = f"{threads} cores as cores usually are", 1.0, _CPU_CALL_S
    if calibration is not None and calibration.device == machine.cpu.model:
        rate = share * calibration.product_tflops.get("fp32", rate / share)
        stream = share * (calibration.copy_gb_per_s or stream / share)
        call_s = (calibration.host_call_us or 1e6 * call_s) * 1e-6
        source, spread = f"bench of {calibration.measured_at[:10]}", 0.5
    return Rates(
        kind="cpu",
        name=machine.cpu.model,
        driver_name=machine.cpu.model,
        tflops={"fp32": rate, "tf32": rate, "half": rate, "fp64": rate / 2},
        gb_per_s=stream,
        host=call_s / MEASURED_CALL_S,
        kernel_s=0.0,
        source=source,
        spread=spread,
    )


def _card(gpu: CatalogueGpu) -> Rates:
    is_hopper = (gpu.compute_capability or (0, 0)) >= (9, 0)
    fp32 = gpu.fp32_tflops or 1.0
    half = gpu.half_tflops or fp32
    return Rates(
        kind=gpu.kind,
        name=gpu.name,
        tflops={
            "fp32": fp32,
            "tf32": gpu.tf32_tflops or fp32,
            "half": half,
            "fp64": gpu.fp64_tflops or fp32 / 32,
        },
        gb_per_s=gpu.memory_gb_per_s or 500.0,
        is_hopper=is_hopper,
        spread=_SPREAD if is_hopper else _UNMEASURED_SPREAD,
        processors=gpu.processors,
        board_w=gpu.board_w,
    )


def _calibrated(rates: Rates, measured: Calibration | None, name: str | None = None) -> Rates:
    """Measured peaks in place of the catalogue's, so that efficiencies mean the same."""
    rates = replace(rates, driver_name=name or rates.name)
    if measured is None or measured.device != rates.driver_name:
        return rates
    host = measured.host_call_us
    found = {
        "fp32": measured.product_tflops.get("fp32"),
        "tf32": measured.product_tflops.get("tf32"),
        "half": measured.product_tflops.get("bf16") or measured.product_tflops.get("fp16"),
    }
    peaks = {kind: rate / LARGE_PRODUCT_SHARE for kind, rate in found.items() if rate}
    copied = measured.copy_gb_per_s
    return replace(
        rates,
        tflops={**rates.tflops, **peaks},
        gb_per_s=copied / COPY_SHARE if copied is not None else rates.gb_per_s,
        host=host * 1e-6 / MEASURED_CALL_S if host else rates.host,
        kernel_s=measured.kernel_us * 1e-6 if measured.kernel_us else rates.kernel_s,
        source=f"bench of {measured.measured_at[:10]}",
        spread=0.3,
    )


def _find(card: Gpu) -> tuple[CatalogueGpu, list[Finding]]:
    """The catalogue's row of a GPU, or the nearest one with a warning."""
    found = match_gpu(card.name)
    if found:
        return found[0], []
    capability = card.compute_capability or (8, 0)
    memory = card.memory_total_bytes or 0
    known = [gpu for gpu in CATALOGUE if gpu.compute_capability is not None]
    nearest = min(
        known,
        key=lambda gpu: (
            abs((gpu.compute_capability or (0, 0))[0] - capability[0]),
            abs((gpu.compute_capability or (0, 0))[1] - capability[1]),
            abs(gpu.memory_bytes - memory),
        ),
    )
    return nearest, [
        Finding(
            slug="gpu-not-in-catalogue",
            what=f"`{card.name}` is not in the catalogue; time is predicted as for {nearest.name}",
            why=f"it has compute capability {capability[0]}.{capability[1]} and "
            f"{memory / 2**30:.0f} GiB; {nearest.name} is the nearest",
            fix="phalanx bench measures it",
            severity="warning",
        )
    ]
