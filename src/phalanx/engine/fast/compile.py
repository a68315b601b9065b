"""torch.compile, applied so that nothing else notices: names of weights, hooks of strategies and
checkpointed blocks stay as they are.

Where a model repeats a block, blocks are compiled one at a time: all of a kind share what was
compiled for the first, DDP can send a block's gradients while backward goes on, and FSDP gathers a
block's weights in hooks around compiled code. Modules with weights beside the blocks,
such as a head or the last norm, are compiled one at a time, too, and what the recipe's loss
computes from the model's answer, which for a language model is the largest tensor of all; the
model's own forward between all these stays as it is. A model without blocks that are alike is
compiled whole, with its loss.

Evaluation stays eager: its figures are the same on any number of ranks, and it is not worth another
compilation.

Dropout: compiled code draws its seeds from the device's generator, which is seeded for each
micro-batch, so masks depend on (seed, step, slot) as ever and a resumed run draws them again. They
are other masks than eager's, also with `torch._inductor.config.fallback_random` (on CPU eager draws
Bernoulli numbers and compiled code uniform ones), which costs a kernel and a mask in memory for
each dropout: it is not set.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from phalanx.engine.data.micro_batches import MicroBatch
from phalanx.engine.fast.region import Change, Region
from phalanx.engine.model.blocks import Block, find_beside, find_blocks
from phalanx.engine.model.buffers import untouched
from phalanx.engine.process.group import Process
from phalanx.engine.process.out_of_memory import find_shortage
from phalanx.engine.strategies.base import RunBackward, Strategy
from phalanx.errors import Finding
from phalanx.recipe.interface import Recipe

_SIZES = 8  # of micro-batches that code is made for; those beyond run as they are
_BREAKS = 4  # graph breaks of one kind of code: with more, most of it is not compiled
_OWN = "torch.compiler.disable"  # in the text of a break that `keep_blocks_apart` makes
_SHAPES = 2  # of one kind of block; with more, code for any shape would be made, which is slower


class Compiler:
    """Compiles the parts of one model, in the order of its methods."""

    def __init__(
        self, *, is_deterministic: bool, is_code_kept: bool = False, backend: str = "inductor"
    ) -> None:
        """`is_code_kept`: all code is expected in the cache."""
        _configure(is_deterministic=is_deterministic, is_code_kept=is_code_kept)
        # Code for any size, which torch makes at the second one (`dynamic=None`), is taken from
        # then on for the first one too: bits would depend on what a process has seen before, and
        # a resumed run would differ. So each size has its own code, as many as the limit allows.
        dynamic = False if is_deterministic else None
        self._compile: Change = functools.partial(torch.compile, dynamic=dynamic, backend=backend)
        # The same code but for its random numbers, which are those of eager code.
        options = {"fallback_random": True} if backend == "inductor" else None
        self._compile_alike = functools.partial(self._compile, options=options)
        self._regions: list[Region] = []
        self._blocks: list[Block] = []
        self._beside: list[Block] = []
        self._around: nn.Module | None = None

    def compile_blocks(self, recipe: Recipe, model: nn.Module, *, is_checkpointed: bool) -> None:
        """Before blocks are checkpointed: what runs again in backward is the compiled forward."""
        blocks = find_blocks(recipe, model)
        if are_alike(blocks) or is_checkpointed:
            self._blocks = blocks
        self._around = model
        # A head is compiled by itself: its product may be the largest of the model, and one with
        # an odd number of symbols takes three times as long as written.
        self._beside = find_beside(model, self._blocks)
        for _, block in [*self._blocks, *self._beside]:
            block.forward = self._region(block.forward, self._compile)
        # torch.compile runs the modules of its own kinds through one function: each counts there,
        # and once more where it draws as written.
        shared = sum(type(module).__module__.startswith("torch.") for _, module in self._beside)
        dynamo: Any = torch._dynamo.config
        dynamo.recompile_limit = _SIZES * max(1, count_shapes(self._blocks)) + 2 * shared

    def keep_blocks_apart(self) -> None:
        """After blocks are checkpointed, before hooks come around them: compiled code around a
        block ends where the block begins."""
        for _, block in [*self._blocks, *self._beside]:
            block.forward = self._region(block.forward, torch._dynamo.disable)
        # What is left around them runs as it is. torch.compile would try it again and again, from
        # the loss inwards, each time up to the first block: seconds of every start, for nothing,
        # since it gives up functions with a loop over blocks.
        if self._blocks and self._around is not None:
            self._around.forward = self._region(self._around.forward, torch._dynamo.disable)

    def compile_loss(self, strategy: Strategy) -> None:
        """Whatever of the loss is not compiled yet."""
        bare = strategy.bare_loss
        bare.loss = self._region(bare.loss, self._compile)

    def try_out(
        self, strategy: Strategy, micro_batch: MicroBatch, run_backward: RunBackward
    ) -> list[Finding]:
        """A pass that is thrown away. It compiles; what cannot be compiled runs as it is, on every
        rank. Always with the first step's samples, so that a resumed run has code for the same
        sizes as an unbroken one."""
        failed: Exception | None = None
        with untouched(strategy.model):
            try:
                run_backward(micro_batch)
            except Exception as error:
                if find_shortage(error, str(strategy.process.device)) is not None:
                    raise
                failed = error
        breaks = self._find_breaks() if failed is None else None
        # Ranks in lock-step that fail alone leave the others waiting: all have the same code.
        failures, broken = strategy.process.count([failed is not None, breaks is not None])
        strategy.clear_gradients()
        _end_helpers()
        # From here on a size that cannot be compiled runs as it is.
        torch._dynamo.config.suppress_errors = True
        if not failures and not broken:
            return []
        self.turn_off()
        if not failures:
            return [_broken(breaks)]
        with untouched(strategy.model):
            run_backward(micro_batch)  # raises again what is the recipe's own mistake
        strategy.clear_gradients()
        return [_failure(failed)]

    @property
    def is_on(self) -> bool:
        return any(region.is_compiled for region in self._regions)

    def turn_off(self) -> None:
        """Run everything as it is from here on."""
        for region in self._regions:
            region.is_compiled = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, everything runs as it is."""
        before = [region.is_compiled for region in self._regions]
        self.turn_off()
        try:
            yield
        finally:
            for region, is_compiled in zip(self._regions, before, strict=True):
                region.is_compiled = is_compiled

    @contextmanager
    def drawing_as_written(self) -> Iterator[None]:
        """Inside, compiled code draws the random numbers that the recipe as it is written draws. It
        is other code than what trains, and is compiled here."""
        for region in self._regions:
            region.draw_as_written(self._compile_alike)
        try:
            yield
        finally:
            for region in self._regions:
                region.draw_as_trained()

    def find_changing_shapes(self, process: Process) -> list[Finding]:
        """After sizes beyond the limit came on any rank, everything runs as it is, on every one."""
        is_beyond = any("recompile limit" in text for text in _counters()["unimplemented"])
        if process.count([is_beyond]) == [0]:
            return []
        self.turn_off()
        return [_changing()]

    def _find_breaks(self) -> str | None:
        """More of them than a few in each kind of code; those around blocks are our own."""
        found = {
            text: count for text, count in _counters()["graph_break"].items() if _OWN not in text
        }
        kinds = max(1, count_shapes(self._blocks)) + 1
        total = sum(found.values())
        if total <= _BREAKS * kinds:
            return None
        first = next(iter(found)).partition("\n")[0]
        return f"{total} of them in {kinds} kinds of code, {_BREAKS} in each are allowed: {first}"

    def _region(self, forward: Callable[..., Any], change: Change) -> Region:
        region = Region(forward, change)
        self._regions.append(region)
        return region


def are_alike(blocks: Iterable[Block]) -> bool:
    """Whether there are blocks, and no kind of them comes in many shapes."""
    shapes = _shapes(blocks)
    return bool(shapes) and max(len(known) for known in shapes.values()) <= _SHAPES


def count_shapes(blocks: Iterable[Block]) -> int:
    return sum(len(known) for known in _shapes(blocks).values())


def _shapes(blocks: Iterable[Block]) -> dict[type, set[Any]]:
    shapes: dict[type, set[Any]] = {}
    for _, block in blocks:
        shape = tuple((name, p.shape, p.requires_grad) for name, p in block.named_parameters())
        shapes.setdefault(type(block), set()).add(shape)
    return shapes


def _configure(*, is_deterministic: bool, is_code_kept: bool) -> None:
    import torch._inductor.config as inductor

    if is_code_kept:
        # No processes that compile: they would import torch for seconds, be waited for by
        # `_end_helpers`, and have nothing to do. Code that is gone is compiled here.
        inductor.compile_threads = 1
    import torch._dynamo

    # What an earlier model of this process was compiled for: a size that is new to this one would
    # count as a second size, and get code for any size.
    torch._dynamo.reset()
    _counters().clear()
    dynamo: Any = torch._dynamo.config
    dynamo.suppress_errors = False
    # Splits graphs under DDP only, and only those that are compiled after it wrapped the model.
    dynamo.optimize_ddp = False
    # Otherwise some kernels are chosen by their time, anew in each process (from torch 2.10 on).
    if hasattr(inductor, "deterministic"):
        inductor.deterministic = is_deterministic


def _end_helpers() -> None:
    """End inductor's processes and threads: loader processes are forked next."""
    from torch._inductor import async_compile

    end = getattr(async_compile, "shutdown_compile_workers", None)
    if end is not None:
        end()


def _counters() -> defaultdict[str, Counter[str]]:
    from torch._dynamo.utils import counters

    return counters


def _broken(breaks: str | None) -> Finding:
    return Finding(
        slug="graph-breaks",
        what="`compile` is dropped: the model's code falls apart into pieces",
        why=f"graph breaks in the pass before the first step: {breaks or 'on another rank'}",
        fix="compile=off; TORCH_LOGS=graph_breaks says where they are",
        severity="warning",
    )


def _changing() -> Finding:
    return Finding(
        slug="shapes-change",
        what=f"`compile` is dropped: micro-batches came in more than {_SIZES} shapes",
        why=f"code is made for {_SIZES} shapes of each kind of block, and more were seen",
        fix="compile=off, or pad samples to a few lengths",
        severity="warning",
    )


def _failure(error: Exception | None) -> Finding:
    why = "another rank could not"
    if error is not None:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    return Finding(
        slug="compile-failed",
        what="the model could not be compiled, it trains without",
        why=f"torch.compile in the pass before the first step: {why}",
        fix="compile=off",
        severity="warning",
    )
