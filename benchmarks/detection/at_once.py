"""Several trainings at a time on one machine, each on cores of its own: small ones leave most of a
GPU idle, and many of them are wanted.

    train_all([Training("phalanx-1", 0, cores=2, argv=[...], figures=read_them)], out=file, ...)

A training is a process. What the budget leaves no time for is said, ended, and not recorded.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from records import append_record, read_records
from sessions import end_session, start_session
from ultralytics_trainer import WITHOUT_NETWORK

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
    facts: dict = field(default_factory=dict)
    """What its record says beside its figures."""

    @property
    def record(self):
        return {"contestant": self.name, "seed": self.seed, **self.facts}


@dataclass
class _Running:
    training: Training
    process: subprocess.Popen
    cores: list[int]
    began: float


def train_all(trainings, *, out, about, budget_s):
    """A line of JSON in `out` as each ends; what ended well there already is not trained again."""
    known = [x for x in (read_records([out]) if out.exists() else []) if "error" not in x]
    wanted = [t for t in trainings if not any(t.record.items() <= x.items() for x in known)]

    def keep(training, record):
        record = {**training.record, **record}
        print(json.dumps(record), flush=True)
        append_record(out, record, about)

    if left := run_at_once(wanted, on_done=keep, budget_s=budget_s):
        print(f"left out, no time: {', '.join(left)}")


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
                    end_session(one.process)
                    free = sorted([*free, *one.cores])
                    on_done(one.training, _record(one))
    finally:
        for one in running:
            end_session(one.process)
    return [f"{t.name} {t.seed}" for t in [*(one.training for one in running), *waiting]]


def _start(training, cores):
    # Threads that wait must not spin: cores are few.
    settings = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": str(len(cores))}
    argv = ["taskset", "-c", ",".join(map(str, cores)), *training.argv]
    with training.log.open("wb") as log:
        process = start_session(argv, env={**settings, **WITHOUT_NETWORK}, stdout=log)
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
