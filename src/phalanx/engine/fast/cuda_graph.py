"""Optimizer steps as CUDA graphs: the host asks for a whole step at once, not for each kernel.

A small model's kernels take less time than the host takes to start them. A graph holds all kernels
of a step, with the addresses they read and write, and is started in microseconds. So whatever
changes from step to step lies at a fixed address: batch, keys, learning rates, weights of the loss.

the first step          runs as it is: it makes the optimizer's state
a new kind of step      a kind is the sizes of its micro-batches; the passes run as they are once
                        and are thrown away, are captured, replayed and compared, then the update
every later one         copy the batch in -> replay the passes, each with its seed -> the update

Graphs of all kinds share one pool of memory: only one of them is under way at a time. What cannot
be captured, differs, or comes in too many kinds runs as it is from then on, with a Finding. The
parts of a step are those of `TrainStep`, captured or not, on the same numbers, so a run that goes
on from a checkpoint (whose first step is not captured) has the bits of the unbroken one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from phalanx.engine.data.micro_batches import MicroBatch, map_tensors
from phalanx.engine.data.step_feed import StepInput
from phalanx.engine.fast.fixed_addresses import Numbers, copy_batch, sign_of
from phalanx.engine.model.buffers import untouched
from phalanx.engine.training.loss_weights import reciprocal
from phalanx.engine.training.step import RunPass, StepResult, TrainStep
from phalanx.errors import Finding

_KINDS = 4  # regular, the last one of an epoch, and two to spare
# Norms of gradients, relative to the norm over all of them: the same kernels on the same numbers,
# but for sums whose order is left to chance.
_TOLERANCE = 1e-3


class NotCapturedError(Exception):
    """Why steps are not replayed."""


@dataclass
class _Passes:
    """Forward and backward of a micro-batch of one size: the first of a step, or a later one."""

    graph: torch.cuda.CUDAGraph
    place: MicroBatch


@dataclass
class _Kind:
    """The graphs of steps of one kind."""

    passes: list[_Passes]
    update: torch.cuda.CUDAGraph
    result: StepResult
    """At fixed addresses."""


class GraphedStep:
    """Runs the steps that a `TrainStep` describes, of one rank that holds the whole model.

    Passes and update are graphs of their own. On one rank the collective only converts a late
    weight and is captured with the update; on several it belongs between them, in `run`."""

    def __init__(self, step: TrainStep) -> None:
        self._step = step
        self._strategy = step.strategy
        self._device = step.strategy.process.device
        self._stream: Any = None
        self._pool: Any = None
        self._kinds: dict[Any, _Kind] = {}
        self._places: dict[Any, MicroBatch] = {}
        self._numbers: Numbers | None = None
        self._is_dropped = False
        self.findings: list[Finding] = []
        """What came up since somebody looked."""

    def run(self, step: StepInput) -> StepResult:
        """Do one step; gradients are cleared afterwards."""
        is_first = self._numbers is None
        lr = self._put_numbers(step)
        if self._is_dropped or is_first or not step.micro_batches:
            return self._run_as_it_is(step, lr)
        signs = tuple(sign_of(micro_batch) for micro_batch in step.micro_batches)
        kind = self._kinds.get(signs)
        if kind is None:
            try:
                kind = self._capture(step, signs)
            except (NotCapturedError, RuntimeError) as error:
                self._drop(error)
                return self._run_as_it_is(step, lr)
            self._kinds[signs] = kind
        self._step.run_passes(step, kind.result, _replaying(kind.passes))
        kind.update.replay()
        self._strategy.updated()
        kind.result.lr, kind.result.weights = lr, step.weights
        return kind.result

    def _run_as_it_is(self, step: StepInput, lr: float) -> StepResult:
        with self._strategy.followers_apart():
            result = self._step.run_at(step, lr)
        self._strategy.updated()
        return result

    # -- capturing

    def _capture(self, step: StepInput, signs: tuple[Any, ...]) -> _Kind:
        if len(self._kinds) == _KINDS:
            raise NotCapturedError(
                f"micro-batches came in more than {_KINDS} combinations of sizes"
            )
        before = self._compare(step)
        torch.cuda.empty_cache()  # what ran as it is holds memory that the graphs' pool cannot use
        result = StepResult(step.weights, is_fixed=True)
        with untouched(self._strategy.model):
            passes = self._record_passes(step, signs, result)
            self._step.run_passes(step, result, _replaying(passes))
            now = self._norms()
        _check_same(before, now)
        return _Kind(passes, self._record(lambda: self._update(step, result)), result)

    def _record_passes(
        self, step: StepInput, signs: tuple[Any, ...], result: StepResult
    ) -> list[_Passes]:
        """Capture the passes of a step: one graph for each size, and one for the first pass."""
        known: dict[Any, _Passes] = {}
        keys = [(index > 0, sign) for index, sign in enumerate(signs)]
        for key, micro_batch in zip(keys, step.micro_batches, strict=True):
            if key not in known:
                place = self._place(key[1], micro_batch)
                graph = self._record(functools.partial(self._step.run_pass, place, result))
                known[key] = _Passes(graph, place)
        return [known[key] for key in keys]

    def _update(self, step: StepInput, result: StepResult) -> None:
        self._step.run_collective(step, result)
        with self._strategy.followers_apart():
            self._step.run_update(result)

    def _compare(self, step: StepInput) -> Tensor:
        """Norms of the gradients, as the passes give them without a graph. Also the first time that
        this kind runs: kernels are compiled and chosen here and not while capturing. The second
        time whatever waits for the device raises: inside a capture that would leave torch in a
        state it does not get out of by itself."""
        norms = self._norms_of(step)
        with _as_if_capturing():
            self._norms_of(step)
        return norms

    def _norms_of(self, step: StepInput) -> Tensor:
        with untouched(self._strategy.model):
            self._step.run_passes(step, StepResult(step.weights))
        norms = self._norms()
        self._strategy.optimizer.zero_grad(set_to_none=True)
        return norms

    def _norms(self) -> Tensor:
        return torch.stack(torch._foreach_norm(self._strategy.gradients())).float()

    def _record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()
        try:
            # Other threads may allocate pinned memory meanwhile: only this one is watched.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                work()
        except BaseException:
            torch.cuda.set_stream(stream)
            self._end_capture()
            raise
        return graph

    def _end_capture(self) -> None:
        """What torch 2.11 leaves undone when a capture fails: memory would still come from the pool
        and random numbers wait for a graph. There is no official way to end one that failed:
        https://docs.pytorch.org/docs/2.11/generated/torch.cuda.graph.html"""
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self._device.index, self._pool)
        generator = torch.cuda.default_generators[self._device.index]
        generator.graphsafe_set_state(torch.Generator(self._device).graphsafe_get_state())

    def _place(self, sign: Any, micro_batch: MicroBatch) -> MicroBatch:
        """Where micro-batches of this size are copied to."""
        if sign not in self._places:
            self._places[sign] = map_tensors(micro_batch, torch.clone)
        return self._places[sign]

    def _drop(self, error: Exception) -> None:
        """Go on without graphs."""
        self._is_dropped = True
        self._kinds.clear()
        self._places.clear()
        self._pool = None
        self._strategy.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        self.findings.append(_dropped(error))

    # -- numbers

    def _put_numbers(self, step: StepInput) -> float:
        """Weights of the loss and learning rates, to where kernels read them."""
        optimizer = self._strategy.optimizer
        lr, rates = self._step.schedule.rates(optimizer, step.share.step)
        groups = optimizer.param_groups
        names = list(step.weights or ())
        if self._numbers is None:
            wide = self._strategy.precision.name == "fp64"
            tensor = torch.zeros(
                len(names) + len(groups),
                dtype=torch.float64 if wide else torch.float32,
                device=self._device,
            )
            self._numbers = Numbers(tensor)
            self._step.reciprocals = {name: tensor[index] for index, name in enumerate(names)}
            for index, group in enumerate(groups):
                group["lr"] = tensor[len(names) + index]
                if "capturable" in group:
                    group["capturable"] = True
        reciprocals = [reciprocal(weight) for weight in (step.weights or {}).values()]
        self._numbers.put([*reciprocals, *rates])
        return lr


def _replaying(passes: list[_Passes]) -> RunPass:
    """Return the function that replaces `TrainStep.run_pass`: copy the batch in, and replay."""
    remaining = iter(passes)

    def replay(micro_batch: MicroBatch, result: StepResult) -> None:
        following = next(remaining)
        copy_batch(micro_batch, following.place)
        following.graph.replay()

    return replay


@contextmanager
def _as_if_capturing() -> Iterator[None]:
    """Inside, whatever waits for the device raises, and code that looks at values unless it is
    captured, as transformers' masks do, is told that it is. torch 2.11 has no official way to say
    so: https://docs.pytorch.org/docs/2.11/generated/torch.cuda.is_current_stream_capturing.html"""
    mode, asked = torch.cuda.get_sync_debug_mode(), torch.cuda.is_current_stream_capturing
    torch.cuda.set_sync_debug_mode("error")
    torch.cuda.is_current_stream_capturing = lambda: True
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = asked
        torch.cuda.set_sync_debug_mode(mode)


def _check_same(before: Tensor, now: Tensor) -> None:
    finite = before.isfinite()  # fp16 begins with a loss scale that overflows
    if not torch.equal(finite, now.isfinite()):
        raise NotCapturedError("gradients overflow with a graph and not without, or the reverse")
    total = float(before[finite].norm())
    apart = float((now - before)[finite].abs().max()) if finite.any() else 0.0
    if not apart <= _TOLERANCE * max(total, 1e-30):
        raise NotCapturedError(
            f"norms of gradients differ by {apart:.3g} from those without a graph, whose norm over "
            f"all is {total:.3g}; {_TOLERANCE:g} of it was allowed"
        )


def _dropped(error: Exception) -> Finding:
    return Finding(
        slug="graph-dropped",
        what="steps are not replayed as CUDA graphs: the host starts each kernel itself",
        why=f"{type(error).__name__}: {' '.join(str(error).split())[:400]}",
        fix="nothing, the result is the same and small models are slower; `cuda_graph=off` does "
        "not try",
        severity="warning",
    )
