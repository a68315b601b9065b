"""What needs memory on a rank, and whether activations are recomputed to save some."""

from __future__ import annotations

from phalanx.errors import Finding
from phalanx.job.schema import Job
from phalanx.planner.plan import Decision
from phalanx.planner.trace import Trace


def choose_activation_checkpointing(job: Job, trace: Trace) -> tuple[Decision[bool], list[Finding]]:
    """Whether blocks keep their inputs only and run again in backward."""
    asked = f"activation_checkpointing = {job.activation_checkpointing}"
    if trace.num_blocks == 0:
        is_asked = job.activation_checkpointing == "on"
        findings = [_no_blocks(asked)] if is_asked else []
        return Decision(False, f"{asked}; the model has no repeated part"), findings
    blocks = f"{trace.num_blocks} blocks"
    if job.activation_checkpointing == "on":
        return Decision(True, f"{asked}: {blocks} run their forward again in backward"), []
    return Decision(False, f"{asked}: {blocks} keep what backward needs"), []


def _no_blocks(asked: str) -> Finding:
    return Finding(
        slug="no-blocks",
        what=f"{asked} changes nothing: the model has 0 blocks, it needs 1 or more",
        why="the recipe names none, and no nn.ModuleList or nn.Sequential of the model holds "
        "several modules of one kind that have weights and parts of their own",
        fix="name them in the recipe: `def blocks(self, model): return list(model.layers)`",
        severity="warning",
    )
