"""In which precision frozen weights are held."""

from __future__ import annotations

from phalanx.errors import format_bytes
from phalanx.job.schema import Job
from phalanx.planner.memory.shares import weights_of
from phalanx.planner.schema.plan import Decision, Plan
from phalanx.planner.schema.trace import Trace


def choose_frozen_precision(
    job: Job, trace: Trace, precision: str, previous: Plan | None
) -> Decision[str]:
    """`compute` or `full`; a run that goes on keeps what it had, to the bit."""
    word = job.frozen_precision
    if precision not in ("bf16", "fp16"):
        return Decision("full", f"{precision} is what weights are held in")
    if word == "full":
        return Decision("full", "frozen_precision = full: fp32, rounded at every use")
    if previous is not None and word == "auto":
        return Decision(previous.numerics.frozen_precision.value, "kept from the run")
    if trace.frozen_unknown is not None:
        return Decision("full", f"the model does not run otherwise: {trace.frozen_unknown}")
    narrow = [w for w in weights_of(trace) if w.may_be_narrow(precision)]
    if not narrow:
        return Decision("full", "no linear layer, embedding or convolution is frozen")
    count = sum(weight.elements for weight in narrow)
    size = sum(weight.elements * weight.itemsize for weight in narrow)
    return Decision(
        "compute",
        f"{word}: {count:,} frozen weights take {format_bytes(size // 2)} in {precision}, "
        f"{format_bytes(size)} in fp32 with a cast at every use",
    )


def frozen_by_deepspeed(precision: str) -> Decision[str]:
    """What DeepSpeed does by itself."""
    if precision not in ("bf16", "fp16"):
        return Decision("full", f"{precision} is what weights are held in")
    return Decision(
        "compute", f"DeepSpeed holds all weights in {precision}, and fp32 copies of what learns"
    )
