"""What DeepSpeed's file says of the training itself: batch, precision, optimizer, schedule."""

from __future__ import annotations

from phalanx.errors import Finding
from phalanx.job.deepspeed.keys import BF16, COUNT, FLAG, FP16
from phalanx.job.deepspeed.translation import Translation
from phalanx.job.source.origin import show

TRAINING_KEYS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "bf16",
    "bfloat16",
    "fp16",
    "optimizer",
    "scheduler",
)

_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd"}
_OPTIMIZER_KEYS = ("lr", "betas", "eps", "weight_decay", "momentum", "nesterov")
# Settings of Adam that hold here anyway; another value asks for another optimizer.
_ADAM_FLAGS = {"adam_w_mode": True, "amsgrad": False, "bias_correction": True}
_OTHER_ADAMS = ("torch_adam", "fused", "foreach", "fp32_optimizer_states", "set_grad_none")
_SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
_SCHEDULE_KEYS = (
    *("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"),
    *("warmup_min_ratio", "cos_min_ratio", "total_num_steps", "last_batch_iteration"),
)


def translate_training(made: Translation, *, has_batch: bool) -> None:
    """`has_batch`: the job itself states how large its batch is."""
    _batch(made, has_batch=has_batch)
    _precision(made)
    _optimizer(made)
    _scheduler(made)


def _batch(made: Translation, *, has_batch: bool) -> None:
    made.say("train_batch_size", "global_batch_size")
    # Without a global batch DeepSpeed multiplies the micro-batch up: that is `batch_per_gpu`.
    is_whole = has_batch or made.is_said("train_batch_size")
    micro = "micro_batch_size" if is_whole else "batch_per_gpu"
    made.say("train_micro_batch_size_per_gpu", micro)
    made.say("gradient_accumulation_steps", "gradient_accumulation")
    if made.is_said("gradient_clipping"):
        norm = made.file.value("gradient_clipping")
        made.add("gradient_clipping", "optimizer.clip_norm", None if norm == 0 else norm)
    if made.file.lines:  # a file; what a run keeps of one says nothing of its training
        made.leave_out("gradient_clipping", "optimizer.clip_norm", 1.0)


def _precision(made: Translation) -> None:
    enabled: dict[str, bool] = {}
    for name in ("bf16", "bfloat16", "fp16"):
        for key in made.section(name):
            full = f"{name}.{key}"
            if key != "enabled":
                made.settle(full, FP16 if name == "fp16" else BF16, "enabled")
            elif made.is_said(full) and made.fits(full, FLAG):
                enabled[name] = made.file.value(full)
    asked = [name for name, is_on in enabled.items() if is_on]
    if len(asked) > 1:
        made.refuse_value(
            f"{asked[0]}.enabled",
            f"`{asked[0]}` and `{asked[1]}` are both enabled, a run has one precision",
            f'"{asked[1]}": {{"enabled": false}}',
            f"{asked[1]}.enabled",
        )
    elif asked:
        made.add(f"{asked[0]}.enabled", "precision", "fp16" if asked == ["fp16"] else "bf16")
    elif enabled:
        made.add(f"{next(iter(enabled))}.enabled", "precision", "fp32")


def _optimizer(made: Translation) -> None:
    section = made.section("optimizer")
    if not section:
        return
    kind = str(section.get("type")).lower()
    if kind not in (*_OPTIMIZERS, "auto"):
        made.refuse("optimizer.type", "there are AdamW and SGD", '"type": "AdamW"')
        return
    if kind != "auto":
        made.add("optimizer.type", "optimizer.name", _OPTIMIZERS[kind])
    for key in section:
        if key not in ("type", "params", "legacy_fusion"):
            made.unknown(f"optimizer.{key}", ("type", "params"))
    params = made.section("optimizer.params")
    for key, value in params.items():
        full = f"optimizer.params.{key}"
        if key in _OPTIMIZER_KEYS:
            made.say(full, f"optimizer.{key}")
        elif key in _ADAM_FLAGS:
            # Without decay Adam and AdamW are the same.
            is_same = key == "adam_w_mode" and params.get("weight_decay") == 0
            if value not in (_ADAM_FLAGS[key], "auto") and not is_same:
                made.refuse(full, f"AdamW here has {key} = {show(_ADAM_FLAGS[key])}")
        elif key not in _OTHER_ADAMS:
            made.unknown(full, [*_OPTIMIZER_KEYS, *_ADAM_FLAGS])
    made.leave_out("optimizer.params.weight_decay", "optimizer.weight_decay", 0)
    if kind == "sgd":
        made.leave_out("optimizer.params.momentum", "optimizer.momentum", 0)


def _scheduler(made: Translation) -> None:
    section = made.section("scheduler")
    if not section:
        return
    kind = str(section.get("type"))
    if kind not in (*_SCHEDULES, "auto"):
        choices = ", ".join(f'"{kind}"' for kind in _SCHEDULES)
        made.refuse("scheduler.type", f"there are {choices}", '"type": "WarmupCosineLR"')
        return
    if kind != "auto":
        made.add("scheduler.type", "schedule.name", _SCHEDULES[kind])
    for key in section:
        if key not in ("type", "params"):
            made.unknown(f"scheduler.{key}", ("type", "params"))
    params = made.section("scheduler.params")
    for key in params:
        if key not in _SCHEDULE_KEYS:
            made.unknown(f"scheduler.params.{key}", _SCHEDULE_KEYS)
    _peak_rate(made)
    warmup = "scheduler.params.warmup_num_steps"
    if made.is_said(warmup) and made.fits(warmup, COUNT):
        made.add(warmup, "schedule.warmup", f"{int(params['warmup_num_steps'])} steps")
    made.leave_out(warmup, "schedule.warmup", 1000)
    made.say("scheduler.params.cos_min_ratio", "schedule.min_lr_ratio")
    for key, why in (
        ("warmup_min_lr", "the warm-up rises from 0"),
        ("warmup_min_ratio", "the warm-up rises from 0"),
        ("total_num_steps", "the schedule ends with the run (`steps`, `epochs`)"),
        ("last_batch_iteration", "a run that continues knows its step"),
    ):
        full = f"scheduler.params.{key}"
        if made.is_said(full) and made.file.value(full) not in (0, -1):
            made.ignore(full, why)
    if params.get("warmup_type") not in ("linear", "auto"):
        made.findings.append(_line_not_logarithm(made))


def _peak_rate(made: Translation) -> None:
    """DeepSpeed's schedulers put their own peak in the place of the optimizer's rate."""
    first, second = "optimizer.params.lr", "scheduler.params.warmup_max_lr"
    if not made.is_said(second):
        return
    lr, peak = made.file.value(first), made.file.value(second)
    if not made.is_said(first):
        made.say(second, "optimizer.lr")
    elif lr != peak:
        made.refuse_value(
            first,
            f"the DeepSpeed file has two learning rates, {show(lr)} and {show(peak)}",
            f'"lr": {show(peak)}, or "warmup_max_lr": "auto"',
            second,
        )


def _line_not_logarithm(made: Translation) -> Finding:
    key = "scheduler.params.warmup_type"
    default = "" if made.is_said(key) else ", DeepSpeed's default"
    return Finding(
        slug="deepspeed-warmup",
        what="the warm-up rises in a line, the DeepSpeed file asks for a logarithm",
        why=f"{made.file.said(key)}{default}",
        fix='nothing, or say so: "warmup_type": "linear"',
        severity="note",
    )
