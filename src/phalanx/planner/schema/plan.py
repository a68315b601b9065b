"""The `Plan`: what will be done, every choice a value with its reason. The ranks read it frozen.

It falls into sections. The name of a field is in one section only: people and files name a choice
by it alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, Generic, TypeVar, get_type_hints

from phalanx import codec
from phalanx.job.strategies import facts_of
from phalanx.planner.schema.footprint import Footprint
from phalanx.planner.schema.forecast import Forecast
from phalanx.planner.schema.micro_batches import BatchPlan

SCHEMA_VERSION = 2
FSDP_OFFLOAD = "state"
"""What a plan says that FSDP keeps in host memory: weights, gradients and optimizer state."""

T = TypeVar("T")


@dataclass(frozen=True)
class Decision(Generic[T]):
    """A choice and why it was made."""

    value: T
    reason: str


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """What was considered and not chosen."""

    choice: str
    """As a key of the job: `compile=off`."""
    samples_per_s: float | None
    memory_bytes: int | None
    why_not: str


@dataclass(frozen=True, kw_only=True)
class RankDevices:
    """Where the ranks are, and what their processes get."""

    device: Decision[str]
    """`cuda`, `mps` or `cpu`."""
    gpus: Decision[list[int]]
    """GPU ids as CUDA numbers them under CUDA_VISIBLE_DEVICES; empty without CUDA."""
    ranks: Decision[int]
    """Processes that train together."""
    nodes: Decision[int] = Decision(1, "one machine")
    """Machines that the ranks are on, the same number on each."""
    backend: Decision[str]
    """`nccl`, `gloo`, or `none` on one rank."""
    comm_timeout_s: Decision[float] = Decision(600.0, "as torch's own for NCCL")
    """Seconds that a rank waits for the others in an exchange."""
    device_bytes: int | None = None
    """Memory of the smallest GPU; None without CUDA."""
    worker_env: dict[str, str]
    """Environment variables the ranks get."""
    environment: dict[str, str] = field(default_factory=dict)
    """NCCL_*, GLOO_* and TORCH_* that the user has set, which reach the ranks as they are."""


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How the ranks share the model."""

    strategy: Decision[str]
    """`single`, `ddp`, `fsdp` or `deepspeed`."""
    shard_ranks: Decision[int] = Decision(1, "every rank holds the whole model")
    """Ranks that share one copy of the weights and the optimizer state."""
    build: Decision[str] = Decision("whole", "every rank holds the whole model")
    """`whole` or `parts`: how the model gets its first weights."""
    zero_stage: Decision[int | None] = Decision(None, "no DeepSpeed")
    """1, 2 or 3: how much DeepSpeed's ZeRO spreads over the ranks."""
    offload: Decision[str | None] = Decision(None, "nothing is kept in host memory")
    """What is kept in host memory: `optimizer`, `weights` or both by DeepSpeed, `state`, which is
    all, by FSDP."""


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """What decides about the bits of a result, the batch aside."""

    precision: Decision[str]
    """`fp32`, `tf32`, `bf16`, `fp16` or `fp64`."""
    frozen_precision: Decision[str] = Decision("full", "fp32, as everything else")
    """`full` or `compute`: whether frozen weights are held in fp32 or in `precision`."""
    determinism: Decision[str]
    """`resume` or `fast`."""
    sync_batchnorm: Decision[bool] = Decision(False, "sync_batchnorm = false")
    """True if BatchNorm computes its statistics over all ranks."""
    has_batchnorm: bool = False
    """Whether the micro-batch changes what the model computes."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a rank runs a step: less memory, or faster kernels."""

    activation_checkpointing: Decision[bool] = Decision(False, "activation_checkpointing = off")
    """Whether blocks keep their inputs only and run again in backward."""
    compile: Decision[str] = Decision("off", "compile = off")
    """`on` or `off`: whether torch.compile makes kernels for the model."""
    channels_last: Decision[str] = Decision("off", "channels_last = off")
    """`on` or `off`: whether images and convolutions have their channels last in memory."""
    cuda_graph: Decision[str] = Decision("off", "cuda_graph = off")
    """`on` or `off`: whether a whole step is recorded and repeated by CUDA."""
    cudnn_search: Decision[str] = Decision("off", "cudnn_search = off")
    """`on` or `off`: whether cuDNN tries its kernels out for each size it meets."""
    compared_with_eager: Decision[bool] = Decision(False, "nothing is faster than as written")
    """Whether gradients of the fast path are held against those of the recipe as it is written,
    before the first step."""
    threads: Decision[int]
    """CPU threads inside an operator, per rank. Kept on resume: it changes the last bits."""
    num_blocks: int = 0
    """Repeated parts of the model."""
    may_recompute: bool = False
    """Whether activation checkpointing may be turned on when memory runs out: there are blocks, and
    the job leaves it open."""
    is_code_kept: bool = False
    """Whether this machine has compiled code for the same job before."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How many samples a step sees, how they are cut, and how many steps there are."""

    num_samples: Decision[int]
    """Samples in the train split."""
    num_test_samples: Decision[int]
    """Samples in the test split."""
    global_batch_size: Decision[int]
    """Samples per optimizer step."""
    micro_batch_size: Decision[int]
    """Samples per forward on one rank, at most."""
    accumulation: Decision[int]
    """Micro-batches the busiest rank adds up per step."""
    steps_per_epoch: Decision[int]
    """Rounded up: an epoch sees every sample once."""
    total_steps: Decision[int]
    """Optimizer steps of the whole run."""


@dataclass(frozen=True, kw_only=True)
class Learning:
    """Learning rate and average of the weights."""

    lr: Decision[float]
    """Peak learning rate after scaling."""
    warmup_steps: Decision[int]
    """Steps of linear rise."""
    ema: Decision[float | None] = Decision(None, "ema.decay = null")
    """Decay of the average of the weights; None: no average."""


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How samples are fetched, and where they are kept."""

    workers: Decision[int]
    """Loader processes per rank."""
    pin_memory: Decision[bool]
    """Page-locked host memory."""
    data_on: Decision[str] = Decision("host", "the data is not arrays in memory (Tensors)")
    """`host` or `device`: where arrays in memory are kept, and gathered into micro-batches."""
    cache: Decision[str] = Decision("off", "loader.cache = off")
    """`off` or `ram`: whether samples are made once and kept in memory."""
    device_data_bytes: int = 0
    """Arrays that are kept on the device with `data_on: device`."""
    cache_bytes: int = 0
    """What samples kept in memory may take on each machine, with `cache: ram`."""
    is_test_cached: bool = False
    """Whether those of the test split are kept too."""
    is_from_memory: bool = False
    """Whether the recipe was not asked for it: the ranks look whether its data is as it was."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """When and how the test split is evaluated."""

    evaluate_every: Decision[int | None]
    """Steps between evaluations; None: only at the end."""
    evaluate_batch_size: Decision[int]
    """Samples per forward in evaluation."""
    metric: Decision[str]
    """The metric that decides what is best."""
    metric_mode: Decision[str]
    """`max` or `min`."""


@dataclass(frozen=True, kw_only=True)
class Saving:
    """When and how checkpoints are written."""

    save_every_steps: Decision[int | None]
    """Steps between checkpoints, when counted in steps."""
    save_every_s: Decision[float | None]
    """Seconds between checkpoints, when counted in minutes."""
    save_share: Decision[float | None] = Decision(None, "as often as checkpoint.every says")
    """How much of the time training may stand still for checkpoints; None: as it comes."""
    save_in_background: Decision[str] = Decision("off", "checkpoint.background = off")
    """`on` or `off`: whether checkpoints are written while training goes on."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Time and memory as predicted, and what they are predicted from."""

    speedup: Decision[float]
    """Expected speed-up over one rank."""
    parameters: Decision[int]
    """Parameters of the model."""
    memory_bytes: Decision[int | None] = Decision(None, "not predicted")
    """Predicted peak on one rank."""
    process_bytes: Decision[int | None] = Decision(None, "not predicted")
    """The same as the driver shows it: what fragments, the context and the libraries included."""
    step_s: Decision[float | None] = Decision(None, "not predicted")
    """Predicted seconds of an optimizer step."""
    samples_per_s: Decision[float | None] = Decision(None, "not predicted")
    """Predicted throughput of all ranks."""
    duration_s: Decision[float | None] = Decision(None, "not predicted")
    """Predicted seconds of the whole run."""
    energy_kwh: Decision[float | None] = Decision(None, "not predicted")
    """Predicted energy of the GPUs, at most."""
    speedup_range: list[float] = field(default_factory=list)
    """The least and the most that the speed-up may be."""
    footprint: Footprint | None = None
    """What memory is predicted from."""
    forecast: Forecast | None = None
    """Predicted time by part, with its interval."""
    alternatives: list[Alternative] = field(default_factory=list)
    """What else was considered, and why it lost."""


@dataclass(frozen=True, kw_only=True)
class History:
    """How the run began, for those that resume it."""

    identity: dict[str, Any]
    """What must be the same to resume this run: recipe, options, data, seed, batch, optimizer."""
    stated_batch: dict[str, int | None]
    """How the job that began the run stated its batch; the global batch itself is frozen."""
    resume_from: str | None = None
    """Checkpoint of another run to continue from, when this run has none of its own."""
    shrunk: dict[str, int] = field(default_factory=dict)
    """Sizes cut because a rank ran out of memory, each with the value from before the first cut."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything the ranks need to know beyond the job file."""

    schema_version: int = SCHEMA_VERSION
    revision: int = 0
    devices: RankDevices
    parallel: Parallel
    numerics: Numerics
    execution: Execution
    batch: Batch
    learning: Learning
    loading: Loading
    evaluation: Evaluation
    saving: Saving
    predicted: Predicted
    history: History

    @property
    def micro_batches(self) -> BatchPlan:
        """Which samples each step sees, and who gets which."""
        return BatchPlan(
            num_samples=self.batch.num_samples.value,
            global_batch_size=self.batch.global_batch_size.value,
            micro_batch_size=self.batch.micro_batch_size.value,
        )

    @property
    def is_detail_too_much(self) -> bool:
        """Whether TORCH_DISTRIBUTED_DEBUG=DETAIL would end the ranks: DDP takes the group that it
        wraps gloo in for gloo itself, and crashes (torch 2.13, Logger::set_env_variables)."""
        return (
            self.devices.backend.value == "gloo"
            and facts_of(self.parallel.strategy.value).has_ddp_wrapper
        )

    def decisions(self) -> dict[str, Decision[Any]]:
        """Every choice by name, in the order they are shown."""
        pairs = (
            (known.name, getattr(section, known.name))
            for section in self._sections()
            for known in fields(section)
        )
        return {name: value for name, value in pairs if isinstance(value, Decision)}

    def replace(self, **values: Any) -> Plan:
        """Return the plan with other values, by the names of fields in whatever section."""
        changes: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            changes.setdefault(_field_sections()[name], {})[name] = value
        sections = {
            section: replace(getattr(self, section), **changed)
            for section, changed in changes.items()
            if section
        }
        return replace(self, **sections, **changes.get("", {}))

    def _sections(self) -> Iterator[Any]:
        values = (getattr(self, known.name) for known in fields(self))
        return (value for value in values if is_dataclass(value))

    def to_json(self) -> dict[str, Any]:
        record: dict[str, Any] = codec.to_json(self)
        return record

    def to_short_json(self) -> dict[str, Any]:
        """Every choice, without what predictions are made of and what the machine had set."""
        left_out: dict[str, Any] = {
            "footprint": None,
            "forecast": None,
            "alternatives": [],
            "environment": {},
        }
        return self.replace(**left_out).to_json()

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Plan:
        """Read a plan of this schema or of an earlier one; raises ValueError where it is none."""
        version = record.get("schema_version")
        if version == 1:
            record = _in_sections(record)
        elif version != SCHEMA_VERSION:
            raise ValueError(f"plan format {version}, known: {SCHEMA_VERSION}")
        return codec.from_json(cls, record)

    def digest(self) -> str:
        """Hash by which the ranks make sure that they read the same plan."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()


def _in_sections(record: dict[str, Any]) -> dict[str, Any]:
    """A plan of schema 1, which had no sections."""
    sections: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    for name, section in _field_sections().items():
        place = sections.setdefault(section, {}) if section else sections
        if name in record and name != "schema_version":
            place[name] = record[name]
    return sections


@cache
def _field_sections() -> dict[str, str]:
    """The section of each field, "" for those of the plan itself."""
    hints = get_type_hints(Plan)
    sections = {known.name: hints[known.name] for known in fields(Plan)}
    found = {name: "" for name, kind in sections.items() if not is_dataclass(kind)}
    for section, kind in sections.items():
        if is_dataclass(kind):
            found.update({known.name: section for known in fields(kind)})
    return found
