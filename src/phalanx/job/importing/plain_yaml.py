"""A training YAML with sections, as teams write them for their own torchrun scripts:
`dataloader.batch_size`, `optimizer.lr`, `training.num_epochs`, ..."""

from __future__ import annotations

from phalanx.job.importing.translation import Translation

_TRAINING = ("training", "train", "trainer")
_LOADER = ("dataloader", "loader", "data_loader")
_NAMES = {
    **{f"{s}.batch_size": "batch_per_gpu" for s in _LOADER},
    **{f"{s}.num_workers": "loader.workers" for s in _LOADER},
    **{f"{s}.pin_memory": "loader.pin_memory" for s in _LOADER},
    **{f"{s}.prefetch_factor": "loader.prefetch" for s in _LOADER},
    "optimizer.lr": "optimizer.lr",
    "optimizer.weight_decay": "optimizer.weight_decay",
    "optimizer.betas": "optimizer.betas",
    "optimizer.eps": "optimizer.eps",
    "optimizer.momentum": "optimizer.momentum",
    **{f"{s}.num_epochs": "epochs" for s in _TRAINING},
    **{f"{s}.epochs": "epochs" for s in _TRAINING},
    **{f"{s}.max_steps": "steps" for s in _TRAINING},
    **{f"{s}.seed": "seed" for s in _TRAINING},
    **{f"{s}.gradient_accumulate_every": "gradient_accumulation" for s in _TRAINING},
    **{f"{s}.gradient_accumulation_steps": "gradient_accumulation" for s in _TRAINING},
    **{f"{s}.max_grad_norm": "optimizer.clip_norm" for s in _TRAINING},
    "seed": "seed",
    "ema.decay": "ema.decay",
    "ema.max_value": "ema.decay",
}
_EVERY = {
    **{f"{s}.checkpoint_every": "checkpoint.every" for s in _TRAINING},
    **{f"{s}.val_every": "evaluate.every" for s in _TRAINING},
}
SCALED = "lr is that of one GPU: lr x GPUs, with a warm-up"


def translate(made: Translation) -> None:
    made.take_all(_NAMES)
    if "batch_per_gpu" in made.job and "optimizer.lr" in made.job:
        keys = [key for key in _NAMES if _NAMES[key] == "batch_per_gpu" and made.get(key)]
        made.derive([*keys, "optimizer.lr"], "optimizer.lr_rule", "linear", SCALED)
    for key, ours in _EVERY.items():
        if made.get(key):
            made.derive([key], ours, f"{made.get(key)} epochs")
    for section in _TRAINING:
        shape, warmup = made.get(f"{section}.lr_scheduler"), f"{section}.lr_warmup_steps"
        if shape in ("constant", "linear", "cosine"):
            made.derive([f"{section}.lr_scheduler"], "schedule.name", shape)
        if made.get(warmup) is not None:
            made.derive([warmup], "schedule.warmup", f"{made.get(warmup)} steps")
    made.leave_rest("of the model or the script: options of a recipe of your own")
