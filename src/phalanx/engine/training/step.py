"""One optimizer step, described once: passes over micro-batches, the collective, the update.

passes      for slot in this rank's slots:      gradients are reduced during the last one only
                seed dropout by (seed, step, slot)
                terms = recipe.loss(...)
                objective = sum of term.sum / weight of the whole global batch
                backward
collective  gradients, buffers and a late weight become those of all ranks
update      unscale -> clip -> optimizer step

`TrainStep.run` executes the parts eagerly. `engine/fast/cuda_graph.py` captures the passes and the
update as CUDA graphs; the collective runs in the update's graph or between the graphs. A strategy
that reduces gradients in backward lets go of them in between: passes inside `hold_gradients`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from phalanx.engine.data.micro_batches import MicroBatch
from phalanx.engine.data.order import dropout_seed
from phalanx.engine.data.step_feed import StepInput
from phalanx.engine.process.group import device_seeder
from phalanx.engine.process.heartbeat import HEART
from phalanx.engine.strategies.base import Strategy
from phalanx.engine.strategies.optimizers import Schedule
from phalanx.engine.strategies.skipped_steps import poisoned
from phalanx.engine.training.loss_weights import divide, shared_weight, weight_of
from phalanx.errors import Finding
from phalanx.planner.schema.micro_batches import deal
from phalanx.recipe.interface import Batch, Term
from phalanx.run.heartbeat import Part

if TYPE_CHECKING:
    from phalanx.engine.training.recording import Recorder

RunPass = Callable[[MicroBatch, "StepResult"], None]
"""Runs forward and backward of a micro-batch, and adds its sums to the result."""


@dataclass(slots=True)
class StepResult:
    """What a step left behind, still on the device: reading it synchronises."""

    weights: dict[str, float] | None
    """Weight of each term over the global batch, or None when only `late_weight` knows."""
    lr: float = 0.0
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    """Sum of each term over this rank's slots."""
    late_weight: torch.Tensor | None = None
    grad_norm: torch.Tensor | None = None
    terms: list[str] = field(default_factory=list)
    """Names of the terms, once a strategy has taken the sums out."""
    is_reduced: bool = False
    """Whether the sums are those of all ranks already."""
    is_fixed: bool = False
    """Whether sums are added up at addresses that stay, for passes that are captured."""

    def add(self, name: str, value: torch.Tensor) -> None:
        """Add a micro-batch's sum of a term."""
        self.sums[name] = self._added(self.sums.get(name), value)

    def add_late(self, weight: torch.Tensor) -> None:
        """Add a micro-batch's weight that only its predictions know."""
        self.late_weight = self._added(self.late_weight, weight)

    def _added(self, total: torch.Tensor | None, value: torch.Tensor) -> torch.Tensor:
        if self.is_fixed:
            return value.clone() if total is None else total.add_(value)
        return value if total is None else total + value

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
    """Describes optimizer steps, and runs them eagerly."""

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
        self.strategy = strategy
        self.schedule = schedule
        self._seed = seed
        self._filler = filler
        self._device = strategy.process.device
        self._gradient_key: Any = None
        self._gradient = torch.empty(0)
        self._seed_device = device_seeder(self._device)
        self.reciprocals: Mapping[str, torch.Tensor] | None = None
        """1 / weight of each term, 0 without any weight, at addresses that stay: passes that are
        captured read them there. On CUDA torch multiplies by it, too, to divide by a number."""
        self.findings: list[Finding] = []
        """What came up since somebody looked."""
        self.recorder: Recorder | None = None
        """Looks on from the first real step."""

    def run(self, step: StepInput) -> StepResult:
        """Do one step; gradients are cleared afterwards."""
        lr = self.schedule.apply(self.strategy.optimizer, step.share.step)
        result = self.run_at(step, lr)
        if self.recorder is not None:
            self.recorder.step(step.share.step, lr, step.weights)
        return result

    def run_at(self, step: StepInput, lr: float) -> StepResult:
        """Run the parts of a step one after the other, at rates that the optimizer has already."""
        result = StepResult(step.weights, lr)
        self.run_passes(step, result)
        self.run_collective(step, result)
        self.run_update(result)
        return result

    # -- the parts of a step

    def run_passes(
        self, step: StepInput, result: StepResult, run_pass: RunPass | None = None
    ) -> None:
        """Run forward and backward of each micro-batch: those of `run_pass`, which may replay what
        was captured."""
        run_pass = run_pass or self.run_pass
        self.strategy.before_step(step.share.num_slots)
        rounds = self._rounds(step)
        for index in range(rounds):
            with nullcontext() if index == rounds - 1 else self.strategy.hold_gradients():
                if index < len(step.micro_batches):
                    micro_batch = step.micro_batches[index]
                    self._seed_pass(step.share.step, micro_batch.slot)
                    run_pass(micro_batch, result)
                    self.strategy.after_slot(micro_batch.slot, result)
                else:
                    self._idle(step.share.step)
        if not rounds:
            self.strategy.contribute_nothing()

    def _seed_pass(self, step: int, slot: int) -> None:
        """Seed the randomness of a micro-batch's pass."""
        seed = dropout_seed(self._seed, step, slot)
        torch.default_generator.manual_seed(seed)
        self._seed_device(seed)

    def run_pass(self, micro_batch: MicroBatch, result: StepResult) -> None:
        """Run forward and backward of a micro-batch, and add its sums to the result."""
        HEART.at(Part.FORWARD)
        precision = self.strategy.precision
        batch = precision.convert_batch(micro_batch.batch)
        with precision.autocast():
            terms = self._loss(micro_batch, batch)
            objective, gradient = self._objective(terms, result)
        HEART.at(Part.BACKWARD)
        self.strategy.backward(objective, gradient)

    def run_collective(self, step: StepInput, result: StepResult) -> None:
        """Make gradients, changed buffers and a late weight those of all ranks."""
        self.strategy.after_step(step.share.num_slots, result)
        HEART.at(Part.UPDATE)
        if result.weights is not None:
            return
        weight = result.late_weight
        if weight is None:  # no micro-batch on this rank in this step
            weight = torch.zeros((), device=self._device)
        if not result.is_reduced:
            weight = self.strategy.process.sum_(weight.double())
        result.late_weight = weight

    def run_update(self, result: StepResult) -> None:
        """Divide by a late weight, clip, and change the weights of the model."""
        result.grad_norm = self.strategy.update(self._late_divisor(result))

    def discard(self, micro_batch: MicroBatch) -> dict[str, torch.Tensor]:
        """A forward and backward that no update follows; returns the sums of the terms."""
        result = StepResult(micro_batch.weights)
        self._seed_pass(0, micro_batch.slot)
        self.run_pass(micro_batch, result)
        return result.sums

    # -- the formula

    def _rounds(self, step: StepInput) -> int:
        """How many forward and backward passes this rank runs."""
        if not self.strategy.is_lockstep:
            return len(step.micro_batches)
        return deal(step.share.num_slots, 0, self.strategy.process.world)[1]  # the busiest rank's

    def _idle(self, step: int) -> None:
        """Keep in step with ranks that still have a micro-batch, without changing anything."""
        assert self._filler is not None
        nowhere = StepResult(self._filler.weights)
        with self.strategy.idling():
            self._seed_pass(step, self._filler.slot)
            self.run_pass(self._filler, nowhere)

    def _loss(self, micro_batch: MicroBatch, batch: Batch) -> Mapping[str, Term]:
        if self.recorder is None or self.strategy.is_idle:
            return self.strategy.loss(batch, micro_batch.keys)
        return self.recorder.loss(micro_batch, lambda: self.strategy.loss(batch, micro_batch.keys))

    def _objective(
        self, terms: Mapping[str, Term], result: StepResult
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What to run backward from, and the gradient to begin with where that is not 1."""
        weights = result.weights
        factor = 0.0 if self.strategy.is_idle else self.strategy.gradient_scale
        if weights is not None:  # else it is in the divisor: fp16 overflows less
            factor *= self._gain
        for name, term in terms.items():
            result.add(name, term.sum.detach())
        if len(terms) == 1 and weights is not None and self.strategy.takes_gradient:
            ((name, term),) = terms.items()
            own = term.sum.detach()
            return term.sum, poisoned(self._first_gradient(own, factor, name, weights), own)
        if weights is None:
            parts = [term.sum for term in terms.values()]
            result.add_late(self._to_device(shared_weight(terms)))
        else:
            parts = [self._weighed(term.sum, name, weights) for name, term in terms.items()]
        objective = sum(parts[1:], parts[0])
        objective = objective if factor == 1.0 else objective * factor
        if self.strategy.is_idle:
            return objective, None
        own = objective.detach()
        return objective, poisoned(torch.ones_like(own), own)

    def _weighed(
        self, total: torch.Tensor, term: str, weights: Mapping[str, float]
    ) -> torch.Tensor:
        """A sum by the weight of its term in the global batch."""
        if self.reciprocals is None:
            divided: torch.Tensor = divide(total, weight_of(weights, term))
            return divided
        return (total * weight_of(self.reciprocals, term)).to(total.dtype)

    def _to_device(self, weight: float | torch.Tensor) -> torch.Tensor:
        if isinstance(weight, torch.Tensor):
            return weight.detach().to(self._device)
        # Filled and not copied from the host, which could not be captured.
        known = torch.as_tensor(weight)
        return torch.full((), known.item(), dtype=known.dtype, device=self._device)

    def _first_gradient(
        self, total: torch.Tensor, factor: float, term: str, weights: Mapping[str, float]
    ) -> torch.Tensor:
        """What backward through `total / weight * factor` would begin with, to the bit, without
        these two operators: in a step of half a millisecond they take a thirtieth."""
        key = factor, weight_of(weights, term), total.dtype, total.shape
        if key == self._gradient_key:
            return self._gradient
        gradient = self._weighed(torch.full_like(total, factor), term, weights)
        # On CUDA a graph would read one that is long let go.
        if self._device.type == "cpu" and self.reciprocals is None:
            self._gradient_key, self._gradient = key, gradient
        return gradient

    def _late_divisor(self, result: StepResult) -> torch.Tensor | None:
        """What the gradients are still to be divided by."""
        if result.weights is not None:
            return None
        total = result.late_weight
        assert total is not None, "the collective comes before the update"
        if self._least_weight:
            result.late_weight = total = total.clamp(min=self._least_weight)
        # Nothing to learn from where there is no weight: gradients are 0.
        return torch.where(total == 0, 1.0, total) / self._gain
