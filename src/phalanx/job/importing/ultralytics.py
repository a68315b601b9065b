"""Ultralytics' `args.yaml` and the words behind `yolo train` (ultralytics 8.4)."""

from __future__ import annotations

from phalanx.job.importing.settings import as_count, as_flag, as_number
from phalanx.job.importing.translation import Translation

# The recipe `detection` calls these as Ultralytics does.
_SAME = (
    *("mosaic", "close_mosaic", "mixup", "hsv_h", "hsv_s", "hsv_v", "degrees", "translate"),
    *("scale", "shear", "perspective", "flipud", "fliplr", "box", "cls", "dfl", "iou", "max_det"),
    *("multi_scale", "warmup_bias_lr"),
)
# Of other tasks, of other modes, and of the printed output.
_OTHER_MODES = (
    *("overlap_mask", "mask_ratio", "dropout", "split", "save_json", "save_hybrid", "half", "dnn"),
    *("vid_stride", "stream_buffer", "augment", "agnostic_nms", "classes", "retina_masks", "nms"),
    *("embed", "show", "save_frames", "save_txt", "save_conf", "save_crop", "show_labels", "cfg"),
    *("show_conf", "show_boxes", "line_width", "format", "keras", "optimize", "int8", "dynamic"),
    *("simplify", "opset", "workspace", "pose", "kobj", "rle", "angle", "dlog", "dgrad", "dlam"),
    *("auto_augment", "erasing", "crop_fraction", "tracker", "source", "copy_paste_mode", "conf"),
    *("pretrained", "cls_remap", "profile", "dis", "quantize", "verbose", "val", "plots", "save"),
    *("save_dir", "project", "name", "exist_ok", "resume", "mode", "copy_paste", "visualize"),
)
_NEUTRAL = {"fraction": 1, "bgr": 0, "cutmix": 0, "cls_pw": 0}
WORDS = {
    **{word: f"yolo.{word}" for word in (*_SAME, *_NEUTRAL, "data", "model", "freeze", "nbs")},
    **dict.fromkeys(_OTHER_MODES, "yolo.other"),
    **{word: f"yolo.{word}" for word in ("batch", "cache", "task", "single_cls", "rect")},
    **{
        "optimizer": "yolo.optimizer",
        "warmup_momentum": "yolo.warmup_momentum",
        "time": "max_time",
    },
    **{"save_period": "save_epochs", "device": "device", "compile": "compile"},
}
_AUTO = "`optimizer: auto` of Ultralytics chooses rate and momentum itself; the recipe's are used"


def translate(made: Translation) -> None:
    """Ultralytics' own words; what it shares with others is left to the common rules."""
    if made.value("yolo.task", str) not in (None, "detect", "train"):
        made.refuse("yolo.task", "the recipe `detection` trains detectors only")
    made.leave(["yolo.task"], "what the recipe does")
    made.take("yolo.data", "options.data", str)
    made.take("yolo.model", "options.model", str)
    for word in _SAME:
        made.take(f"yolo.{word}", f"options.{word}", as_number)
    made.take("yolo.single_cls", "options.single_class", as_flag)
    made.take("yolo.freeze", "options.freeze", as_count)
    for word, value in _NEUTRAL.items():
        if made.value(f"yolo.{word}", as_number) not in (None, value):
            made.refuse(f"yolo.{word}", f"the recipe `detection` trains with {word} = {value}")
        made.leave([f"yolo.{word}"], "the recipe does this anyway")
    if made.value("yolo.rect", as_flag):
        made.refuse("yolo.rect", "the recipe `detection` trains on squares")
    made.leave(["yolo.rect"], "the recipe does this anyway")
    cache = made.value("yolo.cache", lambda value: str(value).lower())
    if cache in ("true", "ram", "disk"):
        made.put(["yolo.cache"], "loader.cache", "disk" if cache == "disk" else "ram")
    made.leave(["yolo.cache"], "off")
    _batch(made)
    _optimizer(made)
    shape = made.value("cosine", as_flag)
    if shape is not None:
        made.put(["cosine"], "schedule.name", "cosine" if shape else "linear")
    made.leave(["yolo.other"], "of other tasks or modes of Ultralytics, or of what it prints")


def _batch(made: Translation) -> None:
    size = made.value("yolo.batch", as_number)
    nominal = made.value("yolo.nbs", as_count) or 64
    if size is not None and (size < 1 or size != int(size)):
        made.refuse("yolo.batch", "Ultralytics finds the batch by trying; a job states it",
                    "global_batch_size: 16")  # fmt: skip
    elif size is not None:
        passes = max(1, round(nominal / size))
        whole = int(size) * passes
        why = "images of all GPUs in a step"
        if passes > 1:
            why = f"{size:g} images x {passes} passes: Ultralytics adds up to nbs = {nominal}"
        made.put(["yolo.batch", "yolo.nbs"], "global_batch_size", whole, why)
    made.leave(["yolo.nbs"], "goes with the batch")


def _optimizer(made: Translation) -> None:
    name = str(made.value("yolo.optimizer", str) or "auto").lower()
    if name == "auto":
        words = ["yolo.optimizer", "lr", "momentum", "yolo.warmup_momentum"]
        if made.settings("yolo.optimizer"):
            made.leave(words, _AUTO)
            made.job.pop("options.warmup_bias_lr", None)
            made.lines = [x for x in made.lines if not x.ours.startswith("options.warmup_bias_lr")]
        return
    if name not in ("sgd", "adamw"):
        made.refuse("yolo.optimizer", "a job has the optimizers adamw and sgd",
                    "optimizer: {name: adamw}")  # fmt: skip
        return
    stated = made.settings("yolo.optimizer")
    made.say(stated, "optimizer.name", name)
    first = made.value("momentum", as_number)
    if name == "sgd":
        made.say(stated, "optimizer.nesterov", True, "as Ultralytics' SGD")
        made.take("yolo.warmup_momentum", "schedule.warmup_momentum", as_number)
    elif first is not None:
        made.put(["momentum"], "optimizer.betas", [first, 0.999], "AdamW's first average, there")
    made.leave(["yolo.warmup_momentum"], "of SGD; the optimizer is AdamW")
    made.drop("yolo.optimizer")
