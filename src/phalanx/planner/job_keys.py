"""Which job keys feed which choice of the plan: what to turn to get another one."""

from __future__ import annotations

_DEVICES = ("devices.gpus", "devices.cpu", "strategy")
_BATCH = ("global_batch_size", "batch_per_gpu", "gradient_accumulation")
_LENGTH = ("epochs", "steps")
_RUNGS = ("compile", "channels_last", "cuda_graph", "fast")
_TIME = (*_DEVICES, *_BATCH, "precision", "activation_checkpointing", *_RUNGS, "loader.workers")
_MEMORY = (
    "micro_batch_size",
    "activation_checkpointing",
    *_RUNGS[:2],
    "precision",
    "frozen_precision",
    "strategy",
)

FEEDS: dict[str, tuple[str, ...]] = {
    "device": ("devices.gpus", "devices.cpu"),
    "gpus": _DEVICES,
    "ranks": _DEVICES,
    "nodes": ("devices.gpus", "devices.cpu"),
    "backend": ("devices.backend",),
    "comm_timeout_s": ("devices.comm_timeout_s",),
    "strategy": ("strategy", "fsdp.offload", "precision", "determinism"),
    "shard_ranks": ("fsdp.shard_ranks", "strategy"),
    "build": ("fsdp.build", "strategy"),
    "zero_stage": ("deepspeed.stage", "strategy"),
    "offload": (
        "fsdp.offload",
        "deepspeed.offload_optimizer",
        "deepspeed.offload_parameters",
        "strategy",
    ),
    "precision": ("precision",),
    "frozen_precision": ("frozen_precision", "precision", "strategy"),
    "determinism": ("determinism",),
    "sync_batchnorm": ("sync_batchnorm",),
    "activation_checkpointing": _MEMORY,
    "compile": ("compile", "fast", "strategy", "sync_batchnorm", *_LENGTH),
    "channels_last": ("channels_last", "fast", "precision", "strategy"),
    "cuda_graph": ("cuda_graph", "fast", "strategy", "micro_batch_size", "determinism"),
    "cudnn_search": ("cudnn_search", "fast", "precision", "determinism", *_LENGTH),
    "compared_with_eager": (*_RUNGS, "micro_batch_size"),
    "threads": (*_DEVICES, "determinism"),
    "num_samples": ("recipe", "options"),
    "num_test_samples": ("recipe", "options"),
    "global_batch_size": (*_BATCH, "devices.gpus", "devices.cpu"),
    "micro_batch_size": ("micro_batch_size", *_BATCH, "determinism"),
    "accumulation": ("gradient_accumulation", "micro_batch_size", *_BATCH[:2]),
    "steps_per_epoch": _BATCH,
    "total_steps": (*_LENGTH, *_BATCH),
    "lr": ("optimizer.lr", "optimizer.lr_batch", "optimizer.lr_rule", *_BATCH),
    "warmup_steps": ("schedule.warmup", "optimizer.lr_rule", *_LENGTH),
    "ema": ("ema.decay", "ema.warmup", "ema.ramp", "ema.buffers", "ema.evaluate"),
    "workers": ("loader.workers",),
    "pin_memory": ("loader.pin_memory",),
    "data_on": ("loader.workers", "micro_batch_size", "recipe", "options"),
    "cache": ("loader.cache", "recipe", "options"),
    "evaluate_every": ("evaluate.every",),
    "evaluate_batch_size": ("evaluate.batch_size", "micro_batch_size"),
    "metric": ("evaluate.metric",),
    "metric_mode": ("evaluate.mode",),
    "save_every_steps": ("checkpoint.every",),
    "save_every_s": ("checkpoint.every",),
    "save_share": ("checkpoint.every",),
    "save_in_background": ("checkpoint.background",),
    "speedup": _DEVICES,
    "parameters": ("recipe", "options"),
    "memory_bytes": (*_MEMORY, "optimizer.name", "ema.decay", "fsdp.shard_ranks"),
    "process_bytes": (*_MEMORY, "optimizer.name", "ema.decay", "fsdp.shard_ranks"),
    "step_s": _TIME,
    "samples_per_s": _TIME,
    "duration_s": (*_LENGTH, *_TIME),
    "energy_kwh": (*_LENGTH, *_TIME),
}
"""Every choice by its name in the plan, the key that says it outright first."""
