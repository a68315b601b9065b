"""Out of memory: which exceptions mean it, what their messages say, where in a run it happened.

Nothing is retried here. The rank records what happened and leaves, the supervisor revises the plan
and starts the ranks again: peers may be inside a reduction, and an optimizer that was interrupted
leaves half of the weights updated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from phalanx.engine.process.heartbeat import HEART
from phalanx.errors import Finding, format_bytes
from phalanx.run.event_kinds import MemoryShortage
from phalanx.run.heartbeat import Phase

_PHASES = {
    "settle": Phase.COMPILE,
    "step": Phase.STEP,
    "evaluate": Phase.EVALUATE,
    "save": Phase.SAVE,
}
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 2**10, "MB": 2**20}
_UNITS |= {"GB": 2**30, "B": 1, "TiB": 2**40}
_SIZE = r"([\d.]+) ?(bytes|[KMGT]iB|[KMG]B|B)\b"

# RuntimeErrors that are no torch.OutOfMemoryError and mean the same.
_MESSAGES = re.compile(
    r"MPS backend out of memory"
    r"|DefaultCPUAllocator: (can't allocate|not enough) memory"
    r"|CUDA error: out of memory|Cuda failure 2 'out of memory'"
    r"|(CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT)_(STATUS_)?ALLOC_FAILED"
)


def find_shortage(error: BaseException, device: str) -> MemoryShortage | None:
    """What ran short when the exception, or what it was raised from, means out of memory."""
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause)
        if isinstance(cause, (torch.OutOfMemoryError, MemoryError)) or (
            isinstance(cause, RuntimeError) and _MESSAGES.search(text)
        ):
            is_host = isinstance(cause, MemoryError) or "DefaultCPUAllocator" in text
            return MemoryShortage(
                device="cpu" if is_host else device,
                tried_bytes=_read_bytes(rf"[Tt]ried to allocate {_SIZE}", text),
                free_bytes=_read_bytes(rf"of which {_SIZE} is free", text),
                total_bytes=_read_bytes(rf"(?:total capacity of|max allowed:) {_SIZE}", text),
                idle_bytes=_read_bytes(rf"{_SIZE} is reserved by PyTorch but unallocated", text),
            )
        cause = cause.__cause__
    return None


def _read_bytes(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return round(float(found[1]) * _UNITS[found[2]]) if found else None


def shortage_finding(shortage: MemoryShortage, *, rank: int, where: str, log: str) -> Finding:
    """Out of memory as a person should read it."""
    figures = (
        ("tried to allocate {}", shortage.tried_bytes),
        ("{} were free", shortage.free_bytes),
        ("{} in all", shortage.total_bytes),
        ("{} held and idle", shortage.idle_bytes),
    )
    known = [text.format(format_bytes(value)) for text, value in figures if value is not None]
    facts = f": {', '.join(known)}" if known else ""
    return Finding(
        slug="out-of-memory",
        what=f"rank {rank} ran out of memory on {shortage.device} in {where}{facts}",
        why="weights, gradients, optimizer state and the activations of one micro-batch must fit",
        fix=f"a smaller micro-batch (`micro_batch_size`); the whole traceback: `less {log}`",
    )


@contextmanager
def during(phase: str, step: Callable[[], int] | None = None) -> Iterator[None]:
    """Say in which phase the run is, while it lasts, and note on an exception in which it was
    raised; the innermost phase counts."""
    try:
        with HEART.during(_PHASES[phase]):
            yield
    except Exception as error:
        if not hasattr(error, "phalanx_phase"):
            error.phalanx_phase = phase  # type: ignore[attr-defined]
        if step is not None and not hasattr(error, "phalanx_step"):
            error.phalanx_step = step()  # type: ignore[attr-defined]
        raise


def place_of(error: Exception) -> tuple[str, int | None]:
    """Phase and step noted by `during`."""
    return getattr(error, "phalanx_phase", "start"), getattr(error, "phalanx_step", None)
