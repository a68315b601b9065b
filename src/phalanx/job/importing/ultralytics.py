"""The `args.yaml` that Ultralytics' trainer leaves in its run folder (ultralytics 8.4)."""

from __future__ import annotations

from phalanx.job.importing.translation import Translation

# The recipe `detection` calls these as Ultralytics does.
_SAME = (
    *("mosaic", "close_mosaic", "mixup", "hsv_h", "hsv_s", "hsv_v", "degrees", "translate"),
    *("scale", "shear", "perspective", "flipud", "fliplr", "box", "cls", "dfl", "iou", "max_det"),
)
_NAMES = {
    "data": "options.data",
    "model": "options.model",
    "imgsz": "options.image_size",
    "single_cls": "options.single_class",
    "epochs": "epochs",
    "batch": "global_batch_size",
    "workers": "loader.workers",
    "seed": "seed",
    "lrf": "schedule.min_lr_ratio",
    "weight_decay": "optimizer.weight_decay",
}
_AUTO_LR = "Ultralytics' optimizer = auto chooses rate and momentum itself: the recipe's own stay"


def translate(made: Translation) -> None:
    made.recipe = "detection"
    task = made.get("task")
    if task not in (None, "detect"):
        made.leave(["task"], "the recipe `detection` detects; it does nothing else")
    made.take_all(_NAMES)
    made.take_all({name: f"options.{name}" for name in _SAME})
    _optimizer(made)
    _schedule(made)
    _devices(made)
    cache = made.get("cache")
    if cache in (True, "ram"):
        made.derive(["cache"], "loader.cache", "ram")
    patience = made.get("patience")
    if patience:
        why = "as many evaluations without a better one; there is one per epoch"
        made.derive(["patience"], "evaluate.early_stopping", patience, why)
    period = made.get("save_period")
    if period is not None and period > 0:
        made.derive(["save_period"], "checkpoint.every", f"{period} epochs")
    if made.get("deterministic"):
        made.derive(["deterministic"], "determinism", "resume")
    freeze = made.get("freeze")
    if isinstance(freeze, int):
        made.take("freeze", "options.freeze")
    made.leave(["project", "name", "save_dir", "exist_ok"], "runs lie under `output`")
    made.leave_rest("no key of a job, or for another of Ultralytics' modes")


def _optimizer(made: Translation) -> None:
    name = str(made.get("optimizer") or "auto").lower()
    if name == "auto":
        made.leave(["optimizer", "lr0", "momentum", "warmup_bias_lr"], _AUTO_LR)
        return
    if name in ("sgd", "adamw"):
        made.derive(["optimizer"], "optimizer.name", name)
    else:
        made.leave(["optimizer"], "a job has adamw and sgd; the recipe's adamw is what is left")
    made.take("lr0", "optimizer.lr")
    made.derive(["lr0"], "optimizer.lr_rule", "none", "Ultralytics does not scale the rate")
    if name == "sgd":
        made.take("momentum", "optimizer.momentum")
        made.derive(["optimizer"], "optimizer.nesterov", True, "as Ultralytics' SGD")
        made.take("warmup_bias_lr", "options.warmup_bias_lr")
        made.take("warmup_momentum", "schedule.warmup_momentum")
    elif made.get("momentum") is not None:
        betas = [made.get("momentum"), 0.999]
        made.derive(["momentum"], "optimizer.betas", betas, "AdamW's first average, there")


def _schedule(made: Translation) -> None:
    if made.get("cos_lr") is not None:
        shape = "cosine" if made.get("cos_lr") else "linear"
        made.derive(["cos_lr"], "schedule.name", shape)
    warmup = made.get("warmup_epochs")
    if warmup is not None:
        made.derive(["warmup_epochs"], "schedule.warmup", f"{warmup:g} epochs")


def _devices(made: Translation) -> None:
    device = made.get("device")
    ids = [word for word in str(device if device is not None else "").split(",") if word]
    if device == "cpu":
        made.derive(["device"], "devices.cpu", 1)
    elif ids and all(word.strip().isdigit() for word in ids):
        made.derive(["device"], "devices.gpus", [int(word) for word in ids])
    amp = made.get("amp")
    if amp is False:
        made.derive(["amp"], "precision", "fp32")
    elif amp:
        made.leave(["amp"], "precision = auto: bf16 where the GPU has it, otherwise fp16")
