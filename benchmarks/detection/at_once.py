"""Several trainings at a time on one machine, each on cores of its own: small ones leave most of a
GPU idle, and many of them are wanted.

    run_at_once([Training("phalanx-1", 0, cores=2, argv=[...], figures=read_them)], on_done=keep)

A training is a process. What the budget leaves no time for is said, ended, and not recorded.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_LOOK_S = 0.5  # how often it is looked whether one has ended


@dataclass
class Training:
    """One training: a command, and what is read when it has ended well."""

    name: str
    seed: int
    cores: int
    argv: list[str]
    figures: Callable[[], dict]
    log: Path


@dataclass
class _Running:
    training: Training
    process: subprocess.Popen
    cores: list[int]
    began: float


def run_at_once(trainings, *, on_done, budget_s, cores=None):
    """Start trainings in their order as soon as cores are free; `on_done(training, record)` hears
    of each that ended. Returns the names of those that were left out."""
    free = sorted(cores if cores is not None else os.sched_getaffinity(0))
    most = len(free)
    ends = time.monotonic() + budget_s
    waiting, running = list(trainings), []
    try:
        while (waiting or running) and time.monotonic() < ends:
            for training in list(waiting):
                wanted = min(training.cores, most)
                if wanted <= len(free):
                    mine, free = free[:wanted], free[wanted:]
                    running.append(_start(training, mine))
                    waiting.remove(training)
            time.sleep(_LOOK_S)
            for one in list(running):
                if one.process.poll() is not None:
                    running.remove(one)
                    free = sorted([*free, *one.cores])
                    on_done(one.training, _record(one))
    finally:
        for one in running:
            _end(one.process)
    return [f"{t.name} {t.seed}" for t in [*(one.training for one in running), *waiting]]


def _start(training, cores):
    # Threads that wait must not spin: cores are few.
    env = {
        **os.environ,
        "OMP_WAIT_POLICY": "passive",
        "OMP_NUM_THREADS": str(len(cores)),
        "YOLO_OFFLINE": "true",
        "YOLO_AUTOINSTALL": "false",
    }
    argv = ["taskset", "-c", ",".join(map(str, cores)), *training.argv]
    with training.log.open("wb") as log:
        process = subprocess.Popen(
            argv, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    return _Running(training, process, cores, time.monotonic())


def _record(one):
    seconds = round(time.monotonic() - one.began, 1)
    try:
        if one.process.returncode:
            raise RuntimeError(f"ended with {one.process.returncode}")
        return {**one.training.figures(), "seconds": seconds, "cores": len(one.cores)}
    except Exception as error:
        text = one.training.log.read_text(errors="replace")[-2000:]
        return {"error": f"{type(error).__name__}: {error}; {text}", "seconds": seconds}


def _end(process):
    """Its whole session: ranks and loader processes too."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
