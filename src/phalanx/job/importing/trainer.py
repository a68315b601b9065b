"""Hugging Face's TrainingArguments, as `to_json_string` writes them (transformers 5)."""

from __future__ import annotations

import math

from phalanx.job.importing.translation import Translation

_NAMES = {
    "per_device_train_batch_size": "batch_per_gpu",
    "gradient_accumulation_steps": "gradient_accumulation",
    "per_device_eval_batch_size": "evaluate.batch_size",
    "learning_rate": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "adam_epsilon": "optimizer.eps",
    "seed": "seed",
    "logging_steps": "logging.every",
    "dataloader_num_workers": "loader.workers",
    "dataloader_pin_memory": "loader.pin_memory",
    "ddp_find_unused_parameters": "ddp.find_unused_parameters",
    "ddp_bucket_cap_mb": "ddp.bucket_mb",
    "ddp_timeout": "devices.comm_timeout_s",
    "eval_on_start": "evaluate.at_start",
}
_SHAPES = {
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
}
_OPTIMIZERS = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf"), "adamw"),
    "sgd": "sgd",
}


def translate(made: Translation) -> None:
    if made.get("run_name") == made.get("output_dir"):  # Trainer's default
        made.leave(
            ["run_name"], "the same as output_dir: a run gets its recipe's name and the time"
        )
    else:
        made.take("run_name", "name")
    made.take_all(_NAMES)
    made.derive(["learning_rate"], "optimizer.lr_rule", "none", "Trainer does not scale the rate")
    _length(made)
    _optimizer(made)
    _schedule(made)
    _precision(made)
    _intervals(made)
    _best(made)
    _strategy(made)
    made.leave(["output_dir", "logging_dir"], "runs lie under `output`, each with its own logs")
    made.leave_rest("no key of a job, or what Phalanx does by itself")


def _length(made: Translation) -> None:
    steps, epochs = made.get("max_steps"), made.get("num_train_epochs")
    if steps is not None and steps > 0:
        made.take("max_steps", "steps", why="it wins over num_train_epochs")
        made.leave(["num_train_epochs"], "max_steps wins")
    elif epochs is not None:
        made.leave(["max_steps"], "-1: by epochs")
        whole = math.ceil(epochs)
        why = "" if whole == epochs else "a job trains whole epochs: rounded up"
        made.derive(["num_train_epochs"], "epochs", whole, why)


def _optimizer(made: Translation) -> None:
    name = made.get("optim")
    if name in _OPTIMIZERS:
        made.derive(["optim"], "optimizer.name", _OPTIMIZERS[name], "fused where that is faster")
    else:
        made.leave(["optim"], "a job has adamw and sgd; adamw is what is left")
    betas = ["adam_beta1", "adam_beta2"]
    if all(made.get(key) is not None for key in betas):
        made.derive(betas, "optimizer.betas", [made.get(key) for key in betas])
    norm = made.get("max_grad_norm")
    if norm:
        made.take("max_grad_norm", "optimizer.clip_norm")
    else:
        made.leave(["max_grad_norm"], "0: nothing is clipped")


def _schedule(made: Translation) -> None:
    shape = made.get("lr_scheduler_type")
    if shape in _SHAPES:
        made.derive(["lr_scheduler_type"], "schedule.name", _SHAPES[shape])
    else:
        made.leave(["lr_scheduler_type"], "a job has constant, linear and cosine")
    low = made.get("lr_scheduler_kwargs.min_lr_rate")
    if low is not None:
        made.derive(["lr_scheduler_kwargs.min_lr_rate"], "schedule.min_lr_ratio", low)
    steps, ratio = made.get("warmup_steps"), made.get("warmup_ratio")
    if steps is not None and 0 < steps < 1:  # transformers 5 takes both in one
        steps, ratio = None, steps
    if steps:
        made.derive(["warmup_steps"], "schedule.warmup", f"{int(steps)} steps")
        made.leave(["warmup_ratio"], "warmup_steps wins")
    else:
        keys = [key for key in ("warmup_steps", "warmup_ratio") if made.get(key) is not None]
        made.derive(keys, "schedule.warmup", f"{100 * (ratio or 0):g}%")


def _precision(made: Translation) -> None:
    keys = [key for key in ("bf16", "fp16", "tf32") if made.get(key) is not None]
    chosen = next((key for key in keys if made.get(key)), "fp32")
    why = "" if chosen != "fp32" else "neither is on; remove the key and the GPU decides"
    made.derive(keys, "precision", chosen, why)


def _intervals(made: Translation) -> None:
    for what, ours in (("eval", "evaluate.every"), ("save", "checkpoint.every")):
        how, steps = f"{what}_strategy", f"{what}_steps"
        kind, every = made.get(how), made.get(steps)
        if kind == "epoch":
            made.derive([how], ours, "1 epochs")
            made.leave([steps], f"{how} is epoch")
        elif kind == "steps":
            every = every or made.get("logging_steps")
            if every and every >= 1:
                made.derive([how, steps], ours, f"{int(every)} steps")
            else:
                made.leave([how, steps], f"a share of the run: say {ours} in steps or epochs")
        elif kind == "no":
            made.derive([how], ours, None, "only at the end")
            made.leave([steps], f"{how} is no")
    limit = made.get("save_total_limit")
    if limit is not None:
        why = "at least 2: the newest may be the one that is damaged" if limit < 2 else ""
        made.derive(["save_total_limit"], "checkpoint.keep", max(2, limit), why)


def _best(made: Translation) -> None:
    metric = made.get("metric_for_best_model")
    if metric is not None:
        made.derive(["metric_for_best_model"], "evaluate.metric", str(metric).removeprefix("eval_"))
    greater = made.get("greater_is_better")
    if greater is not None:
        made.derive(["greater_is_better"], "evaluate.mode", "max" if greater else "min")
    made.leave(["load_best_model_at_end"], "the best checkpoint is kept and linked as `best`")


def _strategy(made: Translation) -> None:
    if made.get("deepspeed") is not None:
        made.take("deepspeed", "deepspeed.config")
        made.derive(["deepspeed"], "strategy", "deepspeed")
    elif made.get("fsdp"):
        made.derive(["fsdp"], "strategy", "fsdp", "what is wrapped is found by Phalanx")
        if "offload" in str(made.get("fsdp")):
            made.derive(["fsdp"], "fsdp.offload", True)
        made.leave(["fsdp_config"], "blocks and their wrapping are found by Phalanx")
    if made.get("gradient_checkpointing") is not None:
        on = "on" if made.get("gradient_checkpointing") else "off"
        made.derive(["gradient_checkpointing"], "activation_checkpointing", on)
    if made.get("torch_compile"):
        made.derive(["torch_compile"], "compile", "on")
    else:
        made.leave(["torch_compile"], "compiled where it repays; compile=off for Trainer's way")
