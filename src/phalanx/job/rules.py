"""Rules that need more than one key of a job, or the disk:
all problems at once, nothing created. Those that look at the disk are in `job.paths`.

What single keys may hold is in `job.schema`; what the recipe's options may hold is judged by it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from phalanx.errors import Finding
from phalanx.job.deepspeed.rules import check_deepspeed
from phalanx.job.load import LoadedJob
from phalanx.job.origin import format_value
from phalanx.job.paths import check_init_from, check_output, check_recipe
from phalanx.job.schema import Interval, Job


def check_job(loaded: LoadedJob, *, known_recipes: Collection[str]) -> list[Finding]:
    """Every problem of a job that can be seen without its machine and without its recipe's code."""
    return [
        *loaded.findings,
        *_length(loaded),
        *_batch(loaded),
        *_devices(loaded),
        *_optimizer(loaded),
        *_ema(loaded),
        *_intervals(loaded),
        *check_deepspeed(loaded),
        *check_recipe(loaded, known_recipes),
        *check_output(loaded),
        *check_init_from(loaded),
    ]


def ranks_asked(job: Job) -> int | None:
    """How many ranks the job asks for; None when that is left to the machine."""
    gpus = job.devices.gpus
    if isinstance(gpus, list):
        return len(gpus)
    return gpus if isinstance(gpus, int) else job.devices.cpu


def gpu_findings(
    loaded: LoadedJob,
    gpu_ids: Sequence[int],
    *,
    cuda_visible_devices: str | None,
    where: str = "this machine",
) -> list[Finding]:
    """Whether the GPUs a job asks for are among those of the machine."""
    gpus = loaded.job.devices.gpus
    if gpus is None or gpus == 0:
        return []
    there = f"{len(gpu_ids)} GPUs here: {list(gpu_ids)}" if gpu_ids else "no GPU here"
    visible = "not set" if cuda_visible_devices is None else f'"{cuda_visible_devices}"'
    why = f"{loaded.said('devices.gpus')}; {there}; CUDA_VISIBLE_DEVICES is {visible}"
    if not gpu_ids:
        return [
            Finding(
                slug="no-gpu",
                what=f"the job asks for GPUs ({format_value(gpus)}), {where} has 0",
                why=why,
                fix="--cpu 2",
            )
        ]
    origin = loaded.origin("devices.gpus")
    if isinstance(gpus, int) and gpus > len(gpu_ids):
        return [
            Finding(
                slug="too-few-gpus",
                what=f"the job asks for {gpus} GPUs, {where} has {len(gpu_ids)}",
                why=why,
                fix=origin.line_for("devices.gpus", len(gpu_ids)),
            )
        ]
    missing = [i for i in gpus if i >= 0 and i not in gpu_ids] if isinstance(gpus, list) else []
    if not missing or not isinstance(gpus, list):
        return []
    left = list(dict.fromkeys(i for i in gpus if i in gpu_ids)) or list(gpu_ids)
    return [
        Finding(
            slug="no-such-gpu",
            what=f"GPU {', '.join(map(str, missing))} is not there, "
            f"{where} has {', '.join(map(str, gpu_ids))}",
            why=why,
            fix=origin.line_for("devices.gpus", left),
        )
    ]


def _is_set(loaded: LoadedJob, key: str) -> bool:
    return loaded.origin(key).kind != "default"


def _keep_one(loaded: LoadedJob, first: str, second: str) -> str:
    """How to drop one of two keys: the file's, when the other was typed for this run."""
    for kept, dropped in ((first, second), (second, first)):
        if loaded.origin(kept).is_command_line and not loaded.origin(dropped).is_command_line:
            return f"add {dropped}=null to the command line"
    return f"keep only `{loaded.line_for(first, loaded.value(first))}` or only " + (
        f"`{loaded.line_for(second, loaded.value(second))}`"
    )


def _length(loaded: LoadedJob) -> Iterator[Finding]:
    job = loaded.job
    if job.epochs is not None and job.steps is not None:
        yield Finding(
            slug="two-lengths",
            what=f"the job says {job.epochs} epochs and {job.steps} steps, it has one length",
            why=loaded.said("epochs", "steps"),
            fix=_keep_one(loaded, "epochs", "steps"),
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


def _batch(loaded: LoadedJob) -> Iterator[Finding]:
    job = loaded.job
    total, per_gpu = job.global_batch_size, job.batch_per_gpu
    micro, accumulation = job.micro_batch_size, job.gradient_accumulation
    if total is not None and per_gpu is not None:
        yield Finding(
            slug="two-batches",
            what=f"the job says {total} samples per step and {per_gpu} per GPU, it has one batch",
            why=loaded.said("global_batch_size", "batch_per_gpu"),
            fix=_keep_one(loaded, "global_batch_size", "batch_per_gpu"),
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
            fix=_keep_one(loaded, "batch_per_gpu", "micro_batch_size"),
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
    ranks = max(0, ranks_asked(job) or 0)
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


def _devices(loaded: LoadedJob) -> Iterator[Finding]:
    devices = loaded.job.devices
    gpus, ranks = devices.gpus, ranks_asked(loaded.job)
    if gpus is not None and devices.cpu is not None:
        yield Finding(
            slug="gpus-and-cpu",
            what=f"the job asks for GPUs ({format_value(gpus)}) and for {devices.cpu} CPU "
            "processes, it trains on one kind",
            why=loaded.said("devices.gpus", "devices.cpu"),
            fix=_keep_one(loaded, "devices.gpus", "devices.cpu"),
        )
    if isinstance(gpus, int) and gpus < 1:
        yield Finding(
            slug="gpu-count",
            what=f"the job asks for {gpus} GPUs, the least is 1",
            why=f"{loaded.said('devices.gpus')}; a plain number is how many, not which",
            fix="--gpus 0, for GPU number 0 (devices.gpus: [0]), or --cpu 2 for none",
        )
    if isinstance(gpus, list):
        twice = [i for i, times in Counter(gpus).items() if times > 1]
        if twice and devices.backend != "gloo":
            yield Finding(
                slug="gpu-twice",
                what=f"GPU {', '.join(map(str, twice))} is given to more than one rank",
                why=f"{loaded.said('devices.gpus', 'devices.backend')}; NCCL joins different GPUs",
                fix=f"{loaded.line_for('devices.gpus', list(dict.fromkeys(gpus)))}, or let ranks "
                "share a GPU, which is slower: devices.backend=gloo",
            )
        negative = [i for i in gpus if i < 0]
        if negative or not gpus:
            wrong = [f"{i} is below 0" for i in dict.fromkeys(negative)]
            good = [i for i in dict.fromkeys(gpus) if i >= 0] or [0]
            yield Finding(
                slug="gpu-ids",
                what=f"the GPU ids {gpus} are wrong: {', '.join(wrong) or 'the list is empty'}",
                why=loaded.said("devices.gpus"),
                fix=loaded.line_for("devices.gpus", good),
            )
    if loaded.job.strategy == "single" and ranks is not None and ranks > 1:
        key = "devices.cpu" if gpus is None else "devices.gpus"
        yield Finding(
            slug="single-strategy",
            what=f"the strategy `single` trains on 1 rank, the job asks for {ranks}",
            why=loaded.said("strategy", key),
            fix=loaded.line_for("strategy", "ddp"),
        )
    if loaded.job.strategy == "fsdp" and loaded.job.determinism == "exact":
        yield Finding(
            slug="exact-sharded",
            what="`determinism: exact` adds up whole gradients, `fsdp` never holds one",
            why=loaded.said("determinism", "strategy"),
            fix=loaded.line_for("strategy", "ddp"),
        )
    if loaded.job.sync_batchnorm and loaded.job.determinism == "exact":
        yield Finding(
            slug="exact-synced",
            what="`determinism: exact` takes BatchNorm's statistics over one micro-batch, "
            "`sync_batchnorm` over those of all ranks",
            why=f"{loaded.said('determinism', 'sync_batchnorm')}; the bits would depend on the "
            "number of ranks",
            fix=loaded.line_for("sync_batchnorm", False),
        )
    if devices.backend == "nccl" and devices.cpu is not None and gpus is None:
        yield Finding(
            slug="nccl-on-cpu",
            what=f"`nccl` joins GPUs only, the job asks for {devices.cpu} CPU processes",
            why=loaded.said("devices.backend", "devices.cpu"),
            fix=loaded.line_for("devices.backend", "gloo"),
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
    other = {"adamw": "sgd", "sgd": "adamw"}[optimizer.name]
    for key in (f"optimizer.{name}" for name in ignored):
        if _is_set(loaded, key):
            yield Finding(
                slug="ignored-key",
                what=f"`{key}` = {format_value(loaded.value(key))} is ignored: "
                f"`{optimizer.name}` has no such setting",
                why=loaded.said(key, "optimizer.name"),
                fix=f"remove `{key}`, or {loaded.line_for('optimizer.name', other)}",
                severity="warning",
            )


def _ema(loaded: LoadedJob) -> Iterator[Finding]:
    if loaded.job.ema.decay is not None:
        return
    for key in ("ema.warmup", "ema.evaluate"):
        if _is_set(loaded, key):
            yield Finding(
                slug="ignored-key",
                what=f"`{key}` = {format_value(loaded.value(key))} is ignored: "
                "no average of the weights is kept",
                why=loaded.said(key, "ema.decay"),
                fix=f"remove `{key}`, or {loaded.line_for('ema.decay', 0.999)}",
                severity="warning",
            )


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
