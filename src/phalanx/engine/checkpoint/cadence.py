"""How often a run saves when the job leaves it open: so that training stands still for at most one
part in a hundred of the time, which is measured.

    due            at the end of an epoch, or some minutes after the last one
    but put off    while the seconds that all savings took, and one more as long as the last, are
                   above the share of the run's time; or while the last one is still being written.
                   The first takes longest, and is expected to take what its bytes say
    then           as soon as it is allowed

What is best, and the end, are saved in any case, and count. The first rank decides for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from phalanx.errors import Finding, format_seconds

_SAID_AFTER_S = 10.0  # of a run that is over sooner nobody wants to know

FIRST_S_PER_BYTE = 0.7e-9
"""A first saving finds the memory for its copy: 0.99 GB took 0.41 to 0.70 s on an H200
(benchmarks/results/2026-11-16-checkpoint-stall-gpu.md), later ones a thirtieth of that."""


class Cadence:
    """The seconds that a run has spent on saving, and whether one more may be spent now."""

    def __init__(
        self,
        share: float | None = None,
        *,
        every_s: float | None = None,
        first_s: float = 0.0,
        is_busy: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`share` of the run's time may be spent, `None`: the job says when, whatever it takes;
        `every_s` is the longest time between two; `first_s` is what the first will take, as far
        as can be told; `is_busy`: the last one is not written yet."""
        self._share = share
        self._every_s = every_s
        self._is_busy = is_busy
        self._clock = clock
        self._begun = self._saved_at = clock()
        self._first_s = first_s
        self._last_s: float | None = None
        self._spent_s = 0.0
        self._is_put_off = self._is_said = False

    def begin(self) -> None:
        """The first step is about to run: time counts from here."""
        self._begun = self._saved_at = self._clock()

    def allows(self) -> bool:
        """Whether what is due is saved now; otherwise it is as soon as it may."""
        if self._share is None:
            return True
        next_s = self._first_s if self._last_s is None else self._last_s
        is_cheap = self._spent_s + next_s <= self._share * (self._clock() - self._begun)
        self._is_put_off = not is_cheap or self._is_busy()
        return not self._is_put_off

    def wants(self) -> bool:
        """Whether it is time to save by the clock; asked before every step."""
        if self._every_s is None and not self._is_put_off:
            return False
        is_due = self._every_s is not None and self._clock() - self._saved_at > self._every_s
        if not (is_due or self._is_put_off) or not self.allows():
            return False
        self._saved_at = self._clock()  # asked again before it is done
        return True

    def saved(self, stall_s: float) -> None:
        """One was saved, for which training stood still so long."""
        self._saved_at = self._clock()
        self._is_put_off = False
        self.spent(stall_s)
        self._last_s = stall_s

    def spent(self, seconds: float) -> None:
        """Training stood still for saving."""
        self._spent_s += seconds

    def findings(self) -> list[Finding]:
        """What there is to say, once: that less is saved than was due, or much time goes."""
        elapsed = self._clock() - self._begun
        if self._is_said or self._last_s is None or elapsed < _SAID_AFTER_S:
            return []  # what the first will take is a guess, and nothing to speak of
        spent, last = format_seconds(self._spent_s), format_seconds(self._last_s)
        if self._share is None and self._spent_s > 0.01 * elapsed:
            self._is_said = True
            return [
                Finding(
                    slug="checkpoint-stall",
                    what=f"saving took {self._spent_s / elapsed:.1%} of the time so far: {spent} "
                    f"of {format_seconds(elapsed)}",
                    why=f"training stands still for {last} at a time, as often as checkpoint.every "
                    "says",
                    fix="checkpoint.every=auto stays below 1%",
                    severity="note",
                )
            ]
        if self._share is not None and self._is_put_off:
            self._is_said = True
            apart = format_seconds(self._last_s / self._share)
            return [
                Finding(
                    slug="checkpoint-put-off",
                    what=f"checkpoints are about {apart} apart, not an epoch: training stands "
                    f"still for {last} at each",
                    why=f"checkpoint.every = auto keeps that below {self._share:.0%} of the time; "
                    f"so far {spent} of {format_seconds(elapsed)}",
                    fix="nothing, or say how often: `checkpoint.every=1 epochs`",
                    severity="note",
                )
            ]
        return []
