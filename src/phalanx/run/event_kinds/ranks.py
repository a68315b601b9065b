"""What ranks write of training."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.errors import Finding
from phalanx.run.event_kinds.fields import since


@dataclass(frozen=True, kw_only=True)
class RankStarted:
    """A rank is ready to train."""

    rank: int
    """rank of the writer; of a launched script: the rank that was started"""
    world: int
    """number of ranks"""
    pid: int
    """process id"""
    device: str
    """where it computes"""
    backend: str
    """how ranks talk, or none"""
    step: int | None
    """optimizer steps already done"""
    resumed_from: str | None
    """checkpoint it loaded, or null"""
    source: str | None = None
    """`launch`: device and backend are those a script takes as a rule; else absent"""


@dataclass(frozen=True, kw_only=True)
class Preparing:
    """Something takes a while before the first step."""

    what: str
    """what takes a while before the first step: compiling, comparing"""


@dataclass(frozen=True, kw_only=True)
class Step:
    """An optimizer step that is logged."""

    step: int | None
    """optimizer steps done"""
    epoch: float | None
    """passes over the data done, with fraction"""
    samples: int | None = None
    """samples consumed since the run began"""
    loss: float | None
    """sum of the terms"""
    terms: dict[str, float]
    """each named term of the loss over the global batch"""
    lr: float | None
    """learning rate of this step"""
    grad_norm: float | None
    """gradient norm before clipping, or null: in fp16 and with DeepSpeed it is found only where
    gradients are clipped"""
    samples_per_s: float | None = None
    """samples per second since the last such event"""
    data_wait: float | None = None
    """share of that time in which the writer waited for samples"""
    memory_bytes: int | None = None
    """peak device memory of the writer, or resident host memory on CPU"""
    alloc_retries: int | None = None
    """how often the device's allocator gave back what it kept and tried again"""
    major_faults: int | None = None
    """pages of the writer that had to be read from disk"""
    loss_scale: float | None = since(None)
    """fp16 loss scale, or null"""
    total_steps: int | None = None
    """how many there will be, where a script's output says so"""
    source: str | None = None
    """`output` or `file`: read from what a launched script printed or wrote; what it does not say
    is null; else absent"""


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """An optimizer step that changed nothing."""

    step: int
    """number of the optimizer step, which changed nothing: the loss or a gradient was not finite;
    in fp16 also while the loss scale is found"""
    epoch: float
    """passes over the data done before it"""
    ids: list[int]
    """samples of its global batch, at most 4096 of them"""
    in_a_row: int
    """so many until here"""
    total: int
    """so many since the run began"""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint is on disk."""

    step: int
    """optimizer steps done"""
    path: str
    """folder relative to the run directory"""
    bytes: int
    """size on disk"""
    seconds: float
    """time training stood still: for the copy to host memory, or for all of it"""
    waited_s: float = since(0.0)
    """of waiting before that, for the checkpoint before to be written"""
    write_s: float = since(0.0)
    """time it took to write, beside training"""
    is_best: bool
    """whether `best` points at it"""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The final model is on disk."""

    step: int
    """optimizer steps of the checkpoint it was made of"""
    path: str
    """folder relative to the run directory"""
    bytes: int
    """size on disk"""
    seconds: float
    """time taken"""


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """An optimization is disabled."""

    rung: str
    """what is off from here on: compile, channels_last or cuda_graph"""
    reason: str
    """the slug of the Finding that says it, and why"""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The fast path agrees with the recipe as it is written."""

    rungs: list[str]
    """what gave the gradients of the recipe as it is written"""


@dataclass(frozen=True, kw_only=True)
class FindingMade:
    """Something a person should know."""

    finding: Finding
    """a Finding: slug, what, why, fix, severity"""


@dataclass(frozen=True)
class MemoryShortage:
    """What an out-of-memory message says; None where it does not."""

    device: str
    tried_bytes: int | None
    free_bytes: int | None
    total_bytes: int | None
    idle_bytes: int | None
    """Held by torch's allocator and not in use: large when memory is fragmented."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A rank or the run ends."""

    status: str
    """finished, stopped, failed or killed"""
    step: int | None
    """optimizer steps done"""
    phase: str | None = None
    """where it failed: start, settle, step, evaluate or save; else absent"""
    from_outside: str | None = None
    """what ended it from outside, so that another start may help: `loader` (a loader process was
    killed), `connection` (to another rank); else absent"""
    memory: MemoryShortage | None = None
    """when memory ran out: device, tried_bytes, free_bytes, total_bytes, idle_bytes; else absent"""
    reason: str
    """in words"""
    findings: list[Finding]
    """what is wrong, when it failed"""
    exit_code: int
    """exit code the command line gives"""
