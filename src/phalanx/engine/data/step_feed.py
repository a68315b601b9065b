"""The steps of one rank, fetched one ahead, with weights and wishes that all ranks agree on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from phalanx.engine.data.micro_batches import MicroBatch
from phalanx.errors import Finding, UserError
from phalanx.planner.schema.micro_batches import StepShare

# A wish to stop or to save waits this long for the other ranks to hear of it. A reduction of gloo
# takes a tenth of a millisecond from every core: as much as a small step.
_ASKED_EVERY_S, _MOST_STEPS = 0.2, 50


@dataclass(slots=True)
class StepInput:
    """All that a rank needs for one optimizer step."""

    share: StepShare
    micro_batches: list[MicroBatch]
    weights: dict[str, float] | None
    """Weight of each term over the whole global batch, known before the first forward."""
    must_stop: bool
    """All ranks agree not to run this step: somebody asked to stop."""
    must_save: bool
    """All ranks agree that it is time to save before this step."""
    waited_s: float = 0.0
    """Seconds that this process waited for the samples fetched meanwhile."""


class Feed:
    """Yields the steps of one rank, each fetched while the one before it computes.

    The weights of the global batch, and the wishes to stop and to save, are summed over the ranks
    in one small asynchronous reduction on the CPU, one step ahead: no rank ever waits for it
    unless it is a step ahead of another. Where every rank knows the weights by itself, wishes alone
    are asked for now and then.
    """

    def __init__(
        self,
        shares: Iterable[StepShare],
        loader: Iterator[MicroBatch],
        *,
        terms: list[str] | None,
        reduce: Callable[[torch.Tensor], dist.Work | None] | None,
        wishes: Callable[[StepShare], tuple[bool, bool]],
        known_weights: Callable[[StepShare], list[float]] | None = None,
        stop_at: int | None = None,
        is_first: bool = True,
    ) -> None:
        """`loader` gives micro-batches on the device; `reduce` is None on one rank.
        `known_weights` gives those of the whole step, if that can be told without the other ranks;
        `stop_at` is the step at which every rank wants to stop."""
        self._shares = iter(shares)
        self._loader = loader
        self._terms = terms
        self._names = frozenset(terms or ())
        self._reduce = reduce
        self._wishes = wishes
        self._known_weights = known_weights
        self._stop_at = stop_at
        self._is_first = is_first
        self._interval, self._due_at = 1, 0
        self._asked: tuple[int, float] | None = None
        self._unheard = (False, False)
        self._waited_s = 0.0

    def __iter__(self) -> Iterator[StepInput]:
        terms, ahead = self._terms, self._fetch()
        while ahead is not None:
            share, micro_batches, figures = ahead
            ahead = self._fetch()
            values = figures()
            for micro_batch in micro_batches:
                if micro_batch.copied is not None:
                    micro_batch.copied.wait()  # the computing stream does, not this process
            yield StepInput(
                share,
                micro_batches,
                None if terms is None else dict(zip(terms, values, strict=False)),
                values[-2] > 0,
                values[-1] > 0,
                self._waited_s,
            )

    def _fetch(self) -> tuple[StepShare, list[MicroBatch], Callable[[], list[float]]] | None:
        self._waited_s = 0.0
        share = next(self._shares, None)
        if share is None:
            return None
        loader = self._loader
        asked_s = time.perf_counter()
        micro_batches = [next(loader) for _ in share.slots]
        self._waited_s = time.perf_counter() - asked_s
        stop, save = self._wishes(share)
        values = [*self._local_weights(micro_batches), float(stop), float(save)]
        if self._reduce is None:
            return share, micro_batches, lambda: values
        if self._known_weights is not None:
            values[:-2] = self._known_weights(share)
            is_end = self._stop_at is not None and share.step >= self._stop_at
            if is_end or share.step < self._due_at:
                self._unheard = (stop or self._unheard[0], save or self._unheard[1])
                values[-2:] = float(is_end), 0.0
                return share, micro_batches, lambda: values
            values[-2:] = float(stop or self._unheard[0]), float(save or self._unheard[1])
            self._unheard = (False, False)
        return share, micro_batches, self._ask(share.step, values)

    def _ask(self, step: int, values: list[float]) -> Callable[[], list[float]]:
        """Start to sum over the ranks; returns what waits for the sums."""
        assert self._reduce is not None
        # The ranks ask again at the same step: as many later as the first rank says.
        figures = torch.tensor([*values, self._next_interval(step)], dtype=torch.float64)
        pending = self._reduce(figures)
        self._due_at = step + self._interval

        def read() -> list[float]:
            if pending is not None:
                pending.wait()
            *summed, interval = figures.tolist()
            self._interval = max(1, int(interval))
            if self._known_weights is not None:
                summed[:-2] = values[:-2]
            return summed

        return read

    def _next_interval(self, step: int) -> float:
        if not self._is_first:
            return 0.0
        asked, self._asked = self._asked, (step, time.perf_counter())
        if asked is None:
            return 1.0
        step_s = (self._asked[1] - asked[1]) / (step - asked[0])
        # No more than twice as many: the first two are fetched before the first is computed, and
        # taking that for a step's time would leave slow ranks deaf for minutes.
        most = min(_MOST_STEPS, 2 * self._interval)
        return float(min(most, max(1, _ASKED_EVERY_S // max(step_s, 1e-6))))

    def _local_weights(self, micro_batches: list[MicroBatch]) -> list[float]:
        if self._terms is None:
            return []
        for micro_batch in micro_batches:
            if (micro_batch.weights or {}).keys() != self._names:
                raise UserError(_terms_changed(self._terms, sorted(micro_batch.weights or ())))
        return [sum(m.weights[term] for m in micro_batches if m.weights) for term in self._terms]


def _terms_changed(before: list[str], now: list[str]) -> Finding:
    return Finding(
        slug="weights-changed",
        what="weight() names other terms than it did for the first micro-batch",
        why=f"first {', '.join(before)}; now {', '.join(now) or 'none'}",
        fix="return every term from weight(batch), with weight 0 where it does not apply",
    )
