"""Rules that need more than one key of a job, or the disk:
all problems at once, nothing created. Those that look at the disk are in `job.paths`.

What single keys may hold is in `job.schema`; what the recipe's options may hold is judged by it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from importlib.util import find_spec

from phalanx.errors import Finding
from phalanx.job.deepspeed_rules import check_deepspeed
from phalanx.job.device_rules import check_devices, ranks_asked
from phalanx.job.load import LoadedJob
from phalanx.job.path_rules import check_init_from, check_output, check_recipe
from phalanx.job.source.value_types import Interval


def check_job(
    loaded: LoadedJob, *, known_recipes: Collection[str], nodes: int = 1
) -> list[Finding]:
    """Every problem of a job that can be seen without its machine and without its recipe's code.
    Its devices are those of each of `nodes`."""
    return [
        *loaded.findings,
        *_length(loaded),
        *_batch(loaded, nodes),
        *check_devices(loaded),
        *_optimizer(loaded),
        *_ema(loaded),
        *_intervals(loaded),
        *check_deepspeed(loaded),
        *check_recipe(loaded, known_recipes),
        *check_output(loaded),
        *check_init_from(loaded),
        *_wandb(loaded),
    ]


def _is_set(loaded: LoadedJob, key: str) -> bool:
    return loaded.origin(key).kind != "default"


def _length(loaded: LoadedJob) -> Iterator[Finding]:
    job = loaded.job
    if job.epochs is not None and job.steps is not None:
        yield Finding(
            slug="two-lengths",
            what=f"the job says {job.epochs} epochs and {job.steps} steps, it has one length",
            why=loaded.said("epochs", "steps"),
            fix=loaded.keep_one("epochs", "steps"),
        )
    if job.epochs is None and job.steps is None:
        yield Finding(
            slug="no-length",
            what="the job does not say how long to train: `epochs` and `steps` are not given",
            why=loaded.said("epochs", "steps"),
            fix="epochs: 10" if loaded.path else "--epochs 10",
        )
    early = job.evaluate.early_stopping
    if early is not None and job.evaluate.every is None:
        yield Finding(
            slug="early-stopping",
            what=f"early stopping after {early} evaluations, but there is none while training",
            why=loaded.said("evaluate.early_stopping", "evaluate.every"),
            fix=loaded.line_for("evaluate.every", "1 epochs"),
        )
    warmup = job.schedule.warmup
    if not isinstance(warmup, Interval):
        return
    length = {"steps": job.steps, "epochs": job.epochs, "percent": 100}.get(warmup.unit)
    if warmup.unit == "minutes":
        yield Finding(
            slug="warmup-unit",
            what=f"a warm-up of {warmup} is measured by the clock, the schedule counts steps",
            why=loaded.said("schedule.warmup"),
            fix=loaded.line_for("schedule.warmup", "5%"),
        )
    elif length is not None and warmup.count > length:
        total = Interval(count=length, unit=warmup.unit)
        key = "schedule.warmup"
        yield Finding(
            slug="long-warmup",
            what=f"the warm-up of {warmup} is longer than the training of {total}",
            why=loaded.said(key, *([warmup.unit] if warmup.unit != "percent" else [])),
            fix=loaded.line_for(key, "5%"),
        )


def _a_batch(loaded: LoadedJob, micro: int | None) -> str:
    """A batch to paste: into the file, or behind the command when there is none."""
    if micro is not None:
        return f"batch_per_gpu: {micro}" if loaded.path else f"batch_per_gpu={micro}"
    return "global_batch_size: 64" if loaded.path else "--batch-size 64"


def _batch(loaded: LoadedJob, nodes: int) -> Iterator[Finding]:
    job = loaded.job
    total, per_gpu = job.global_batch_size, job.batch_per_gpu
    micro, accumulation = job.micro_batch_size, job.gradient_accumulation
    if total is not None and per_gpu is not None:
        yield Finding(
            slug="two-batches",
            what=f"the job says {total} samples per step and {per_gpu} per GPU, it has one batch",
            why=loaded.said("global_batch_size", "batch_per_gpu"),
            fix=loaded.keep_one("global_batch_size", "batch_per_gpu"),
        )
    if total is None and per_gpu is None:
        yield Finding(
            slug="no-batch",
            what="the job has no batch size: `global_batch_size` and `batch_per_gpu` are not given",
            why=loaded.said("global_batch_size", "batch_per_gpu", "micro_batch_size"),
            fix=_a_batch(loaded, micro),
        )
    if per_gpu is not None and micro is not None and per_gpu != micro:
        yield Finding(
            slug="two-micro-batches",
            what=f"a forward on one rank has {per_gpu} samples by one key and {micro} by another",
            why=loaded.said("batch_per_gpu", "micro_batch_size"),
            fix=loaded.keep_one("batch_per_gpu", "micro_batch_size"),
        )
    if total is None:
        return
    if micro is not None and micro > total:
        yield Finding(
            slug="micro-batch",
            what=f"one forward has {micro} samples, the whole step only {total}",
            why=loaded.said("micro_batch_size", "global_batch_size"),
            fix=loaded.line_for("micro_batch_size", total),
        )
        return
    if accumulation is None:
        return
    ranks = nodes * max(0, ranks_asked(job) or 0)
    smallest = (micro or 1) * accumulation * (ranks or 1)
    is_whole = total == smallest if micro and ranks else total % smallest == 0
    if (micro and not is_whole) or smallest > total:
        parts = [f"{micro or 1} per forward", f"{accumulation} micro-batches"]
        parts += [f"{ranks} ranks"] if ranks else []
        multiple = smallest if micro and ranks else smallest * max(1, round(total / smallest))
        keys = ["global_batch_size", "micro_batch_size", "gradient_accumulation"]
        keys += [k for k in ("devices.gpus", "devices.cpu") if ranks and loaded.value(k)]
        yield Finding(
            slug="batch-arithmetic",
            what=f"{' x '.join(parts)} = {smallest} samples, which does not make up a global "
            f"batch of {total}",
            why=loaded.said(*keys),
            fix=loaded.line_for("global_batch_size", multiple),
        )


def _optimizer(loaded: LoadedJob) -> Iterator[Finding]:
    optimizer = loaded.job.optimizer
    if not all(0 <= beta < 1 for beta in optimizer.betas):
        yield Finding(
            slug="betas",
            what=f"AdamW's betas are {optimizer.betas}, each must be at least 0 and below 1",
            why=loaded.said("optimizer.betas"),
            fix=loaded.line_for("optimizer.betas", [0.9, 0.999]),
        )
    if optimizer.name == "sgd" and optimizer.nesterov and optimizer.momentum == 0:
        yield Finding(
            slug="nesterov",
            what="Nesterov momentum is on and the momentum is 0, it must be above 0",
            why=loaded.said("optimizer.nesterov", "optimizer.momentum"),
            fix=loaded.line_for("optimizer.momentum", 0.9),
        )
    ignored = {"adamw": ("momentum", "nesterov"), "sgd": ("betas", "eps")}[optimizer.name]
    other = "sgd" if optimizer.name == "adamw" else "adamw"
    for key in (f"optimizer.{name}" for name in ignored):
        if _is_set(loaded, key):
            because = f"`{optimizer.name}` has no such setting"
            yield loaded.ignored(key, because, "optimizer.name", other)


def _ema(loaded: LoadedJob) -> Iterator[Finding]:
    if loaded.job.ema.warmup and loaded.job.ema.ramp is not None:
        yield Finding(
            slug="exclusive-keys",
            what="`ema.warmup` and `ema.ramp` both say how the decay rises",
            why=loaded.said("ema.warmup", "ema.ramp"),
            fix="remove one of them",
        )
    if loaded.job.ema.decay is not None:
        return
    for key in ("ema.warmup", "ema.ramp", "ema.buffers", "ema.evaluate"):
        if _is_set(loaded, key):
            yield loaded.ignored(key, "no average of the weights is kept", "ema.decay", 0.999)


def _intervals(loaded: LoadedJob) -> Iterator[Finding]:
    for key, example in (
        ("stop_after", "60 minutes"),
        ("schedule.warmup", "5%"),
        ("evaluate.every", "1 epochs"),
        ("checkpoint.every", "1 epochs"),
    ):
        interval = loaded.value(key)
        if not isinstance(interval, Interval):
            continue
        count, problem, better = interval.count, "", example
        if not math.isfinite(count) or count < 0 or (count == 0 and key != "schedule.warmup"):
            problem = "must be above 0 and finite"
        elif interval.unit == "steps" and count != int(count):
            problem = f"must be a whole number of steps, such as {math.ceil(count)}"
            better = f"{math.ceil(count)} steps"
        elif interval.unit == "percent" and key.endswith(".every"):
            problem = "must be in steps, epochs or minutes"
        elif interval.unit == "minutes" and key == "evaluate.every":
            problem = "must be in steps or epochs: a clock would make runs differ"
        if problem:
            yield Finding(
                slug="interval",
                what=f"`{key}` is {interval}, it {problem}",
                why=loaded.said(key),
                fix=loaded.line_for(key, better),
            )


def _wandb(loaded: LoadedJob) -> Iterator[Finding]:
    if loaded.job.logging.wandb is not None and find_spec("wandb") is None:
        yield Finding(
            slug="no-wandb",
            what="the job sends curves to Weights & Biases, and wandb is not installed",
            why=loaded.said("logging.wandb"),
            fix='pip install "phalanx[wandb]"',
        )
