"""The `Plan`: what will be done, every choice a value with its reason. The ranks read it frozen."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

from phalanx.job.strategies import facts_of
from phalanx.planner.schema.footprint import Footprint
from phalanx.planner.schema.forecast import Forecast
from phalanx.planner.schema.micro_batches import BatchPlan

SCHEMA_VERSION = 1
FSDP_OFFLOAD = "state"
"""What a plan says that FSDP keeps in host memory: weights, gradients and optimizer state."""

T = TypeVar("T")


@dataclass(frozen=True)
class Decision(Generic[T]):
    """A choice and why it was made."""

    value: T
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything the ranks need to know beyond the job file."""

    schema_version: int = SCHEMA_VERSION
    revision: int = 0

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
    precision: Decision[str]
    """`fp32`, `tf32`, `bf16`, `fp16` or `fp64`."""
    frozen_precision: Decision[str] = Decision("full", "fp32, as everything else")
    """`full` or `compute`: whether frozen weights are held in fp32 or in `precision`."""
    determinism: Decision[str]
    """`resume` or `fast`."""
    sync_batchnorm: Decision[bool] = Decision(False, "sync_batchnorm = false")
    """True if BatchNorm computes its statistics over all ranks."""
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

    lr: Decision[float]
    """Peak learning rate after scaling."""
    warmup_steps: Decision[int]
    """Steps of linear rise."""
    ema: Decision[float | None] = Decision(None, "ema.decay = null")
    """Decay of the average of the weights; None: no average."""
    workers: Decision[int]
    """Loader processes per rank."""
    pin_memory: Decision[bool]
    """Page-locked host memory."""
    data_on: Decision[str] = Decision("host", "the data is not arrays in memory (Tensors)")
    """`host` or `device`: where arrays in memory are kept, and gathered into micro-batches."""
    cache: Decision[str] = Decision("off", "loader.cache = off")
    """`off` or `ram`: whether samples are made once and kept in memory."""

    evaluate_every: Decision[int | None]
    """Steps between evaluations; None: only at the end."""
    evaluate_batch_size: Decision[int]
    """Samples per forward in evaluation."""
    metric: Decision[str]
    """The metric that decides what is best."""
    metric_mode: Decision[str]
    """`max` or `min`."""
    save_every_steps: Decision[int | None]
    """Steps between checkpoints, when counted in steps."""
    save_every_s: Decision[float | None]
    """Seconds between checkpoints, when counted in minutes."""
    save_share: Decision[float | None] = Decision(None, "as often as checkpoint.every says")
    """How much of the time training may stand still for checkpoints; None: as it comes."""
    save_in_background: Decision[str] = Decision("off", "checkpoint.background = off")
    """`on` or `off`: whether checkpoints are written while training goes on."""

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
    worker_env: dict[str, str]
    """Environment variables the ranks get."""
    environment: dict[str, str] = field(default_factory=dict)
    """NCCL_*, GLOO_* and TORCH_* that the user has set, which reach the ranks as they are."""
    resume_from: str | None = None
    """Checkpoint of another run to continue from, when this run has none of its own."""
    stated_batch: dict[str, int | None]
    """How the job that began the run stated its batch; the global batch itself is frozen."""
    has_batchnorm: bool = False
    """Whether the micro-batch changes what the model computes."""
    num_blocks: int = 0
    """Repeated parts of the model."""
    may_recompute: bool = False
    """Whether activation checkpointing may be turned on when memory runs out: there are blocks, and
    the job leaves it open."""
    footprint: Footprint | None = None
    """What memory is predicted from."""
    forecast: Forecast | None = None
    """Predicted time by part, with its interval."""
    speedup_range: list[float] = field(default_factory=list)
    """The least and the most that the speed-up may be."""
    alternatives: list[dict[str, Any]] = field(default_factory=list)
    """What else was considered, and why it lost."""
    device_bytes: int | None = None
    """Memory of the smallest GPU; None without CUDA."""
    device_data_bytes: int = 0
    """Arrays that are kept on the device with `data_on: device`."""
    cache_bytes: int = 0
    """What samples kept in memory may take on each machine, with `cache: ram`."""
    is_test_cached: bool = False
    """Whether those of the test split are kept too."""
    shrunk: dict[str, int] = field(default_factory=dict)
    """Sizes cut because a rank ran out of memory, each with the value from before the first cut."""
    is_code_kept: bool = False
    """Whether this machine has compiled code for the same job before."""
    is_from_memory: bool = False
    """Whether the recipe was not asked for it: the ranks look whether its data is as it was."""
    is_recorded: bool = False
    """Whether the ranks write down what they compute, for `verify`; such a run saves nothing."""
    has_dropout: bool = True
    """False: a recorded run disables dropout, whose masks follow the micro-batches."""
    measured_micro_batches: list[int] | None = None
    """Micro-batches that the ranks measure instead of training, for `bench`; empty: only the
    machine. None: they train."""
    evaluated: str | None = None
    """The file whose model the ranks evaluate instead of training, for `evaluate`."""
    identity: dict[str, Any]
    """What must be the same to resume this run: recipe, options, data, seed, batch, optimizer."""

    @property
    def batch(self) -> BatchPlan:
        return BatchPlan(
            num_samples=self.num_samples.value,
            global_batch_size=self.global_batch_size.value,
            micro_batch_size=self.micro_batch_size.value,
        )

    @property
    def is_detail_too_much(self) -> bool:
        """Whether TORCH_DISTRIBUTED_DEBUG=DETAIL would end the ranks: DDP takes the group that it
        wraps gloo in for gloo itself, and crashes (torch 2.13, Logger::set_env_variables)."""
        return self.backend.value == "gloo" and facts_of(self.strategy.value).has_ddp_wrapper

    def decisions(self) -> dict[str, Decision[Any]]:
        """Every choice by name, in the order they are shown."""
        pairs = ((known.name, getattr(self, known.name)) for known in fields(self))
        return {name: value for name, value in pairs if isinstance(value, Decision)}

    def to_json(self) -> dict[str, Any]:
        record: dict[str, Any] = {}
        for known in fields(self):
            value = getattr(self, known.name)
            if isinstance(value, Decision):
                value = {"value": value.value, "reason": value.reason}
            elif isinstance(value, (Footprint, Forecast)):
                value = value.to_json()
            record[known.name] = value
        return record

    def to_short_json(self) -> dict[str, Any]:
        """Every choice, without what predictions are made of and what the machine had set."""
        left_out = ("footprint", "forecast", "alternatives", "environment")
        return {name: value for name, value in self.to_json().items() if name not in left_out}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Plan:
        plain = {
            "schema_version",
            "revision",
            "worker_env",
            "environment",
            "resume_from",
            "stated_batch",
            "has_batchnorm",
            "num_blocks",
            "may_recompute",
            "device_bytes",
            "device_data_bytes",
            "cache_bytes",
            "is_test_cached",
            "shrunk",
            "alternatives",
            "speedup_range",
            "is_code_kept",
            "is_from_memory",
            "is_recorded",
            "has_dropout",
            "measured_micro_batches",
            "evaluated",
            "identity",
        }
        known = {field.name for field in fields(cls)}
        if record.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"plan format {record.get('schema_version')}, known: {SCHEMA_VERSION}")
        values: dict[str, Any] = {
            name: value if name in plain else Decision(value["value"], value["reason"])
            for name, value in record.items()
            if name in known and name not in ("footprint", "forecast")
        }
        if record.get("footprint") is not None:
            values["footprint"] = Footprint.from_json(record["footprint"])
        if record.get("forecast") is not None:
            values["forecast"] = Forecast.from_json(record["forecast"])
        return cls(**values)

    def digest(self) -> str:
        """Hash by which the ranks make sure that they read the same plan."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()
