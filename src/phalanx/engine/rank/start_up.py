"""What makes the first seconds of a rank shorter, and changes nothing else."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from phalanx.planner.schema.plan import Plan


@contextmanager
def uncollected() -> Iterator[None]:
    """Inside, nobody looks for garbage. Imports and compilers make millions of objects that stay:
    looking at them again and again is a tenth of a start."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def begin_cuda(plan: Plan, local_rank: int) -> None:
    """Have the driver make the GPU's context, most of a second, while this process imports the
    recipe: the driver needs no Python. torch takes the same context; whatever goes wrong here goes
    wrong there again, and is said."""
    if plan.devices.device.value == "cuda":
        ordinal = plan.devices.gpus.value[local_rank]
        threading.Thread(target=_retain_context, args=(ordinal,), daemon=True).start()


def _retain_context(ordinal: int) -> None:
    with suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), ordinal) == 0:
            # Kept until the process ends, as torch keeps it.
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
