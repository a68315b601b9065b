"""Facts about strategies in one table: the planner decides by them, engine classes have them.

Compare by name only where a person named the strategy: the job, messages, and building the class.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StrategyFacts:
    """Facts that hold for every run under a strategy."""

    name: str
    is_for_one_rank: bool = False
    """One rank, without collectives."""
    is_sharded: bool = False
    """The ranks hold different parts of the state, so all of them save."""
    is_lockstep: bool = False
    """Forward and backward wait for the other ranks: every rank runs equally many of them, and one
    that has run out of micro-batches repeats one with a zero objective."""
    has_zero_stages: bool = False
    """ZeRO's stage says what is spread over the ranks."""
    has_shard_groups: bool = False
    """Groups of ranks may share one copy each, and the model may be built in parts."""
    has_half_weights: bool = False
    """Under bf16 and fp16 the model's own parameters have 16 bits, frozen ones too; the optimizer
    updates fp32 weights beside them."""
    has_gradient_buffers: bool = False
    """Memory for all gradients is there before backward begins."""
    has_ddp_wrapper: bool = False
    """torch's DistributedDataParallel wraps the loss and reduces gradients."""
    can_hold_gradients: bool = False
    """Backward can leave gradients on their rank, so that the reduction can be timed."""
    takes_channels_last: bool = False
    takes_compile: bool = True
    takes_cuda_graphs: bool = False


STRATEGIES = {
    facts.name: facts
    for facts in (
        StrategyFacts(
            "single",
            is_for_one_rank=True,
            takes_channels_last=True,
            takes_cuda_graphs=True,
        ),
        StrategyFacts(
            "ddp",
            has_gradient_buffers=True,
            has_ddp_wrapper=True,
            can_hold_gradients=True,
            takes_channels_last=True,
        ),
        StrategyFacts("fsdp", is_sharded=True, is_lockstep=True, has_shard_groups=True),
        StrategyFacts(
            "deepspeed",
            is_sharded=True,
            is_lockstep=True,  # gradients are reduced in backward, and at stage 3 weights gathered
            has_zero_stages=True,
            has_half_weights=True,
            has_gradient_buffers=True,
            takes_compile=False,
        ),
        # How `single` and `ddp` run with `determinism: exact`.
        StrategyFacts("exact", has_gradient_buffers=True),
    )
}


def facts_of(strategy: str, determinism: str = "fast") -> StrategyFacts:
    """Return the facts about a strategy that has been chosen, as it runs with a determinism."""
    return STRATEGIES["exact" if determinism == "exact" else strategy]
