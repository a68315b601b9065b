"""How the ranks share the work: who holds which part of the weights and of the optimizer state."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.errors import Finding, format_bytes, name_some
from phalanx.job.schema import Job
from phalanx.job.strategies import facts_of
from phalanx.machine import Machine
from phalanx.planner.memory.budget import describe_room, room_for
from phalanx.planner.memory.deepspeed import choose_zero_offload
from phalanx.planner.memory.prediction import least_bytes, smallest_memory
from phalanx.planner.memory.shares import state_bytes
from phalanx.planner.schema.placement import Placement
from phalanx.planner.schema.plan import FSDP_OFFLOAD, Decision
from phalanx.planner.schema.trace import Trace

_SLOW = "slow: copies to the host and the update there are guessed, not measured"
_HOST_SHARE = 0.5  # of the host's memory that models built whole on every rank may take


@dataclass(frozen=True)
class StrategyChoice:
    """The strategy and what belongs to it."""

    strategy: Decision[str]
    shard_ranks: Decision[int]
    build: Decision[str]
    offload: Decision[str | None]


def choose_strategy(
    job: Job, placement: Placement, machine: Machine, trace: Trace, precision: str
) -> tuple[StrategyChoice, list[Finding]]:
    """The strategy for a number of ranks, and what speaks against it."""
    ranks, device = placement.ranks.value, placement.device.value
    node_ranks = placement.node_ranks
    needs = _Needs(job, placement, machine, trace, precision)
    strategy, offload = _choose(job, ranks, needs)
    shard_ranks, findings = _choose_shard_ranks(job, strategy.value, ranks, node_ranks)
    if strategy.value == "fsdp" and device == "mps":
        findings.append(_fsdp_on_mps(job))
    build = _choose_build(job, strategy.value, node_ranks, machine, trace)
    return StrategyChoice(strategy, shard_ranks, build, offload), findings


@dataclass(frozen=True)
class _Needs:
    """What a rank needs of its GPU with the smallest micro-batch, by how the state is kept."""

    job: Job
    placement: Placement
    machine: Machine
    trace: Trace
    precision: str

    @property
    def _there(self) -> int | None:
        if self.job.determinism == "exact":  # has one way
            return None
        return smallest_memory(self.placement.cards)

    def too_large_for_ddp(self) -> str | None:
        """Why a rank cannot hold the whole model; None when it can."""
        there, ranks = self._there, self.placement.ranks.value
        if there is None:
            return None
        needed = self._least("ddp")
        if needed <= room_for(there, ranks):
            return None
        count = "two samples" if self.trace.has_batchnorm else "one sample"
        return (
            f"{format_bytes(needed)} with {count} at a time on every rank, more than "
            f"{describe_room(there, ranks)}"
        )

    def only_offloaded(self) -> tuple[str, str] | None:
        """Why the state has to be kept in host memory, and what that takes; None when the job runs
        without, or not even with it. It is slow, and so for jobs that would be refused: one that
        only leaves less room than it should stays on its GPUs."""
        there, ranks = self._there, self.placement.ranks.value
        if there is None or self.placement.device.value != "cuda":
            return None
        shards = self.job.fsdp.shard_ranks or self.placement.node_ranks
        if ranks % shards:
            return None
        # Blocks run again in backward only where the job leaves that open.
        can_recompute = self.job.activation_checkpointing != "off"
        others = ["ddp", "fsdp"] if ranks > 1 else ["single"]
        least = {
            name: self._least(name, shards if name == "fsdp" else 1, is_checkpointed=can_recompute)
            for name in others
        }
        if min(least.values()) <= there:
            return None
        left = self._least("fsdp", shards, FSDP_OFFLOAD, is_checkpointed=can_recompute)
        kept = ranks // shards * state_bytes(self.job, self.trace, self.precision)
        hosts = self.machine.nodes * self.machine.memory.total_bytes
        if left > room_for(there, ranks=2) or kept > hosts:
            return None
        without = " and ".join(f"{name} {format_bytes(size)}" for name, size in least.items())
        return (
            f"with the smallest micro-batch {without} are needed, the smallest GPU has "
            f"{format_bytes(there)}",
            f"{format_bytes(left)} are needed on a GPU instead of "
            f"{format_bytes(min(least.values()))}; the state takes {format_bytes(kept)} of "
            f"{format_bytes(hosts)} host memory",
        )

    def _least(
        self,
        strategy: str,
        shards: int = 1,
        offload: str | None = None,
        *,
        is_checkpointed: bool = True,
    ) -> int:
        return least_bytes(
            self.job,
            self.trace,
            self.precision,
            strategy,
            self.placement.cards,
            shards,
            offload,
            is_checkpointed=is_checkpointed,
        )


def _choose(job: Job, ranks: int, needs: _Needs) -> tuple[Decision[str], Decision[str | None]]:
    """The strategy, and what is kept in host memory under it."""
    asked, wish = job.strategy, job.fsdp.offload
    if asked == "deepspeed":
        return Decision("deepspeed", "strategy = deepspeed"), choose_zero_offload(job)
    offloaded: Decision[str | None] = Decision(
        FSDP_OFFLOAD, "fsdp.offload = true: less device memory, slower steps"
    )
    if asked == "fsdp" and wish is True:
        text = "strategy = fsdp, with the state in host memory (fsdp.offload)"
        return Decision("fsdp", text), offloaded
    found = needs.only_offloaded() if asked in ("auto", "fsdp") and wish is not False else None
    if found is not None:
        why, takes = found
        if wish == "auto":
            offloaded = Decision(FSDP_OFFLOAD, f"fsdp.offload = auto: {takes}; {_SLOW}")
        text = f"strategy = {asked}, with the state in host memory: {why}"
        return Decision("fsdp", text), offloaded
    strategy = _choose_on_device(job, ranks, needs)
    if strategy.value == "fsdp" and wish is True:
        return strategy, offloaded
    return strategy, Decision(None, "nothing is kept in host memory")


def _choose_on_device(job: Job, ranks: int, needs: _Needs) -> Decision[str]:
    asked = job.strategy
    if ranks == 1:
        why = f" (strategy = {asked} has nothing to share)" if asked in ("ddp", "fsdp") else ""
        return Decision("single", f"one rank{why}")
    if asked != "auto":
        return Decision(asked, f"strategy = {asked}")
    if (too_large := needs.too_large_for_ddp()) is not None:
        return Decision("fsdp", f"auto: ddp would need {too_large}")
    return Decision("ddp", f"the simplest strategy for {ranks} ranks")


def _choose_shard_ranks(
    job: Job, strategy: str, ranks: int, node_ranks: int
) -> tuple[Decision[int], list[Finding]]:
    facts = facts_of(strategy)
    if not facts.is_sharded:
        return Decision(1, f"{strategy} holds the whole model on every rank"), []
    if not facts.has_shard_groups:
        return Decision(ranks, f"ZeRO spreads over all {ranks} ranks"), []
    asked = job.fsdp.shard_ranks
    if asked is None and node_ranks < ranks:
        text = f"the {node_ranks} ranks of a node share one copy: only gradients cross the network"
        return Decision(node_ranks, text), []
    if asked is None:
        return Decision(ranks, f"all {ranks} ranks of this node share one copy"), []
    copies = ranks // asked
    decision = Decision(asked, f"fsdp.shard_ranks = {asked}: {copies} copies of the state")
    if ranks % asked == 0:
        return decision, []
    fitting = [n for n in range(1, ranks + 1) if ranks % n == 0]
    return decision, [
        Finding(
            slug="fsdp-shard-ranks",
            what=f"{ranks} ranks cannot be divided into groups of {asked}",
            why=f"fsdp.shard_ranks = {asked}; {ranks} ranks are used",
            fix=f"fsdp.shard_ranks={max(n for n in fitting if n <= max(asked, 1))}",
        )
    ]


def _fsdp_on_mps(job: Job) -> Finding:
    return Finding(
        slug="fsdp-on-mps",
        what="FSDP does not run on Apple's MPS",
        why=f"strategy = {job.strategy}, fsdp.offload = {str(job.fsdp.offload).lower()}; torch "
        "has no collectives between MPS devices, and one device has nothing to share",
        fix="strategy=single",
    )


def _choose_build(
    job: Job, strategy: str, ranks: int, machine: Machine, trace: Trace
) -> Decision[str]:
    facts = facts_of(strategy)
    if not facts.is_sharded:
        return Decision("whole", f"{strategy} holds the whole model anyway")
    if not facts.has_shard_groups:
        return Decision("whole", "built by every rank in host memory, then handed to DeepSpeed")
    if job.fsdp.build != "auto":
        return Decision(job.fsdp.build, f"fsdp.build = {job.fsdp.build}")
    needed, there = trace.parameter_bytes * ranks, machine.memory.total_bytes
    text = (
        f"{ranks} ranks x {format_bytes(trace.parameter_bytes)} of weights, "
        f"{format_bytes(there)} of host memory"
    )
    if needed <= _HOST_SHARE * there:
        return Decision("whole", f"built by every rank in host memory: {text}")
    return Decision("parts", f"one tensor at a time: {text}")


def choose_sync_batchnorm(
    job: Job, *, ranks: int, trace: Trace
) -> tuple[Decision[bool], list[Finding]]:
    """True if BatchNorm computes its statistics over all ranks."""
    asked = f"sync_batchnorm = {str(job.sync_batchnorm).lower()}"
    if not trace.has_batchnorm:
        decision = Decision(False, "the model has no BatchNorm")
        return decision, [_nothing_to_synchronise(asked)] if job.sync_batchnorm else []
    if not job.sync_batchnorm:
        return Decision(False, f"{asked}: statistics are those of one micro-batch"), []
    if ranks == 1:
        return Decision(False, f"{asked}, but one rank has nothing to synchronise"), []
    decision = Decision(
        True,
        f"{asked}: statistics over the micro-batches that {ranks} ranks run at the same time; "
        "every forward and backward waits for all of them",
    )
    return decision, [_own_norms(asked, trace.own_batchnorms)] if trace.own_batchnorms else []


def _nothing_to_synchronise(asked: str) -> Finding:
    return Finding(
        slug="ignored-key",
        what="`sync_batchnorm` = true is ignored: the model has no BatchNorm",
        why=f"{asked}; other norms take no statistics over samples",
        fix="remove `sync_batchnorm`",
        severity="warning",
    )


def _own_norms(asked: str, names: list[str]) -> Finding:
    return Finding(
        slug="own-batchnorm",
        what=f"{len(names)} BatchNorm modules cannot be synchronised: {name_some(names)}",
        why=f"{asked}; their class has a forward of its own, which would be lost",
        fix="use torch's nn.BatchNorm there, or sync_batchnorm=false",
    )
