"""The `Trace`: what the recipe's model and data are, found by the engine in a child process."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from phalanx.errors import Finding
from phalanx.planner.schema.footprint import Line
from phalanx.planner.schema.operators import Operator

EAGER = ("fp32", "bf16")
"""Precisions that a recipe is traced in, unless a plan says which it needs
(planner/trace_precisions.py)."""


class Weight(NamedTuple):
    """One parameter of the model."""

    shape: tuple[int, ...]
    itemsize: int
    learns: bool = True
    group: int | None = 0
    """The optimizer's group; None when the optimizer does not get it."""
    block: int | None = None
    """The repeated part that it is in."""
    is_floating: bool = True
    held: str = ""
    """`half` where it is frozen and may be held in 16 bits under bf16 and fp16, `bf16` where that
    is so under bf16 only."""

    def may_be_narrow(self, precision: str) -> bool:
        """Whether it may be held in 16 bits."""
        return (self.held == "half" and precision in ("bf16", "fp16")) or self.held == precision

    @property
    def elements(self) -> int:
        return prod(self.shape)


class FetchTime(NamedTuple):
    """Seconds that a batched fetch takes on this machine: some for the call, some per sample."""

    fixed_s: float
    per_sample_s: float

    def at(self, samples: int) -> float:
        return self.fixed_s + self.per_sample_s * samples


class KeptSample(NamedTuple):
    """What `loader.cache` keeps of a sample."""

    what: str
    """`load`, what the data set's load(index) returns, or `sample`, all of it."""
    num_bytes: int
    """In memory, on average over a few."""
    has_origin: bool = False
    """Whether the data set says what a sample comes from, so that it can be kept on disk."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Facts about a recipe with its options, all that planning needs of it."""

    schema_version: int = 1
    recipe_fingerprint: str
    """Hash of the recipe's source files."""
    options: dict[str, Any]
    """The recipe's options with defaults filled in."""
    num_samples: int
    num_test_samples: int
    data_fingerprint: str
    """Hash of the sizes and of a few samples: another data set has another one."""
    parameters: int
    trainable_parameters: int
    parameter_bytes: int
    trainable_bytes: int | None = None
    has_batchnorm: bool
    own_batchnorms: list[str] = field(default_factory=list)
    """Those with a forward of their own, which cannot be synchronised."""
    num_blocks: int = 0
    """Repeated parts of the model, which can be checkpointed, sharded and compiled one by one."""
    largest_block_bytes: int = 0
    """Weights of the largest of them."""
    outside_bytes: int = 0
    """Weights in none of them."""
    block_kinds: int = 0
    """Kinds of them that code is made for, where they are compiled one at a time; 0 where the model
    is compiled whole."""
    convolutions: int = 0
    """2-D convolutions, also in groups of channels."""
    varying_shapes: str | None = None
    """How micro-batches of the same number of samples differ in shape, where they do."""
    weights: list[Weight] = field(default_factory=list)
    """Every parameter: in the order in which the optimizer gets them, then the others."""
    metric: str
    metric_mode: str
    fetch_s: float | None = None
    """Seconds to fetch one sample in a small batch, as measured on this machine."""
    fetch_line: FetchTime | None = None
    """The same for batches of any size."""
    input_bytes: int | None = None
    """Of one sample, as it reaches the device."""
    array_bytes: int | None = None
    """Of a train split that is arrays in memory (`Tensors`)."""
    kept_sample: KeptSample | None = None
    """What may be kept of the train split's samples."""
    cache_finding: Finding | None = None
    """Why none can be."""
    kept_test_sample: KeptSample | None = None
    """What may be kept of the test split's samples."""
    activation_bytes: dict[str, list[Line]] = field(default_factory=dict)
    """By `fp32`, `tf32` and `bf16`: lines over the samples of a micro-batch, the largest counts. Of
    a model with convolutions also by `bf16+channels_last` and `tf32+channels_last`."""
    checkpointed_bytes: dict[str, list[Line]] = field(default_factory=dict)
    """The same with the blocks recomputed in backward."""
    operators: dict[str, list[Operator]] = field(default_factory=dict)
    """By `fp32` and `bf16`: forward and backward of one micro-batch."""
    checkpointed_operators: dict[str, list[Operator]] = field(default_factory=dict)
    """The same with the blocks recomputed in backward."""
    activations_sampled: str | None = None
    """Why a forward on real samples was needed to run the model on tensors without values."""
    activations_unknown: str | None = None
    """Why the model could not be run on tensors without values."""
    frozen_unknown: str | None = None
    """Why the model cannot be run with its frozen weights in 16 bits, where it cannot."""
    weights_findings: list[Finding] = field(default_factory=list)
    """What stands between the recipe and its pretrained weights; planning needs none."""
    default_benchmark: str | None = None
    """What `phalanx evaluate` runs the model in after its test split."""
    compiled_unknown: str | None = None
    """Why that could not be told of compiled code. Where it was asked for, bytes and operators are
    also there by `fp32+compiled` and `bf16+compiled`."""

    def fetch_time(self) -> FetchTime | None:
        """What a batched fetch takes; None where it was not measured."""
        if self.fetch_line is None and self.fetch_s is not None:
            return FetchTime(0.0, self.fetch_s)
        return self.fetch_line


@dataclass(frozen=True, kw_only=True)
class TraceQuestion:
    """A recipe that is to be looked at."""

    recipe: str
    options: dict[str, Any]
    precisions: tuple[str, ...] = EAGER
    """With `+compiled` where compiled code is meant."""
    is_evaluation: bool = False
    """Look at the test split alone."""


@dataclass(frozen=True, kw_only=True)
class TraceAnswer:
    """What a recipe is, and what is wrong with it."""

    trace: Trace | None
    findings: list[Finding]
