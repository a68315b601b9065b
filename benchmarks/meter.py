"""The clock of every contestant that is not Phalanx: windows of steps, each ended by a wait for the
device. Ends with `tell`, which leaves at once."""

import json
import os
import statistics
import time
from itertools import pairwise
from pathlib import Path

import torch

SETTLE_WINDOWS = 4


class Meter:
    """Call `step` after each step; it says when enough was measured."""

    def __init__(self, batch, *, window, device, seconds, settle_s=0.0, gate=None):
        """The first windows, and those within `settle_s` after the first step, are not measured.
        `gate`: a folder through which others are told that this one has settled, and in which
        a file `go` says that it is its turn."""
        self._batch, self._window, self._is_cuda = batch, window, device == "cuda"
        self._seconds, self._settle_s, self._gate = seconds, settle_s, gate
        self._steps, self._settling = 0, [(0, time.perf_counter())]
        self._marks = []
        self.first_step_at = self.tenth_step_at = None
        """Seconds since 1970, so that whoever started the process can tell how long it took."""

    def step(self):
        """One step was given to the device; True when it is time to stop."""
        self._steps += 1
        if self._steps in (1, 10):
            self._wait()
            name = "first_step_at" if self._steps == 1 else "tenth_step_at"
            setattr(self, name, time.time())
        marks = self._marks or self._settling
        if self._steps - marks[-1][0] < self._window:
            return False
        self._wait()
        marks.append((self._steps, time.perf_counter()))
        if not self._marks:
            if self._is_settled():
                self._begin()
            return False
        return len(marks) > 3 and marks[-1][1] - marks[0][1] >= self._seconds

    def _is_settled(self):
        (_, first), (_, now) = self._settling[1], self._settling[-1]
        return len(self._settling) > SETTLE_WINDOWS and now - first >= self._settle_s

    def _begin(self):
        if self._is_cuda:
            self._lengthen()
        if self._gate is not None:
            self._wait_for_turn(Path(self._gate))
        self._marks.append((self._steps, time.perf_counter()))

    def _lengthen(self):
        """Windows of about a second, so that waiting for the device costs nothing."""
        (before, began), (after, ended) = self._settling[-2:]
        steps = int((after - before) * min(1.0, self._seconds / 5) / (ended - began))
        self._window = max(self._window, steps)

    def _wait_for_turn(self, gate):
        (gate / "ready").touch()
        while not (gate / "go").exists():
            time.sleep(0.02)

    def figures(self):
        """Samples per second over the measured windows, and the peak of what torch's allocator gave
        out, as Phalanx's events have it."""
        rates = [
            self._batch * (after - before) / (ended - began)
            for (before, began), (after, ended) in pairwise(self._marks)
        ]
        memory = {"memory_bytes": torch.cuda.max_memory_allocated()} if self._is_cuda else {}
        return {
            "batch": self._batch,
            "samples_per_s": statistics.harmonic_mean(rates),  # each is of as many steps
            "slowest": min(rates),
            "quickest": max(rates),
            "windows": len(rates),
            "rates": rates,
            "steps": self._steps,
            "first_step_at": self.first_step_at,
            "tenth_step_at": self.tenth_step_at,
            **memory,
        }

    def _wait(self):
        if self._is_cuda:
            torch.cuda.synchronize()


def tell(figures):
    """The last line of a contestant, on a line of its own after what a framework printed; loader
    processes and threads of the others would take their time to end."""
    print("\n" + json.dumps(figures), flush=True)
    os._exit(0)
