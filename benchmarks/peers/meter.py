"""The clock of every contestant that is not Phalanx: windows of steps, each ended by a wait for the
device."""

import statistics
import time
from itertools import pairwise
from pathlib import Path

import torch


class Meter:
    """Call `step` after each step; it says when enough was measured."""

    def __init__(self, batch, *, window, device, seconds, settle_windows=4, gate=None):
        """`gate`: a folder through which others are told that this one has settled, and in which
        a file `go` says that it is its turn."""
        self._batch, self._window, self._device = batch, window, device
        self._seconds, self._settle = seconds, settle_windows
        self._gate = gate
        self._steps, self._marks = 0, [(0, time.perf_counter())]
        self.first_step_at = self.tenth_step_at = None
        """Seconds since 1970, so that whoever started the process can tell how long it took."""

    def step(self):
        """One step was given to the device; True when it is time to stop."""
        self._steps += 1
        if self._steps in (1, 10):
            self._wait()
            name = "first_step_at" if self._steps == 1 else "tenth_step_at"
            setattr(self, name, time.time())
        if self._steps - self._marks[-1][0] < self._window:
            return False
        self._wait()
        self._marks.append((self._steps, time.perf_counter()))
        settled = self._marks[self._settle :]
        if len(settled) == 1:
            if self._device == "cuda":
                self._lengthen()
            if self._gate is not None:
                self._wait_for_turn(Path(self._gate))
        return len(settled) > 3 and settled[-1][1] - settled[0][1] >= self._seconds

    def _lengthen(self):
        """Windows of about a second, so that waiting for the device costs nothing."""
        (before, began), (after, ended) = self._marks[-2:]
        steps = int((after - before) * min(1.0, self._seconds / 5) / (ended - began))
        self._window = max(self._window, steps)

    def _wait_for_turn(self, gate):
        (gate / "ready").touch()
        while not (gate / "go").exists():
            time.sleep(0.02)
        self._marks[-1] = (self._steps, time.perf_counter())

    def figures(self):
        """Samples per second over all windows but the first ones."""
        settled = self._marks[self._settle :]
        rates = [
            self._batch * (after - before) / (ended - began)
            for (before, began), (after, ended) in pairwise(settled)
        ]
        return {
            "samples_per_s": statistics.harmonic_mean(rates),  # each is of as many steps
            "slowest": min(rates),
            "quickest": max(rates),
            "windows": len(rates),
            "rates": rates,
            "steps": self._steps,
            "first_step_at": self.first_step_at,
            "tenth_step_at": self.tenth_step_at,
        }

    def _wait(self):
        if self._device == "cuda":
            torch.cuda.synchronize()
