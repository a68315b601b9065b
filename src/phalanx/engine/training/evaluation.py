"""Exact evaluation: every test sample once, sums over all ranks, no padding."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from phalanx.engine.data.loader import Loader
from phalanx.engine.data.micro_batches import Fetcher, Request, move
from phalanx.engine.process.heartbeat import HEART
from phalanx.engine.process.out_of_memory import during
from phalanx.engine.strategies.base import Strategy
from phalanx.errors import Finding
from phalanx.planner.schema.micro_batches import deal, split_evenly
from phalanx.planner.schema.plan import Plan
from phalanx.recipe.interface import Recipe, Rows
from phalanx.recipe.showing import Media, Sample, Showing


@dataclass(frozen=True)
class Evaluation:
    """Figures over the whole test split."""

    metrics: dict[str, float]
    samples: int
    seconds: float
    made: list[Sample] = field(default_factory=list)
    """What the model made of a few samples."""
    media: list[Media] = field(default_factory=list)
    """The same as pictures."""
    sums: dict[str, Any] = field(default_factory=dict)
    """What the figures were made of."""


class Evaluator:
    """Evaluates the model on this rank's part of the test split and adds up over the ranks."""

    def __init__(
        self,
        recipe: Recipe,
        data: Any,
        *,
        plan: Plan,
        strategy: Strategy,
        prefetch: int,
        seed: int,
        weights: Callable[[], AbstractContextManager[object]] = nullcontext,
        has_samples: bool = True,
    ) -> None:
        """Inside `weights()` the model has the weights that are to be evaluated."""
        self._has_samples = has_samples and isinstance(recipe, Showing)
        self._weights = weights
        self._recipe = recipe
        self._strategy = strategy
        self._process = process = strategy.process
        slots = split_evenly(0, len(data), plan.evaluation.evaluate_batch_size.value)
        first, last = deal(len(slots), process.rank, process.world)
        self._most = max(1, deal(len(slots), 0, process.world)[1])  # the first rank has the most
        self._num_own = last - first
        self._samples = sum(slot.stop - slot.start for slot in slots[first:last])
        mine = [Request(0, slot, is_training=False) for slot in slots[first:last]]
        if strategy.is_lockstep:  # as many forwards as the busiest rank; the rest is not counted
            mine += [Request(0, slots[0], is_training=False)] * (self._most - len(mine))
        self._loader = Loader(
            Fetcher(recipe, data, seed=seed, is_shuffled=False),
            mine,
            workers=plan.loading.workers.value,
            prefetch=prefetch,
            pin=plan.loading.pin_memory.value,
            is_repeated=True,
        )

    def start(self) -> None:
        """Start the loader processes."""
        self._loader.start()

    @during("evaluate")
    def run(self) -> Evaluation:
        """Evaluate; the model is left as it was found."""
        model = self._strategy.model
        started = time.perf_counter()
        # Module by module: a recipe may keep a frozen part in evaluation mode.
        training = [module for module in model.modules() if module.training]
        model.eval()
        try:
            with self._weights():
                sums, tables = self._local_sums()
                made = self._make_samples()
                self._strategy.after_evaluation()
        finally:
            for module in training:
                module.training = True
        total, samples = self._reduce(sums)
        total |= self._gather_rows(tables)
        metrics = {name: float(value) for name, value in self._recipe.metrics(total).items()}
        return Evaluation(
            metrics,
            samples,
            time.perf_counter() - started,
            made=[sample for sample in made if isinstance(sample, Sample)],
            media=[sample for sample in made if isinstance(sample, Media)],
            sums=total,
        )

    @during("evaluate")
    def charts(self, evaluation: Evaluation) -> tuple[list[Media], list[Finding]]:
        """What the recipe draws of an evaluation, or what went wrong."""
        if not isinstance(self._recipe, Showing):
            return [], []
        try:
            return list(self._recipe.charts(evaluation.sums)), []
        except Exception as error:
            traceback.print_exception(error)  # into the rank's log
            return [], [_not_drawn(self._recipe, error)]

    def _make_samples(self) -> Sequence[Sample | Media]:
        if not self._has_samples:
            return []
        with torch.no_grad(), self._strategy.precision.autocast():
            return self._strategy.samples()

    def _local_sums(self) -> tuple[dict[str, list[Any]], dict[str, list[torch.Tensor]]]:
        """Each sum and each table of each micro-batch of this rank: the sums on the device, where
        nobody waits for them."""
        sums: dict[str, list[Any]] = {}
        tables: dict[str, list[torch.Tensor]] = {}
        precision = self._strategy.precision
        with torch.no_grad():
            for index, micro_batch in enumerate(self._loader):
                HEART.beat()
                batch = precision.convert_batch(move(micro_batch.batch, self._process.device))
                with precision.autocast():
                    values = self._strategy.evaluate(batch)
                for name, value in values.items() if index < self._num_own else ():
                    if isinstance(value, Rows):
                        tables.setdefault(name, []).append(value.table.detach().cpu())
                    else:
                        sums.setdefault(name, []).append(_wide(value))
        return sums, tables

    def _reduce(self, sums: dict[str, list[Any]]) -> tuple[dict[str, Any], int]:
        """Totals over all ranks. Every micro-batch's own sum travels, and `fsum` adds them without
        rounding on the way: the figures are the same to the bit on any number of ranks."""
        # A rank without a part of the split does not know the names; the first always has one.
        names: list[str] = json.loads(self._process.agree_text(json.dumps(list(sums))))
        table = torch.zeros(self._most, len(names) + 1, dtype=torch.float64)
        for column, name in enumerate(names):
            values = [torch.as_tensor(value) for value in sums.get(name, ())]
            if values:
                table[: len(values), column] = torch.stack(values).cpu()
        table[0, -1] = self._samples
        columns = self._process.gather(table).T.tolist()
        totals = [math.fsum(column) for column in columns]
        return dict(zip(names, totals, strict=False)), int(totals[-1])

    def _gather_rows(self, tables: dict[str, list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Every table whole, on every rank. Micro-batches are dealt in order, so that the rows of
        the ranks one below the other are in the order of the samples."""
        # A rank without a part of the split knows neither names nor widths; the first always does.
        known = {name: (t[0].shape[1], str(t[0].dtype)) for name, t in tables.items()}
        agreed = json.loads(self._process.agree_text(json.dumps(known)))
        return {
            name: self._process.gather_rows(
                torch.cat(tables[name])
                if name in tables
                else torch.empty(0, width, dtype=getattr(torch, dtype.removeprefix("torch.")))
            )
            for name, (width, dtype) in agreed.items()
        }


def _not_drawn(recipe: Recipe, error: Exception) -> Finding:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return Finding(
        slug="charts-failed",
        what=f"the charts of an evaluation were not drawn: {type(error).__name__}: "
        f"{str(error)[:600]}",
        why=f"{where.filename}:{where.lineno} in {where.name}: {where.line}",
        fix=f"mend {type(recipe).__name__}.charts; its figures are in the `evaluate` events",
        severity="warning",
    )


def _wide(value: Any) -> Any:
    """A sum wide enough to stay exact; MPS has no float64."""
    if not isinstance(value, torch.Tensor):
        return torch.tensor(float(value), dtype=torch.float64)
    return value.double() if value.device.type != "mps" else value.cpu().double()
