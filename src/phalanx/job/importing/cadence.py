"""How often settings save, evaluate and log, what counts as best, and the average of weights."""

from __future__ import annotations

from typing import Any

from phalanx.job.importing.settings import as_count, as_flag, as_number, is_off
from phalanx.job.importing.translation import Translation

_OTHER = "the strategy says when"
_NOT_LORA = "an option of the recipe `lora`"


def cadence(made: Translation) -> None:
    _every(made, "save", "checkpoint.every")
    _every(made, "eval", "evaluate.every")
    made.recast("logging_every", "neutral", lambda s: s.value in ("step", "epoch"))  # of a monitor
    made.take("logging_every", "logging.every", as_count)
    made.take("at_start", "evaluate.at_start", as_flag)
    keep = made.value("keep", lambda value: None if is_off(value) else as_count(value))
    if keep is not None and keep > 0:
        why = "at least 2: the newest may be the one that is damaged" if keep < 2 else ""
        made.put(["keep"], "checkpoint.keep", max(2, keep), why)
    best = made.value("keep_best", as_count)
    if best is not None and best > 0:
        made.put(["keep_best"], "checkpoint.keep_best", best)
    elif best == 0:
        made.leave(["keep_best"], "the best checkpoint is always kept")
    _best(made)


def _every(made: Translation, what: str, ours: str) -> None:
    counted = [f"{what}_steps", f"{what}_epochs", f"{what}_run", f"{what}s_per_epoch"]
    _lightning(made, what, ours)
    how = made.value(
        f"{what}_strategy", lambda value: "no" if is_off(value) else str(value).lower()
    )
    if how == "no":
        made.put([f"{what}_strategy"], ours, None, "only at the end")
        made.leave(counted, _OTHER)
    elif how == "epoch":
        made.put([f"{what}_strategy"], ours, "1 epochs")
        made.leave(counted, _OTHER)
    elif how is not None and how != "steps":
        made.refuse(f"{what}_strategy", "a job counts steps or epochs", f"{ours}: 1 epochs")
    stated = [meaning for meaning in counted if made.settings(meaning)]
    if len(stated) > 1:
        for meaning in stated:
            made.refuse(meaning, "two intervals are stated, a job has one", f"{ours}: 1 epochs")
        return
    if how == "steps" and not stated:
        made.leave([f"{what}_strategy"], "no interval is stated")
    for meaning in stated:
        count = made.value(meaning, lambda value: 0 if is_off(value) else as_number(value))
        if count is not None:
            meanings = [f"{what}_strategy", meaning] if how else [meaning]
            _interval(made, meanings, ours, count)


def _interval(made: Translation, meanings: list[str], ours: str, count: float) -> None:
    meaning, why = meanings[-1], ""
    length = made.job.get("steps")
    if count <= 0:
        made.put(meanings, ours, None, "only at the end")
        return
    if meaning.endswith("_per_epoch"):
        count, unit = 1 / count, "epochs"
    elif meaning.endswith("_epochs"):
        unit = "epochs"
    elif meaning.endswith("_steps"):
        unit = "steps"
    elif length is None and "epochs" not in made.job:
        made.refuse(meaning, "the run's length is not stated, so neither is what this counts",
                    f"{ours}: {count:g} steps")  # fmt: skip
        return
    else:
        unit = "epochs" if length is None else "steps"
        why = f"the run is counted in {unit}"
    if unit == "steps" and count < 1:  # a share of the run
        if length is None:
            made.refuse(meaning, "a share of a run of unknown steps", f"{ours}: 500 steps")
            return
        count = max(1, round(count * length))
    made.put(meanings, ours, f"{count:.12g} {unit}", why)


def _lightning(made: Translation, what: str, ours: str) -> None:
    """`val_check_interval`: a share of an epoch, or a number of micro-batches."""
    check = made.value("val_check", as_number) if what == "eval" else None
    if check is None:
        return
    setting = made.get("val_check")
    is_share = isinstance(setting and setting.value, float) or check < 1
    passes = made.job.get("gradient_accumulation") or 1
    if is_share and check == 1 and made.settings("eval_epochs"):
        made.leave(["val_check"], "once in such an epoch")
    elif is_share:
        made.put(["val_check"], ours, f"{check:.12g} epochs")
        made.leave(["eval_epochs"], "val_check_interval says when")
    elif check % passes:
        made.refuse("val_check", f"{check} micro-batches are no whole number of steps",
                    f"{ours}: {max(1, round(check / passes))} steps")  # fmt: skip
    else:
        made.put(["val_check"], ours, f"{int(check // passes)} steps")
        made.leave(["eval_epochs"], "val_check_interval says when")


def _best(made: Translation) -> None:
    metric = made.value("metric", str)
    if metric is not None:
        name = metric.removeprefix("eval_").removeprefix("eval/").removeprefix("val_")
        made.put(["metric"], "evaluate.metric", name.removeprefix("val/"))
    greater = made.value("greater", as_flag)
    if greater is not None:
        made.put(["greater"], "evaluate.mode", "max" if greater else "min")
    made.take("mode", "evaluate.mode", str)
    patience = made.value("early_stopping", lambda v: 0 if is_off(v) else as_count(v))
    if patience is not None and patience > 0:
        why = "as many evaluations without a better one"
        made.put(["early_stopping"], "evaluate.early_stopping", patience, why)
    made.leave(["early_stopping"], "off")


def average(made: Translation) -> None:
    """The exponential moving average of the weights."""
    is_on = made.value("use_ema", as_flag)
    decay = made.value("ema_decay", as_number)
    if is_on is False or decay == 0:
        made.put(["use_ema", "ema_decay"], "ema.decay", None, "no average is kept")
    elif decay is not None:
        made.put(["use_ema", "ema_decay"], "ema.decay", decay)
    elif is_on:
        made.refuse("use_ema", "the decay of the average is not stated", "ema: {decay: 0.9999}")


def adapters(made: Translation) -> None:
    """Options of the recipes `lora` and `detection`."""
    for recipe, names in _OPTIONS.items():
        for name, read in names.items():
            meaning = f"{recipe}.{name}"
            if made.recipe in (None, recipe):
                made.take(meaning, f"options.{name}", read)
            else:
                made.leave([meaning], f"an option of the recipe `{recipe}`, not of `{made.recipe}`")
    if made.recipe not in (None, "lora"):
        more = ("train_on_inputs", "completion_only", "all_linear", "four_bit", "bits")
        made.leave([*(f"lora.{name}" for name in more), "fine_tuning"], _NOT_LORA)
        return
    kind = made.value("fine_tuning", lambda value: str(value).lower())
    if kind in ("lora", "qlora"):
        if kind == "qlora":
            made.put(["fine_tuning"], "options.quantize", "4bit")
        made.leave(["fine_tuning"], "what the recipe does")
    elif kind is not None:
        made.refuse("fine_tuning", "the recipe `lora` trains adapters")
    _frozen(made)
    on_inputs = made.value("lora.train_on_inputs", as_flag)
    if on_inputs is not None:
        made.put(["lora.train_on_inputs"], "options.train_on", "all" if on_inputs else "response")
    if made.value("lora.completion_only", as_flag) is not None:
        made.put(["lora.completion_only"], "options.train_on", "response")
    if made.value("lora.all_linear", as_flag):
        made.put(["lora.all_linear"], "options.targets", "all")
    bits = made.value("lora.bits", lambda value: None if is_off(value) else as_count(value))
    if made.value("lora.four_bit", as_flag) or bits == 4:
        made.put(["lora.four_bit", "lora.bits"], "options.quantize", "4bit")
    elif bits is not None:
        made.refuse("lora.bits", "frozen weights are held in 4 bits or in full")


def _frozen(made: Translation) -> None:
    """`torch_dtype`: how weights that do not learn are held."""
    held = made.value("weights_type", lambda value: str(value).lower().removeprefix("torch."))
    computed = made.job.get("precision")
    if held in ("bfloat16", "bf16", "float16", "fp16"):
        if computed in (None, "auto", {"b": "bf16", "f": "fp16"}[held[0]]):
            made.put(["weights_type"], "frozen_precision", "compute", "of the frozen weights")
        else:
            made.refuse("weights_type", f"frozen weights are held in fp32 or in {computed}")
    elif held in ("float32", "fp32"):
        made.put(["weights_type"], "frozen_precision", "full", "of the frozen weights")
    elif held == "auto":
        made.leave(["weights_type"], "`frozen_precision: auto`")


def _targets(value: Any) -> Any:
    names = value.split(",") if isinstance(value, str) else value
    names = [str(name).strip() for name in names]
    return "all" if names in (["all"], ["all-linear"], ["all_linear"]) else names


def _share(value: Any) -> float:
    share = as_number(value)
    if not 0 <= share < 1:
        raise ValueError("it must be a share of the rows, below 1")
    return share


_OPTIONS: dict[str, dict[str, Any]] = {
    "lora": {
        "model": str,
        "max_length": as_count,
        "packing": as_flag,
        "test_share": _share,
        "r": as_count,
        "alpha": as_number,
        "dropout": as_number,
        "targets": _targets,
        "rslora": as_flag,
        "dora": as_flag,
    },
    "detection": {"image_size": as_count},
}
