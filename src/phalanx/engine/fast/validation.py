"""The fast path held against the recipe as it is written, before the first step.

as written (plain layout, nothing compiled)   -> gradients of the first step's micro-batch
the same with weights off by one rounding     -> how much rounding alone changes them
with every rung                               -> gradients; too far off: without the topmost rung

A rung that differs, or cannot be had, is dropped on every rank, and all of it is thrown away:
buffers and weights are put back, gradients are dropped, every pass seeds its own randomness.

Compiled code draws other random numbers than eager code. A recipe whose gradients depend on the
seed is compared with code that draws eager's, and, because on a CPU dropout's masks still differ,
with its dropout off: everything in evaluation but norms, whose statistics take part in backward.
That is one more compilation, which the caches keep; other models are compared as they train.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from phalanx.engine.data.micro_batches import MicroBatch
from phalanx.engine.fast.closeness import ROUNDING, Distance, Gradients, distance_of, too_far
from phalanx.engine.fast.cuda_graph import GraphedStep
from phalanx.engine.model.buffers import untouched
from phalanx.engine.model.shards import local_part
from phalanx.engine.process.device_memory import clear_device
from phalanx.engine.strategies.base import RunBackward, Strategy
from phalanx.engine.training.step import TrainStep
from phalanx.errors import Finding
from phalanx.planner.revise import cost_without
from phalanx.planner.schema.plan import Plan
from phalanx.run import event_kinds
from phalanx.run.event_kinds import Body, FindingMade

if TYPE_CHECKING:
    from phalanx.engine.fast.compile import Compiler


_OTHER_SLOT = 1 << 20  # seeds other dropout masks than any slot of the first step


class Dropped(NamedTuple):
    """A rung that is not used from here on."""

    rung: str
    finding: Finding


def take_graph(step: TrainStep | GraphedStep, plan: Plan) -> list[Dropped]:
    """The CUDA graph, where a step has just found that it does not hold: it compares itself."""
    if not step.findings:
        return []
    findings = [priced(finding, plan, "cuda_graph") for finding in step.findings]
    step.findings.clear()
    return [Dropped("cuda_graph", finding) for finding in findings]


def priced(finding: Finding, plan: Plan, rung: str) -> Finding:
    """With what the plan predicts without the rung."""
    cost = cost_without(plan, rung)
    return finding if cost is None else replace(finding, why=f"{finding.why}; {cost}")


def say_dropped(dropped: Iterable[Dropped]) -> list[Body]:
    """The events of it; the supervisor writes the plan without the rung then."""
    return [
        entry
        for rung, finding in dropped
        for entry in (
            FindingMade(finding=finding),
            event_kinds.Dropped(rung=rung, reason=f"{finding.slug}: {finding.why}"),
        )
    ]


class FastPath:
    """What of a rank's fast path can be turned off, topmost rung first."""

    def __init__(self, plan: Plan, strategy: Strategy, compiler: Compiler | None) -> None:
        self._plan = plan
        self._strategy = strategy
        self._compiler = compiler
        self._model = strategy.model
        self._precision = strategy.precision
        self._named = [(n, p) for n, p in self._model.named_parameters() if p.requires_grad]
        self._parameters = [parameter for _, parameter in self._named]
        self.is_compared = False
        """Whether settling held it against the recipe as it is written."""

    def settle(
        self,
        micro_batch: MicroBatch,
        run_backward: RunBackward,
        say: Callable[[str], None] = lambda what: None,
    ) -> list[Dropped]:
        """Compile, compare, and drop what does not hold, the same on every rank; `say` hears of
        what takes a while."""
        dropped = []
        if self._compiler is not None:
            is_kept = self._plan.execution.is_code_kept
            say(
                "loading compiled code"
                if is_kept
                else f"compiling: {self._plan.execution.compile.reason}"
            )
            findings = self._compiler.try_out(self._strategy, micro_batch, run_backward)
            dropped = [Dropped("compile", priced(f, self._plan, "compile")) for f in findings]
        if self._plan.execution.compared_with_eager.value and self.rungs():
            self.is_compared = True
            say(f"comparing {', '.join(self.rungs())} with the recipe as it is written")
            with untouched(self._model):
                dropped += self._compare(micro_batch, run_backward)
            clear_device(self._strategy.process.device)  # what was thrown away is no peak of a run
        return dropped

    def watch(self) -> list[Dropped]:
        """What no longer holds while training: called now and then, by every rank."""
        if self._compiler is None or not self._compiler.is_on:
            return []
        findings = self._compiler.find_changing_shapes(self._strategy.process)
        return [Dropped("compile", priced(f, self._plan, "compile")) for f in findings]

    def rungs(self) -> list[str]:
        """What is on, the topmost first."""
        is_on = {
            "compile": self._compiler is not None and self._compiler.is_on,
            "channels_last": self._precision.is_channels_last,
        }
        return [name for name, value in is_on.items() if value]

    def _drop(self, rung: str) -> None:
        if rung == "compile":
            assert self._compiler is not None
            self._compiler.turn_off()
        else:
            self._lay_out(is_channels_last=False)

    def _compare(self, micro_batch: MicroBatch, run: RunBackward) -> list[Dropped]:
        with self._as_written():
            reference = self._gradients(micro_batch, run)
            is_random = self._is_random(reference, micro_batch, run)
        with _without_dropout(self._model) if is_random else nullcontext():
            with self._as_written():
                if is_random:
                    reference = self._gradients(micro_batch, run)
                with self._off_by_a_rounding():
                    noise = self._apart(reference, self._gradients(micro_batch, run))
            with self._drawing_as_written() if is_random else nullcontext():
                return self._drop_until_close(reference, noise, micro_batch, run)

    def _drawing_as_written(self) -> AbstractContextManager[None]:
        return nullcontext() if self._compiler is None else self._compiler.drawing_as_written()

    def _is_random(self, reference: Gradients, micro_batch: MicroBatch, run: RunBackward) -> bool:
        """Whether gradients depend on the seed: the same seed again, with operators that add up in
        any order, is much closer."""
        other = micro_batch._replace(slot=micro_batch.slot + _OTHER_SLOT)
        same = self._apart(reference, self._gradients(micro_batch, run))
        return self._apart(reference, self._gradients(other, run)).whole > 8 * same.whole

    def _drop_until_close(
        self, reference: Gradients, noise: Distance, micro_batch: MicroBatch, run: RunBackward
    ) -> list[Dropped]:
        dropped = []
        while rungs := self.rungs():
            found = self._apart(reference, self._gradients(micro_batch, run))
            why = too_far(found, noise, self._named, self._precision.name)
            if why is None:
                break
            self._drop(rungs[0])
            dropped.append(Dropped(rungs[0], self._differs(rungs[0], why)))
        return dropped

    def _gradients(self, micro_batch: MicroBatch, run: RunBackward) -> Gradients:
        sums = run(micro_batch)
        found = [None if p.grad is None else local_part(p.grad) for p in self._parameters]
        found.append(torch.stack([value.detach().float() for value in sums.values()]))
        self._strategy.clear_gradients()
        return found

    def _apart(self, reference: Gradients, other: Gradients) -> Distance:
        return distance_of(reference, other, self._strategy.process)

    @contextmanager
    def _as_written(self) -> Iterator[None]:
        """Inside, no rung is used."""
        is_channels_last = self._precision.is_channels_last
        if is_channels_last:
            self._lay_out(is_channels_last=False)
        with self._compiler.paused() if self._compiler is not None else nullcontext():
            yield
        if is_channels_last:
            self._lay_out(is_channels_last=True)

    def _lay_out(self, *, is_channels_last: bool) -> None:
        self._precision.is_channels_last = is_channels_last
        if is_channels_last:
            self._precision.lay_out(self._model)
        else:
            self._model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

    @contextmanager
    def _off_by_a_rounding(self) -> Iterator[None]:
        """Inside, every weight is a rounding of the precision larger or smaller."""
        unit = ROUNDING[self._precision.name]
        weights = [local_part(p) for p in self._parameters if p.is_floating_point()]
        kept = [weight.clone() for weight in weights]
        with torch.no_grad():
            for weight in weights:
                signs = torch.arange(weight.numel(), device=weight.device) % 3 - 1
                weight.mul_(1 + unit * signs.view(weight.shape).to(weight.dtype))
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, old in zip(weights, kept, strict=True):
                    weight.copy_(old)

    def _differs(self, rung: str, why: str) -> Finding:
        finding = Finding(
            slug="fast-path-differs",
            what=f"`{rung}` is dropped: its gradients are not those of the recipe as it is written",
            why=f"in a pass before the first step, {why}",
            fix=f"nothing to do, the run trains without it; {rung}=off skips the attempt",
            severity="warning",
        )
        return priced(finding, self._plan, rung)


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """Inside, nothing is random, and norms take their statistics as in training. cuDNN's recurrent
    layers have no backward in evaluation: their dropout is set to 0."""
    training = {module: module.training for module in model.modules()}
    recurrent = {m: m.dropout for m in model.modules() if isinstance(m, nn.RNNBase)}
    for module, was in training.items():
        module.training = was and isinstance(module, (_NormBase, nn.RNNBase))
    for layer in recurrent:
        layer.dropout = 0.0
    try:
        yield
    finally:
        for module, was in training.items():
            module.training = was
        for layer, rate in recurrent.items():
            layer.dropout = rate
