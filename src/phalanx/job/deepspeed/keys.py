"""What DeepSpeed's file may hold beside the keys of a job: what is handed on, what is refused.

The lists are those of DeepSpeed 0.19; its own reader knows more words and stops at some of them
with a traceback inside a rank, or passes over a misspelt one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """What a value must be, in words and as a test, with an example."""

    words: str
    fits: Callable[[Any], bool]
    example: Any


def is_count(value: Any) -> bool:
    """A whole number from 0 on; DeepSpeed's files write `2e8` for sizes."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 <= value < 2**63 and value == int(value)


FLAG = Kind("`true` or `false`", lambda value: isinstance(value, bool), True)
COUNT = Kind("a whole number, 0 or more", is_count, 500000000)
TEXT = Kind("text", lambda value: isinstance(value, str), "warning")
TYPE = Kind("`fp32`, `bf16` or `fp16`", lambda value: value in ("fp32", "bf16", "fp16"), "fp32")
SECTION = Kind("a section in braces", lambda value: isinstance(value, dict), {})


@dataclass(frozen=True)
class Section:
    """The keys of one section of the file, by what becomes of them."""

    handed_on: dict[str, Kind]
    """DeepSpeed gets them as they are; what it prints is in the ranks' logs."""
    ignored: dict[str, str] = field(default_factory=dict)
    """They change nothing in the training: a warning, unless they are off."""
    at_default: dict[str, tuple[Any, str]] = field(default_factory=dict)
    """Another value than this one cannot be followed."""
    off: dict[str, str] = field(default_factory=dict)
    """They can only be off."""

    def refusal(self, key: str, value: Any) -> str | None:
        """Why a key cannot be followed; None when it can, or asks for nothing."""
        if key in self.off:
            return None if is_off(value) else self.off[key]
        default, why = self.at_default.get(key, (value, ""))
        return None if value in (default, None, "auto") else why


def is_off(value: Any) -> bool:
    """Return True for a section or flag that asks for nothing."""
    if isinstance(value, dict):
        return not value or value.get("enabled") is False
    return value in (None, False, "auto")


TOP = Section(
    handed_on={
        "activation_checkpointing": SECTION,
        "comms_logger": SECTION,
        "communication_data_type": TYPE,
        "disable_python_gc": FLAG,
        "dump_state": FLAG,
        "flops_profiler": SECTION,
        "log_level": TEXT,
        "memory_breakdown": FLAG,
        "steps_per_print": COUNT,
        "timers": SECTION,
        "wall_clock_breakdown": FLAG,
    },
    ignored={
        "aio": "it is for NVMe",
        "checkpoint": "checkpoints are Phalanx's own",
        "comet": "Phalanx writes results.csv and TensorBoard files",
        "csv_monitor": "Phalanx writes results.csv and TensorBoard files",
        "dataloader_drop_last": "every sample is seen once an epoch",
        "datastates_ckpt": "checkpoints are Phalanx's own",
        "load_universal_checkpoint": "checkpoints are Phalanx's own",
        "nebula": "checkpoints are Phalanx's own",
        "tensorboard": "Phalanx writes results.csv and TensorBoard files",
        "use_node_local_storage": "checkpoints are Phalanx's own",
        "wandb": "Phalanx writes results.csv and TensorBoard files",
    },
    at_default={
        "gradient_allreduce_op": ("mean", "gradients are already weighed for the mean"),
        "gradient_predivide_factor": (1.0, "gradients are already weighed for the mean"),
        "managed_gradient_accumulation": (True, "Phalanx says which pass of a step is the last"),
        "prescale_gradients": (False, "gradients are already weighed for the mean"),
        "sparse_gradients": (False, "ZeRO has no sparse gradients"),
        "sequence_parallel_size": (1, "sequence parallelism is out of scope"),
    },
    off={
        "amp": "NVIDIA's apex is not used; bf16 and fp16 are",
        "autotuning": "it starts trainings of its own",
        "compile": "DeepCompile has not been tried here",
        "compression_training": "it changes the model while it trains",
        "curriculum_learning": "the order of the samples is Phalanx's",
        "data_efficiency": "the order of the samples is Phalanx's",
        "eigenvalue": "DeepSpeed 0.19 no longer has it",
        "elasticity": "a run that lost ranks continues with `--resume`, the global batch stays",
        "expert_parallel": "mixtures of experts over several ranks are out of scope",
        "graph_harvesting": "DeepSpeed 0.19 no longer has it",
        "hybrid_engine": "it generates text in turns with training",
        "pipeline": "pipeline parallelism is out of scope",
        "progressive_layer_drop": "DeepSpeed 0.19 no longer has it",
        "quantize_training": "it changes the model while it trains",
        "sparse_attention": "DeepSpeed 0.19 no longer has it",
        "tensor_parallel": "tensor parallelism is out of scope",
        "torch_autocast": "Phalanx does it; say `bf16` or `fp16` instead",
        "weight_quantization": "it is for inference",
    },
)
SET_BY_PHALANX = ("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer")
"""Whatever the file says: the optimizer is torch's own."""

ZERO = Section(
    handed_on={
        **dict.fromkeys(
            (
                "allgather_partitions",
                "contiguous_gradients",
                "elastic_checkpoint",
                "enable_sanity_checks",
                "ignore_unused_parameters",
                "load_from_fp32_weights",
                "log_trace_cache_warnings",
                "memory_efficient_linear",
                "overlap_comm",
                "override_module_apply",
                "parameter_alignment",
                "pipeline_loading_checkpoint",
                "reduce_scatter",
                "stage3_allgather_sequential",
                "stage3_gather_16bit_weights_on_model_save",
                "stage3_gather_fp16_weights_on_model_save",
                "stage3_use_all_reduce_for_fetch_params",
                "use_multi_rank_bucket_allreduce",
            ),
            FLAG,
        ),
        **dict.fromkeys(
            (
                "allgather_bucket_size",
                "reduce_bucket_size",
                "stage3_max_live_parameters",
                "stage3_max_reuse_distance",
                "stage3_model_persistence_threshold",
                "stage3_module_granularity_threshold",
                "stage3_param_persistence_threshold",
                "stage3_prefetch_bucket_size",
                "sub_group_size",
            ),
            COUNT,
        ),
        "leaf_module": SECTION,
    },
    ignored={
        "round_robin_gradients": "it only changes which rank holds which part",
    },
    at_default={
        "compute_grad_norm": (True, "the norm finds overflows"),
        "legacy_stage1": (False, "DeepSpeed 0.19 no longer has it"),
        "mics_hierarchical_params_gather": (False, "DeepSpeed 0.19 no longer has it"),
        "mics_shard_size": (-1, "DeepSpeed 0.19 no longer has it"),
        "save_muon_momentum_buffer_in_memory": (False, "the optimizers are AdamW and SGD"),
        "zenflow": (None, "it updates some weights later than others"),
        "zero_hpz_partition_size": (1, "a second copy of the weights in each node is not kept"),
        "zero_quantized_gradients": (False, "it rounds what the ranks exchange"),
        "zero_quantized_nontrainable_weights": (False, "it rounds what the ranks exchange"),
        "zero_quantized_weights": (False, "it rounds what the ranks exchange"),
        "zeropp_loco_param": (None, "DeepSpeed 0.19 no longer has it"),
    },
)
_FP32_STATE = "weights and optimizer state are kept in fp32"
_HALF = {
    "bf16_master_weights_and_grads": (False, _FP32_STATE),
    "bf16_optimizer_states": (False, _FP32_STATE),
    "fp16_master_weights_and_grads": (False, _FP32_STATE),
}
_AUTOCAST = {"auto_cast": "autocast looks after the inputs"}
FP16 = Section(
    handed_on={
        "consecutive_hysteresis": FLAG,
        "hysteresis": COUNT,
        "initial_scale_power": COUNT,
        "loss_scale": COUNT,
        "loss_scale_window": COUNT,
        "min_loss_scale": COUNT,
    },
    ignored=_AUTOCAST,
    at_default=_HALF,
)
BF16 = Section(
    handed_on={"check_grad_overflow": FLAG, "immediate_grad_update": FLAG},
    ignored=_AUTOCAST,
    at_default=_HALF,
)
_CPU_OPTIMIZER = "that needs DeepSpeed's own CPU optimizer"
OFFLOAD = Section(
    handed_on={"pin_memory": FLAG},
    at_default={"ratio": (1.0, _CPU_OPTIMIZER), "super_offload": (False, _CPU_OPTIMIZER)},
)
