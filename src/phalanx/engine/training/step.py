"""One optimizer step: forward and backward of each slot, reduction, clipping, update.

for slot in this rank's slots:          gradients are exchanged during the last one only
    seed dropout by (seed, step, slot)
    terms = recipe.loss(...)
    objective = sum of term.sum / weight of the whole global batch
    backward
unscale -> clip -> optimizer step
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from phalanx.engine.data.micro_batches import ANY_TERM, MicroBatch, StepInput
from phalanx.engine.data.order import dropout_seed
from phalanx.engine.process.group import device_seeder
from phalanx.engine.process.heartbeat import HEART
from phalanx.engine.strategies.base import Strategy
from phalanx.engine.strategies.optimizers import Schedule
from phalanx.engine.strategies.skipped_steps import poisoned
from phalanx.errors import Finding, UserError
from phalanx.planner.schema.micro_batches import deal
from phalanx.recipe.interface import Batch, Term
from phalanx.run.heartbeat import Part

if TYPE_CHECKING:
    from phalanx.engine.training.recording import Recorder


@dataclass(slots=True)
class StepResult:
    """What a step left behind, still on the device: reading it synchronises."""

    lr: float
    sums: dict[str, torch.Tensor]
    """Sum of each term over this rank's slots."""
    weights: dict[str, float] | None
    """Weight of each term over the global batch, or None when only `late_weight` knows."""
    late_weight: torch.Tensor | None
    grad_norm: torch.Tensor | None
    terms: list[str] = field(default_factory=list)
    """Names of the terms, once a strategy has taken the sums out."""
    is_reduced: bool = False
    """Whether the sums are those of all ranks already."""

    def take(self) -> torch.Tensor:
        """Take the sums of this rank out, in one row; the last one is the late weight."""
        self.terms = list(self.sums)
        row = [value.double() for value in self.sums.values()]
        if self.late_weight is not None:
            row.append(self.late_weight.double())
        self.sums, self.late_weight = {}, None
        return torch.stack(row)

    def put(self, row: torch.Tensor) -> None:
        """Put the sums of all ranks in."""
        self.is_reduced = True
        if self.weights is None:
            self.late_weight, row = row[-1], row[:-1]
        self.sums = dict(zip(self.terms, row, strict=False))


class TrainStep:
    """Runs optimizer steps."""

    def __init__(
        self,
        *,
        strategy: Strategy,
        schedule: Schedule,
        seed: int,
        filler: MicroBatch | None = None,
        gain: float = 1.0,
        least_weight: float = 0.0,
    ) -> None:
        """`filler` is what a rank in lock-step repeats when it has no micro-batch left, `gain` what
        gradients are multiplied by (`Recipe.loss_gain`), `least_weight` what a weight that depends
        on the predictions counts at least (`Recipe.least_weight`)."""
        self._gain = gain
        self._least_weight = least_weight
        self._strategy = strategy
        self._schedule = schedule
        self._seed = seed
        self._filler = filler
        self._device = strategy.process.device
        self._gradient_key: Any = None
        self._gradient = torch.empty(0)
        self._seed_device = device_seeder(self._device)
        self.findings: list[Finding] = []
        """What came up since somebody looked."""
        self.recorder: Recorder | None = None
        """Looks on from the first real step."""

    def run(self, step: StepInput) -> StepResult:
        """Do one step; gradients are cleared afterwards."""
        lr = self._schedule.apply(self._strategy.optimizer, step.share.step)
        result = StepResult(lr, {}, step.weights, None, None)
        self._strategy.before_step(step.share.num_slots)
        rounds = self._rounds(step)
        for index in range(rounds):
            with nullcontext() if index == rounds - 1 else self._strategy.hold_gradients():
                if index < len(step.micro_batches):
                    micro_batch = step.micro_batches[index]
                    self._backward(step.share.step, micro_batch, result)
                    self._strategy.after_slot(micro_batch.slot, result)
                else:
                    self._idle(step.share.step)
        if not rounds:
            self._strategy.contribute_nothing()
        self._strategy.after_step(step.share.num_slots, result)
        HEART.at(Part.UPDATE)
        result.grad_norm = self._strategy.update(self._late_divisor(result))
        if self.recorder is not None:
            self.recorder.step(step.share.step, lr, step.weights)
        return result

    def _rounds(self, step: StepInput) -> int:
        """How many forward and backward passes this rank runs."""
        if not self._strategy.is_lockstep:
            return len(step.micro_batches)
        return deal(step.share.num_slots, 0, self._strategy.process.world)[1]  # the busiest rank's

    def _idle(self, step: int) -> None:
        """Keep in step with ranks that still have a micro-batch, without changing anything."""
        assert self._filler is not None
        nowhere = StepResult(0.0, {}, self._filler.weights, None, None)
        with self._strategy.idling():
            self._backward(step, self._filler, nowhere)

    def discard(self, micro_batch: MicroBatch) -> dict[str, torch.Tensor]:
        """A forward and backward that no update follows; returns the sums of the terms."""
        result = StepResult(0.0, {}, micro_batch.weights, None, None)
        self._backward(0, micro_batch, result)
        return result.sums

    def _backward(self, step: int, micro_batch: MicroBatch, result: StepResult) -> None:
        HEART.at(Part.FORWARD)
        seed = dropout_seed(self._seed, step, micro_batch.slot)
        torch.default_generator.manual_seed(seed)
        self._seed_device(seed)
        precision = self._strategy.precision
        batch = precision.convert_batch(micro_batch.batch)
        with precision.autocast():
            terms = self._loss(micro_batch, batch)
            objective, gradient = self._objective(terms, result)
        HEART.at(Part.BACKWARD)
        self._strategy.backward(objective, gradient)

    def _loss(self, micro_batch: MicroBatch, batch: Batch) -> Mapping[str, Term]:
        if self.recorder is None or self._strategy.is_idle:
            return self._strategy.loss(batch, micro_batch.keys)
        return self.recorder.loss(micro_batch, lambda: self._strategy.loss(batch, micro_batch.keys))

    def _objective(
        self, terms: Mapping[str, Term], result: StepResult
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What to run backward from, and the gradient to begin with where that is not 1."""
        factor = 0.0 if self._strategy.is_idle else self._strategy.gradient_scale
        if result.weights is not None:  # else it is in the divisor: fp16 overflows less
            factor *= self._gain
        if len(terms) == 1 and result.weights is not None and self._strategy.takes_gradient:
            ((name, term),) = terms.items()
            own = term.sum.detach()
            result.sums[name] = result.sums[name] + own if name in result.sums else own
            gradient = self._first_gradient(own, factor, weight_of(result.weights, name))
            return term.sum, poisoned(gradient, own)
        parts = []
        for name, term in terms.items():
            own = term.sum.detach()
            result.sums[name] = result.sums[name] + own if name in result.sums else own
            if result.weights is None:
                parts.append(term.sum)
            else:
                parts.append(divide(term.sum, weight_of(result.weights, name)))
        if result.weights is None:
            weight = torch.as_tensor(shared_weight(terms), device=self._device).detach()
            result.late_weight = (
                weight if result.late_weight is None else result.late_weight + weight
            )
        objective = sum(parts[1:], parts[0])
        objective = objective if factor == 1.0 else objective * factor
        if self._strategy.is_idle:
            return objective, None
        own = objective.detach()
        return objective, poisoned(torch.ones_like(own), own)

    def _first_gradient(self, total: torch.Tensor, factor: float, weight: float) -> torch.Tensor:
        """What backward through `total / weight * factor` would begin with, to the bit, without
        these two operators: in a step of half a millisecond they take a thirtieth."""
        key = factor, weight, total.dtype, total.shape
        if key == self._gradient_key:
            return self._gradient
        gradient = torch.full_like(total, factor)
        gradient = gradient / weight if weight else gradient * 0.0
        if self._device.type == "cpu":  # a CUDA graph would read one that is long let go
            self._gradient_key, self._gradient = key, gradient
        return gradient

    def _late_divisor(self, result: StepResult) -> torch.Tensor | None:
        """What the gradients are still to be divided by."""
        if result.weights is not None:
            return None
        total = self._late_weight(result)
        if self._least_weight:
            result.late_weight = total = total.clamp(min=self._least_weight)
        # Nothing to learn from where there is no weight: gradients are 0.
        return torch.where(total == 0, 1.0, total) / self._gain

    def _late_weight(self, result: StepResult) -> torch.Tensor:
        weight = result.late_weight
        if result.is_reduced and weight is not None:
            return weight
        if weight is None:  # no micro-batch on this rank in this step
            weight = torch.zeros((), device=self._device)
        result.late_weight = self._strategy.process.sum_(weight.double())
        return result.late_weight


def divide(total: Any, weight: float) -> Any:
    """A sum by its weight; a term without any weight in the global batch is nothing, not 0/0."""
    return total / weight if weight else total * 0.0


def weight_of(weights: Mapping[str, float], term: str) -> float:
    """The global weight of a term."""
    return weights[weight_name(weights, term)]


def weight_name(weights: Collection[str], term: str) -> str:
    """Whose weight a term has: its own, or the one that stands for every term."""
    for name in (term, ANY_TERM):
        if name in weights:
            return name
    raise UserError(
        Finding(
            slug="term-weight",
            what=f"the loss has a term `{term}` that the recipe's weight() does not name",
            why=f"weight() names: {', '.join(weights)}",
            fix=f'return {{..., "{term}": weight}} from weight(batch)',
        )
    )


def shared_weight(terms: Mapping[str, Term]) -> float | torch.Tensor:
    """The one weight of terms whose weights are not known beforehand."""
    first, *others = (term.weight for term in terms.values())
    is_shared = isinstance(first, torch.Tensor) and all(weight is first for weight in others)
    if others and not is_shared:
        raise UserError(late_weight_finding(list(terms)))
    return first


def late_weight_finding(names: list[str]) -> Finding:
    """Several terms with several weights that are not known beforehand."""
    return Finding(
        slug="late-weights",
        what=f"the loss has {len(names)} terms whose weights depend on the predictions",
        why=f"weight() returned None and loss() returned {', '.join(names)}: after the reduction "
        "only one common divisor can be applied",
        fix="return one term, give all of them the same tensor as weight, or return the weights "
        "from weight(batch)",
    )
