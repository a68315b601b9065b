"""The file that `accelerate config` writes (accelerate 1.15)."""

from __future__ import annotations

from phalanx.job.importing.translation import Translation

_MEETING = ("machine_rank", "main_process_ip", "main_process_port", "rdzv_backend", "same_network")


def translate(made: Translation) -> None:
    _devices(made)
    _precision(made)
    kind = str(made.get("distributed_type") or "NO").upper()
    if kind == "DEEPSPEED":
        _deepspeed(made)
    elif kind == "FSDP":
        made.derive(["distributed_type"], "strategy", "fsdp")
        if made.get("fsdp_config.fsdp_offload_params"):
            made.derive(["fsdp_config.fsdp_offload_params"], "fsdp.offload", True)
        if made.get("fsdp_config.fsdp_reshard_after_forward") is False:
            made.derive(
                ["fsdp_config.fsdp_reshard_after_forward"], "fsdp.reshard_after_forward", False
            )
        if made.get("fsdp_config.fsdp_activation_checkpointing"):
            key = "fsdp_config.fsdp_activation_checkpointing"
            made.derive([key], "activation_checkpointing", "on")
        _leave_section(made, "fsdp_config", "blocks and their wrapping are found by Phalanx")
    else:
        made.leave(["distributed_type"], "follows from the devices")
    backend = made.get("dynamo_config.dynamo_backend") or made.get("dynamo_backend")
    if backend and str(backend).upper() != "NO":
        key = "dynamo_backend" if made.get("dynamo_backend") else "dynamo_config.dynamo_backend"
        made.derive([key], "compile", "on", "with inductor, block by block")
    made.take("gradient_accumulation_steps", "gradient_accumulation")
    made.leave(
        ["compute_environment", "main_training_function", "debug", "downcast_bf16"],
        "nothing to say in a job",
    )
    made.leave_rest("no key of a job, or what Phalanx does by itself")


def _devices(made: Translation) -> None:
    nodes = made.get("num_machines") or 1
    ranks = made.get("num_processes")
    ids = made.get("gpu_ids")
    if made.get("use_cpu"):
        made.derive(["use_cpu", "num_processes"], "devices.cpu", max(1, (ranks or 1) // nodes))
    elif isinstance(ids, str) and ids not in ("", "all"):
        made.derive(["gpu_ids"], "devices.gpus", [int(word) for word in ids.split(",")])
        made.leave(["num_processes"], "one rank per GPU")
    elif ranks is not None:
        keys = ["num_processes", "num_machines"] if nodes > 1 else ["num_processes"]
        made.derive(keys, "devices.gpus", max(1, ranks // nodes), "GPUs of each node")
    if nodes > 1:
        made.leave(
            ["num_machines", *_MEETING],
            f"said when it starts: phalanx train job.yaml --nodes {nodes}, or phalanx slurm submit",
        )
    else:
        made.leave(["num_machines", *_MEETING], "one node: nothing has to meet")


def _precision(made: Translation) -> None:
    said = made.get("mixed_precision")
    if said in ("bf16", "fp16"):
        made.take("mixed_precision", "precision")
    elif said == "no":
        made.derive(["mixed_precision"], "precision", "fp32", "remove the key and the GPU decides")
    else:
        made.leave(["mixed_precision"], "a job has bf16, fp16, tf32, fp32 and fp64")


def _deepspeed(made: Translation) -> None:
    made.derive(["distributed_type"], "strategy", "deepspeed")
    section = "deepspeed_config"
    made.take(f"{section}.deepspeed_config_file", "deepspeed.config")
    made.take(f"{section}.zero_stage", "deepspeed.stage")
    made.take(f"{section}.gradient_accumulation_steps", "gradient_accumulation")
    made.take(f"{section}.gradient_clipping", "optimizer.clip_norm")
    for theirs, ours in (("optimizer", "offload_optimizer"), ("param", "offload_parameters")):
        key = f"{section}.offload_{theirs}_device"
        if made.get(key) is not None:
            made.derive([key], f"deepspeed.{ours}", made.get(key) != "none")
    _leave_section(made, section, "decided by Phalanx")


def _leave_section(made: Translation, section: str, why: str) -> None:
    inner = made.get(section) or {}
    made.leave(
        [f"{section}.{name}" for name in inner if not made.is_read(f"{section}.{name}")], why
    )
