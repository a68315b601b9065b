"""What settings of training mean in a job: batch, length, rate, precision, devices."""

from __future__ import annotations

from typing import Any

from phalanx.job.importing.settings import as_count, as_flag, as_number, is_off
from phalanx.job.importing.translation import Translation

_AMBIGUOUS = ("batch_size", "train_batch_size", "batch", "bs", "train_bs", "batch_size_train")
PER_GPU = "samples of each GPU and pass; `--batch-means global` if they are those of a whole step"
_GLOBAL = "samples of a whole step, by `--batch-means global`"
NOT_SCALED = "trained at this rate on any number of GPUs; `linear` scales it with the batch"
_SHAPES = {
    **dict.fromkeys(("linear", "linear_with_warmup", "linear_warmup", "warmup_linear"), "linear"),
    **dict.fromkeys(("cosine", "cosine_with_warmup", "cosine_warmup", "warmup_cosine"), "cosine"),
    **dict.fromkeys(("cosine_with_min_lr", "cosineannealinglr", "cosine_annealing"), "cosine"),
    **dict.fromkeys(("cosine_decay_with_warmup", "cosine_decay", "cosinelr", "cos"), "cosine"),
    **dict.fromkeys(("linear_warmup_cosine_decay", "cosineannealing"), "cosine"),
    **dict.fromkeys(
        ("constant", "constant_with_warmup", "none", "no", "fixed", "const"), "constant"
    ),
}
_ADAMW = ("adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "fusedadamw")
_ADAMW_PAGED = ("adamw_torch_xla", "paged_adamw", "paged_adamw_32bit", "adamw_torch_npu_fused")
_NO_MOMENTUM = "not stated, and none is the default of SGD"
_HALF_WEIGHTS = "a job keeps weights that learn in fp32"
_PRECISIONS = {
    **dict.fromkeys(("bf16", "bfloat16", "bf16-mixed", "bf16_mixed", "amp_bf16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half", "16", "16-mixed", "16_mixed", "amp_fp16"), "fp16"),
    **dict.fromkeys(("fp32", "float32", "32", "32-true", "no", "false", "full", "float"), "fp32"),
    **dict.fromkeys(("fp64", "float64", "64", "64-true", "double"), "fp64"),
    **{"tf32": "tf32", "auto": "auto"},
}


def batch(made: Translation) -> None:
    _micro(made)
    each, whole = made.value("batch", as_count), made.value("global_batch", as_count)
    passes = made.value("accumulation", _accumulation)
    split = made.value("split_batches", as_flag)
    for meaning, size in (("batch", each), ("global_batch", whole), ("accumulation", passes)):
        if size is not None and size < 1:
            made.refuse(meaning, "it must be 1 or more")
            return
    if each is not None and whole is not None and whole != each:
        made.put(["batch"], "micro_batch_size", each, "samples of each GPU and pass")
    elif split and each is not None and made.batch_means is None:
        made.put(["batch", "split_batches"], "global_batch_size", each * (passes or 1),
                 "split_batches: the batch is shared by the GPUs, once for each pass")  # fmt: skip
    elif each is not None and made.batch_means == "global":
        made.put(["batch"], "global_batch_size", each, _GLOBAL)
    elif each is not None:
        is_open = all(s.word in _AMBIGUOUS for s in made.settings("batch"))
        why = PER_GPU if is_open and made.batch_means is None else "samples of each GPU and pass"
        made.put(["batch"], "batch_per_gpu", each, why)
    if whole is not None and "global_batch_size" not in made.job:
        made.put(["global_batch"], "global_batch_size", whole)
    made.leave(["split_batches"], "each GPU gets batches of its own")
    if passes is not None:
        made.put(["accumulation"], "gradient_accumulation", passes)
    made.take("eval_batch", "evaluate.batch_size", as_count)


def _micro(made: Translation) -> None:
    """A micro-batch beside another batch: which one that is has to be stated."""
    if not made.settings("batch"):
        made.recast("micro", "batch", lambda setting: True)
    elif made.settings("micro") and made.batch_means == "global":
        made.recast("batch", "global_batch", lambda setting: True)
        made.recast("micro", "batch", lambda setting: True)
    elif made.settings("micro"):
        why = "beside a micro-batch this may be the batch of a GPU or of a whole step"
        made.refuse("batch", f"{why}; `--batch-means global` states the latter")
        made.recast("micro", "batch", lambda setting: True)
    elif made.settings("spawned") and made.batch_means is None:
        why = "the script shares this among the GPUs of a node, whose number is not stated"
        made.refuse("batch", f"{why}; `--batch-means global` for one node")


def _accumulation(value: Any) -> int | None:
    return None if value == "auto" else as_count(value)


def length(made: Translation) -> None:
    steps, epochs = made.value("steps", as_count), made.value("epochs", as_number)
    if steps is not None and steps < 1:
        made.leave(["steps"], "no limit in steps")
        steps = None
    if epochs is not None and epochs <= 0:
        made.leave(["epochs"], "no limit in epochs")
        epochs = None
    if steps is not None and epochs is not None:
        is_trainer = {s.word for s in made.settings("epochs")} == {"num_train_epochs"}
        if not is_trainer:
            both = f"{int(steps)} steps and {epochs:g} epochs: a job has one length"
            made.refuse("steps", both, f"steps: {steps}")
            made.refuse("epochs", both, f"epochs: {epochs:g}")
            return
        made.leave(["epochs"], "max_steps wins over it")
        epochs = None
    if steps is not None:
        made.put(["steps"], "steps", steps)
    elif epochs is not None and epochs != int(epochs):
        made.refuse("epochs", "a job trains whole epochs, or a number of steps", "steps: N")
    elif epochs is not None:
        made.put(["epochs"], "epochs", int(epochs))


def rate(made: Translation) -> None:
    made.take("lr", "optimizer.lr", _positive)
    if "optimizer.lr" in made.job and "optimizer.lr_rule" not in made.job:
        made.job["optimizer.lr_rule"] = "none"
        made.lines.append(made.lines[-1]._replace(
            fate="derived", ours='optimizer.lr_rule = "none"', why=NOT_SCALED))  # fmt: skip
    made.recast("scheduler", "neutral", lambda s: s.value == "diffuser")  # LeRobot's, with a name
    name = made.value("scheduler", _name)
    if name is not None and name in _SHAPES:
        made.put(["scheduler"], "schedule.name", _SHAPES[name])
    elif name is not None:
        made.refuse("scheduler", "a job has the schedules constant, linear and cosine",
                    "schedule: {name: cosine}")  # fmt: skip
    _least_rate(made)
    _warmup(made)
    total = made.value("schedule_length", as_number)
    if total is not None:
        if total in (made.job.get("steps"), made.job.get("epochs"), -1):
            made.leave(["schedule_length"], "the schedule ends with the run")
        else:
            made.refuse("schedule_length", "a schedule ends with the run", f"steps: {total:g}")


def _positive(value: Any) -> float | None:
    if value == "auto":
        return None
    number = as_number(value)
    if not number > 0:
        raise ValueError("it must be above 0")
    return number


def _least_rate(made: Translation) -> None:
    made.take("min_lr_ratio", "schedule.min_lr_ratio", as_number)
    least, peak = made.value("min_lr", as_number), made.job.get("optimizer.lr")
    if least is None:
        return
    if "schedule.min_lr_ratio" in made.job:
        made.leave(["min_lr"], "min_lr_ratio states it")
    elif least == 0:
        made.put(["min_lr"], "schedule.min_lr_ratio", 0)
    elif peak is None or least > peak:
        made.refuse("min_lr", "a job states it as a fraction of the learning rate",
                    "schedule: {min_lr_ratio: 0.1}")  # fmt: skip
    else:
        ratio = float(f"{least / peak:.12g}")
        made.put(["min_lr"], "schedule.min_lr_ratio", ratio, f"{least:g} / {peak:g}")


def _warmup(made: Translation) -> None:
    stated: dict[str, Any] = {
        meaning: value
        for meaning in ("warmup_steps", "warmup_epochs", "warmup_ratio", "warmup_run")
        if (value := made.value(meaning, _warmup_value)) is not None
    }
    if isinstance(stated.get("warmup_run"), str):
        made.take("warmup_run", "schedule.warmup", str)
        return
    on = [meaning for meaning, value in stated.items() if value]
    if len(on) > 1 and on[:2] == ["warmup_steps", "warmup_ratio"]:
        made.leave(["warmup_ratio"], "warmup_steps wins over it")
        on = ["warmup_steps"]
    if len(on) > 1:
        for meaning in on:
            made.refuse(meaning, "two lengths of the warm-up are stated", "schedule: {warmup: 5%}")
    elif stated:
        meaning = on[0] if on else next(iter(stated))
        value = stated[meaning]
        is_share = meaning == "warmup_ratio" or (0 < value < 1 and meaning != "warmup_epochs")
        unit = "epochs" if meaning == "warmup_epochs" else "steps"
        if value < 0 or (meaning == "warmup_ratio" and value > 1):
            made.refuse(meaning, "it must be between 0 and 1" if value > 1 else "it is below 0")
            return
        said = f"{100 * value:.12g}%" if is_share else f"{value:.12g} {unit}"
        made.put(list(stated), "schedule.warmup", said)
    starts = made.value("warmup_start", as_number)
    if starts == 0 or (starts and not on):
        made.leave(["warmup_start"], "a warm-up rises from 0")
    elif starts:
        made.refuse("warmup_start", "a warm-up rises from 0", "schedule: {warmup: 500 steps}")


def _warmup_value(value: Any) -> Any:
    """A number, or a text with its own unit; None for DeepSpeed's `auto`."""
    if isinstance(value, bool):
        return None if value else 0
    if isinstance(value, str) and value.strip().endswith(("%", "steps", "epochs")):
        return value.strip()
    return None if value == "auto" else as_number(value)


def _name(value: Any) -> str | None:
    """`torch.optim.AdamW`, `AdamW` and `adamw` are one name."""
    if isinstance(value, (dict, list)) or value in ("auto", True):
        return None
    return str(value).rpartition(".")[2].lower().replace("-", "_").removeprefix("schedulertype.")


def optimizer(made: Translation) -> None:
    name, decay = made.value("optimizer", _name), made.value("weight_decay", as_number)
    if name in (*_ADAMW, *_ADAMW_PAGED):
        made.put(["optimizer"], "optimizer.name", "adamw")
    elif name == "sgd":
        if not made.settings("momentum"):
            made.say(made.settings("optimizer"), "optimizer.momentum", 0, _NO_MOMENTUM)
        made.put(["optimizer"], "optimizer.name", "sgd")
    elif name == "adam" and not decay:
        why = "without weight decay they are the same"
        if decay is None:
            made.say(made.settings("optimizer"), "optimizer.weight_decay", 0, why)
        made.put(["optimizer"], "optimizer.name", "adamw", why)
    elif name is not None:
        made.refuse("optimizer", "a job has the optimizers adamw and sgd",
                    "optimizer: {name: adamw}")  # fmt: skip
    made.take("weight_decay", "optimizer.weight_decay", as_number)
    first, second = made.value("beta1", as_number), made.value("beta2", as_number)
    if first is not None or second is not None:
        both = [0.9 if first is None else first, 0.999 if second is None else second]
        made.put(["beta1", "beta2"], "optimizer.betas", both)
    made.take("betas", "optimizer.betas", _numbers)
    made.take("eps", "optimizer.eps", as_number)
    if made.settings("momentum") and made.job.get("optimizer.name") != "sgd":
        made.refuse("momentum", "of SGD, which is not the optimizer that is stated",
                    "optimizer: {name: sgd, momentum: 0.9}")  # fmt: skip
    made.take("momentum", "optimizer.momentum", as_number)
    made.take("nesterov", "optimizer.nesterov", as_flag)
    clip = made.value("clip", lambda value: 0 if is_off(value) else as_number(value))
    if clip is not None:
        off = "nothing is clipped" if clip == 0 else ""
        made.put(["clip"], "optimizer.clip_norm", clip or None, off)


def _numbers(value: Any) -> list[float]:
    if isinstance(value, str):
        value = [part for part in value.strip("[]() ").replace(",", " ").split() if part]
    return [as_number(part) for part in value]


def precision(made: Translation) -> None:
    words = ("bf16", "fp16", "tf32", "amp", "mixed_precision")
    halves = [m for m in ("pure_half",) if made.value(m, as_flag)]
    for meaning in halves:
        made.refuse(meaning, _HALF_WEIGHTS, "precision: bf16")
    is_computed = not any(map(made.settings, words)) and made.recipe != "lora"
    if is_computed:  # without another word, the type that is computed in
        made.recast("weights_type", "mixed_precision", lambda setting: setting.word == "dtype")
    named = made.value("mixed_precision", _precision)
    flags = {m: made.value(m, _flag_or_auto) for m in ("bf16", "fp16", "tf32", "amp")}
    stated = [meaning for meaning in words if made.settings(meaning)]
    on = {"bf16" if m == "bf16" else m for m, value in flags.items() if value is True}
    found = {named} if named not in (None, "fp32") else set()
    found |= on & {"bf16", "fp16"}
    if not found and "amp" in on:
        is_cpu = made.job.get("devices.cpu") is not None
        found = {"fp32" if is_cpu else "fp16"}
    if len(found) > 1:
        why = "two precisions are stated, a run has one"
        for meaning in stated:
            made.refuse(meaning, why, f"precision: {sorted(map(str, found))[0]}")
        return
    if not stated or (set(stated) <= {"tf32"} and "tf32" not in on):
        made.leave(["tf32"], "off, as in fp32")
        return
    if found:
        value = found.pop()
        why = "autocast's type on CUDA; `auto` lets the GPU decide" if stated == ["amp"] else ""
    elif "auto" in flags.values():
        value, why = "auto", ""
    else:
        value = "tf32" if "tf32" in on else "fp32"
        why = "no other is on; remove the key and the GPU decides" if value == "fp32" else ""
    made.put(stated, "precision", value, why)


def _precision(value: Any) -> str:
    name = "no" if is_off(value) else str(value).lower().removeprefix("torch.")
    if name in ("bf16-true", "16-true", "bf16_true", "16_true"):
        raise ValueError(_HALF_WEIGHTS)
    if name not in _PRECISIONS:
        raise ValueError("a job has bf16, fp16, tf32, fp32 and fp64")
    return _PRECISIONS[name]


def _flag_or_auto(value: Any) -> bool | str:
    return "auto" if value == "auto" else False if is_off(value) else as_flag(value)
