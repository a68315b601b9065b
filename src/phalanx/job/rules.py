"""Rules that need more than one key of a job, or the disk: all problems at once, nothing created.

What single keys may hold is in `job.schema`; what the recipe's options may hold is judged by it.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from phalanx.errors import Finding, did_you_mean
from phalanx.job.load import LoadedJob, format_value
from phalanx.job.schema import Interval, Job


def check_job(loaded: LoadedJob, *, known_recipes: Collection[str]) -> list[Finding]:
    """Every problem of a job that can be seen without its machine and without its recipe's code."""
    return [
        *_length(loaded),
        *_batch(loaded),
        *_devices(loaded),
        *_optimizer(loaded),
        *_intervals(loaded),
        *_recipe(loaded, known_recipes),
        *_output(loaded),
        *_init_from(loaded),
    ]


def ranks_asked(job: Job) -> int | None:
    """How many ranks the job asks for; None when that is left to the machine."""
    gpus = job.devices.gpus
    if isinstance(gpus, list):
        return len(gpus)
    return gpus if isinstance(gpus, int) else job.devices.cpu


def gpu_findings(
    loaded: LoadedJob, gpu_ids: Sequence[int], *, cuda_visible_devices: str | None
) -> list[Finding]:
    """Whether the GPUs a job asks for are among those of this machine."""
    gpus = loaded.job.devices.gpus
    if gpus is None or gpus == 0:
        return []
    there = f"{len(gpu_ids)} GPUs here: {list(gpu_ids)}" if gpu_ids else "no GPU here"
    visible = "not set" if cuda_visible_devices is None else f'"{cuda_visible_devices}"'
    why = f"{_said(loaded, 'devices.gpus')}; {there}; CUDA_VISIBLE_DEVICES is {visible}"
    if not gpu_ids:
        return [
            Finding(
                slug="no-gpu",
                what=f"the job asks for GPUs ({format_value(gpus)}), this machine has 0",
                why=why,
                fix="--cpu 2",
            )
        ]
    origin = loaded.origin("devices.gpus")
    if isinstance(gpus, int) and gpus > len(gpu_ids):
        return [
            Finding(
                slug="too-few-gpus",
                what=f"the job asks for {gpus} GPUs, this machine has {len(gpu_ids)}",
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
            f"this machine has {', '.join(map(str, gpu_ids))}",
            why=why,
            fix=origin.line_for("devices.gpus", left),
        )
    ]


def _value(loaded: LoadedJob, key: str) -> Any:
    place: Any = loaded.job
    for part in key.split("."):
        place = getattr(place, part)
    return place


def _said(loaded: LoadedJob, *keys: str) -> str:
    return ", ".join(
        f"{key} = {format_value(_value(loaded, key))} ({loaded.origin(key)})" for key in keys
    )


def _is_set(loaded: LoadedJob, key: str) -> bool:
    return loaded.origin(key).kind != "default"


def _fix(loaded: LoadedJob, key: str, value: Any) -> str:
    return loaded.origin(key).line_for(key, value)


def _keep_one(loaded: LoadedJob, first: str, second: str) -> str:
    """How to drop one of two keys: the file's, when the other was typed for this run."""
    for kept, dropped in ((first, second), (second, first)):
        if loaded.origin(kept).is_command_line and not loaded.origin(dropped).is_command_line:
            return f"add {dropped}=null to the command line"
    return f"keep only `{_fix(loaded, first, _value(loaded, first))}` or only " + (
        f"`{_fix(loaded, second, _value(loaded, second))}`"
    )


def _length(loaded: LoadedJob) -> Iterator[Finding]:
    job = loaded.job
    if job.epochs is not None and job.steps is not None:
        yield Finding(
            slug="two-lengths",
            what=f"the job says {job.epochs} epochs and {job.steps} steps, it has one length",
            why=_said(loaded, "epochs", "steps"),
            fix=_keep_one(loaded, "epochs", "steps"),
        )
    if job.epochs is None and job.steps is None:
        yield Finding(
            slug="no-length",
            what="the job does not say how long to train: `epochs` and `steps` are not given",
            why=_said(loaded, "epochs", "steps"),
            fix="epochs: 10",
        )
    early = job.evaluate.early_stopping
    if early is not None and job.evaluate.every is None:
        yield Finding(
            slug="early-stopping",
            what=f"early stopping after {early} evaluations, but there is none while training",
            why=_said(loaded, "evaluate.early_stopping", "evaluate.every"),
            fix=_fix(loaded, "evaluate.every", "1 epochs"),
        )
    warmup = job.schedule.warmup
    if not isinstance(warmup, Interval):
        return
    length = {"steps": job.steps, "epochs": job.epochs, "percent": 100}.get(warmup.unit)
    if warmup.unit == "minutes":
        yield Finding(
            slug="warmup-unit",
            what=f"a warm-up of {warmup} is measured by the clock, the schedule counts steps",
            why=_said(loaded, "schedule.warmup"),
            fix=_fix(loaded, "schedule.warmup", "5%"),
        )
    elif length is not None and warmup.count > length:
        total = Interval(count=length, unit=warmup.unit)
        key = "schedule.warmup"
        yield Finding(
            slug="long-warmup",
            what=f"the warm-up of {warmup} is longer than the training of {total}",
            why=_said(loaded, key, *([warmup.unit] if warmup.unit != "percent" else [])),
            fix=_fix(loaded, key, "5%"),
        )


def _batch(loaded: LoadedJob) -> Iterator[Finding]:
    job = loaded.job
    total, per_gpu = job.global_batch_size, job.batch_per_gpu
    micro, accumulation = job.micro_batch_size, job.gradient_accumulation
    if total is not None and per_gpu is not None:
        yield Finding(
            slug="two-batches",
            what=f"the job says {total} samples per step and {per_gpu} per GPU, it has one batch",
            why=_said(loaded, "global_batch_size", "batch_per_gpu"),
            fix=_keep_one(loaded, "global_batch_size", "batch_per_gpu"),
        )
    if total is None and per_gpu is None:
        yield Finding(
            slug="no-batch",
            what="the job has no batch size: `global_batch_size` and `batch_per_gpu` are not given",
            why=_said(loaded, "global_batch_size", "batch_per_gpu", "micro_batch_size"),
            fix=f"batch_per_gpu: {micro}" if micro else "global_batch_size: 64",
        )
    if per_gpu is not None and micro is not None and per_gpu != micro:
        yield Finding(
            slug="two-micro-batches",
            what=f"a forward on one rank has {per_gpu} samples by one key and {micro} by another",
            why=_said(loaded, "batch_per_gpu", "micro_batch_size"),
            fix=_keep_one(loaded, "batch_per_gpu", "micro_batch_size"),
        )
    if total is None:
        return
    if micro is not None and micro > total:
        yield Finding(
            slug="micro-batch",
            what=f"one forward has {micro} samples, the whole step only {total}",
            why=_said(loaded, "micro_batch_size", "global_batch_size"),
            fix=_fix(loaded, "micro_batch_size", total),
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
        keys += [k for k in ("devices.gpus", "devices.cpu") if ranks and _value(loaded, k)]
        yield Finding(
            slug="batch-arithmetic",
            what=f"{' x '.join(parts)} = {smallest} samples, which does not make up a global "
            f"batch of {total}",
            why=_said(loaded, *keys),
            fix=_fix(loaded, "global_batch_size", multiple),
        )


def _devices(loaded: LoadedJob) -> Iterator[Finding]:
    devices = loaded.job.devices
    gpus, ranks = devices.gpus, ranks_asked(loaded.job)
    if gpus is not None and devices.cpu is not None:
        yield Finding(
            slug="gpus-and-cpu",
            what=f"the job asks for GPUs ({format_value(gpus)}) and for {devices.cpu} CPU "
            "processes, it trains on one kind",
            why=_said(loaded, "devices.gpus", "devices.cpu"),
            fix=_keep_one(loaded, "devices.gpus", "devices.cpu"),
        )
    if isinstance(gpus, int) and gpus < 1:
        yield Finding(
            slug="gpu-count",
            what=f"the job asks for {gpus} GPUs, the least is 1",
            why=f"{_said(loaded, 'devices.gpus')}; a plain number is how many, not which",
            fix="--gpus 0, for GPU number 0 (devices.gpus: [0]), or --cpu 2 for none",
        )
    if isinstance(gpus, list):
        twice = [i for i, times in Counter(gpus).items() if times > 1]
        negative = [i for i in gpus if i < 0]
        if twice or negative or not gpus:
            wrong = [f"{i} is given {gpus.count(i)} times" for i in twice]
            wrong += [f"{i} is below 0" for i in dict.fromkeys(negative)]
            good = [i for i in dict.fromkeys(gpus) if i >= 0] or [0]
            yield Finding(
                slug="gpu-ids",
                what=f"the GPU ids {gpus} are wrong: {', '.join(wrong) or 'the list is empty'}",
                why=_said(loaded, "devices.gpus"),
                fix=_fix(loaded, "devices.gpus", good),
            )
    if loaded.job.strategy == "single" and ranks is not None and ranks > 1:
        key = "devices.cpu" if gpus is None else "devices.gpus"
        yield Finding(
            slug="single-strategy",
            what=f"the strategy `single` trains on 1 rank, the job asks for {ranks}",
            why=_said(loaded, "strategy", key),
            fix=_fix(loaded, "strategy", "ddp"),
        )
    if devices.backend == "nccl" and devices.cpu is not None and gpus is None:
        yield Finding(
            slug="nccl-on-cpu",
            what=f"`nccl` joins GPUs only, the job asks for {devices.cpu} CPU processes",
            why=_said(loaded, "devices.backend", "devices.cpu"),
            fix=_fix(loaded, "devices.backend", "gloo"),
        )


def _optimizer(loaded: LoadedJob) -> Iterator[Finding]:
    optimizer = loaded.job.optimizer
    if not all(0 <= beta < 1 for beta in optimizer.betas):
        yield Finding(
            slug="betas",
            what=f"AdamW's betas are {optimizer.betas}, each must be at least 0 and below 1",
            why=_said(loaded, "optimizer.betas"),
            fix=_fix(loaded, "optimizer.betas", [0.9, 0.999]),
        )
    if optimizer.name == "sgd" and optimizer.nesterov and optimizer.momentum == 0:
        yield Finding(
            slug="nesterov",
            what="Nesterov momentum is on and the momentum is 0, it must be above 0",
            why=_said(loaded, "optimizer.nesterov", "optimizer.momentum"),
            fix=_fix(loaded, "optimizer.momentum", 0.9),
        )
    ignored = {"adamw": ("momentum", "nesterov"), "sgd": ("betas", "eps")}[optimizer.name]
    other = {"adamw": "sgd", "sgd": "adamw"}[optimizer.name]
    for key in (f"optimizer.{name}" for name in ignored):
        if _is_set(loaded, key):
            yield Finding(
                slug="ignored-key",
                what=f"`{key}` = {format_value(_value(loaded, key))} is ignored: "
                f"`{optimizer.name}` has no such setting",
                why=_said(loaded, key, "optimizer.name"),
                fix=f"remove `{key}`, or {_fix(loaded, 'optimizer.name', other)}",
                severity="warning",
            )


def _intervals(loaded: LoadedJob) -> Iterator[Finding]:
    for key, example in (
        ("stop_after", "60 minutes"),
        ("schedule.warmup", "5%"),
        ("evaluate.every", "1 epochs"),
        ("checkpoint.every", "1 epochs"),
    ):
        interval = _value(loaded, key)
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
        if problem:
            yield Finding(
                slug="interval",
                what=f"`{key}` is {interval}, it {problem}",
                why=_said(loaded, key),
                fix=_fix(loaded, key, better),
            )


def _recipe(loaded: LoadedJob, known: Collection[str]) -> Iterator[Finding]:
    recipe = loaded.job.recipe
    name, colon, attribute = recipe.rpartition(":")
    if not colon:
        name, attribute = recipe, ""
    path = Path(name)
    if not colon and path.suffix != ".py" and path.name == recipe:
        if recipe not in known:
            near = get_close_matches(recipe, sorted(known), n=1, cutoff=0.6)
            yield Finding(
                slug="unknown-recipe",
                what=f"there is no built-in recipe {recipe!r}{did_you_mean(recipe, known)}",
                why=f"{_said(loaded, 'recipe')}; built in: {', '.join(sorted(known)) or 'none'}",
                fix=_fix(loaded, "recipe", (near or sorted(known) or ["my_recipe.py:MyRecipe"])[0]),
            )
        return
    if path.suffix != ".py":
        yield Finding(
            slug="recipe-file",
            what=f"the recipe {recipe!r} names a file that ends in {path.suffix!r}, not in '.py'",
            why=_said(loaded, "recipe"),
            fix=_fix(loaded, "recipe", f"{path.with_suffix('.py')}:{attribute or 'MyRecipe'}")
            if path.name
            else _fix(loaded, "recipe", "my_recipe.py:MyRecipe"),
        )
        return
    is_file = _mode(path) is not None and stat.S_ISREG(_mode(path) or 0)
    if not is_file:
        folder = loaded.path.parent if loaded.path else Path()
        near = [str(folder / name)] if (folder / path).is_file() else _near_file(path, ".py")
        yield Finding(
            slug="recipe-missing",
            what=f"the recipe file `{path}` does not exist"
            + (f" (did you mean `{near[0]}`?)" if near else ""),
            why=f"{_said(loaded, 'recipe')}; looked for in {Path.cwd()}",
            fix=_fix(loaded, "recipe", f"{(near or [name])[0]}:{attribute or 'MyRecipe'}"),
        )
    if not attribute.isidentifier():
        classes = _classes(path) if is_file else []
        yield Finding(
            slug="recipe-class",
            what=f"the recipe {recipe!r} does not name the class in the file",
            why=f"{_said(loaded, 'recipe')}; `{path}` defines {', '.join(classes) or 'no class'}",
            fix=_fix(loaded, "recipe", f"{name}:{(classes or ['MyRecipe'])[-1]}"),
        )


def _output(loaded: LoadedJob) -> Iterator[Finding]:
    output = loaded.job.output
    path = Path(output)
    problem, fix = "", "runs"
    if output.startswith("~"):
        problem, fix = "begins with `~`, which only a shell unfolds", str(_home(path))
    else:
        place = next((p for p in (path, *path.absolute().parents) if _mode(p) is not None), None)
        if "\0" in output or place is None:
            problem = "is not a possible path"
        elif not stat.S_ISDIR(_mode(place) or 0):
            problem = f"cannot be made: `{place}` is a file" if place != path else "is a file"
        elif not os.access(place, os.W_OK | os.X_OK):
            problem = f"cannot be written: no permission in `{place}`"
    if problem:
        yield Finding(
            slug="output-path",
            what=f"the output folder {output!r} {problem}",
            why=_said(loaded, "output"),
            fix=_fix(loaded, "output", fix),
        )


def _init_from(loaded: LoadedJob) -> Iterator[Finding]:
    given = loaded.job.init_from
    if given is None or any(_mode(p) for p in (Path(given), Path(loaded.job.output) / given)):
        return
    near = [str(_home(Path(given)))] if given.startswith("~") else _near_file(Path(given), "")
    yield Finding(
        slug="init-from",
        what=f"there are no weights at {given!r}"
        + (f" (did you mean `{near[0]}`?)" if near else ""),
        why=f"{_said(loaded, 'init_from')}; looked for in {Path.cwd()}",
        fix=_fix(loaded, "init_from", near[0] if near else None),
    )


def _mode(path: Path) -> int | None:
    """The file's mode, or None when it is not there; a path the system refuses is not there."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return None


def _home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # nobody of that name
        return Path("runs")


def _near_file(path: Path, ending: str) -> list[str]:
    try:
        names = [p.name for p in path.parent.iterdir() if p.name.endswith(ending)]
    except (OSError, ValueError):
        return []
    return [str(path.with_name(n)) for n in get_close_matches(path.name, names, n=1, cutoff=0.6)]


def _classes(path: Path) -> list[str]:
    """Class names of a Python file, by its text: importing it would import torch."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return re.findall(r"^class (\w+)", file.read(1 << 20), re.MULTILINE)
    except OSError:
        return []
