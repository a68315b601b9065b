"""A trained model in the loop: builds it, hands it to its recipe's benchmark, and writes the films.
Runs in a process of its own, on the first GPU where there is one; no data set is opened."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from phalanx.engine.checkpoint.trained_model import build_model
from phalanx.engine.process.failure import own_line
from phalanx.errors import Finding, UserError, did_you_mean
from phalanx.recipe.benchmarking import (
    Benchmarked,
    Benchmarking,
    BenchmarkSettings,
    TaskResult,
    default_benchmark,
    known_benchmarks,
)
from phalanx.recipe.interface import Recipe
from phalanx.recipe.loading import load_recipe
from phalanx.run.media import write_named


def run_benchmark(request_file: Path, result_file: Path) -> None:
    """Answer a request `{recipe, options, file, benchmark, flags, settings, video, device}` with
    `{benchmark, tasks, baselines, media, seconds, device, findings}`; never raises for the user's
    mistakes."""
    request = json.loads(request_file.read_text(encoding="utf-8"))
    answer: dict[str, Any] = {
        "tasks": [],
        "baselines": {},
        "media": [],
        "findings": [],
        "seconds": 0.0,
    }
    try:
        answer |= _run(request)
    except UserError as error:
        answer["findings"] = [finding.to_json() for finding in error.findings]
    result_file.write_text(json.dumps(answer), encoding="utf-8")


def _run(request: dict[str, Any]) -> dict[str, Any]:
    recipe = load_recipe(request["recipe"], request["options"])
    name, chosen = request["benchmark"], []
    if name is None:
        name = default_benchmark(recipe)
        if name is None:
            raise UserError(_none_is_usual(recipe, request["recipe"], request["flags"]))
        chosen = [_usual(request["recipe"], name, request["flags"])]
    if not isinstance(recipe, Benchmarking) or name not in recipe.benchmarks:
        raise UserError(_unknown(recipe, request["recipe"], name))
    device = _device(request["device"])
    model, findings = build_model(recipe, Path(request["file"]), device)
    settings = BenchmarkSettings(**request["settings"])
    started = time.perf_counter()
    try:
        with torch.no_grad():
            done = recipe.benchmark(model, name, settings)
    except UserError:
        raise
    except Exception as error:  # the recipe's own code, and a simulator's
        traceback.print_exception(error)
        raise UserError(_failed(recipe, name, error)) from error
    seconds = time.perf_counter() - started
    return {
        "benchmark": name,
        "tasks": _records(done.tasks),
        "baselines": {name: _records(tasks) for name, tasks in done.baselines.items()},
        "media": _write_media(done, request["video"]),
        "seconds": seconds,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "findings": [finding.to_json() for finding in [*chosen, *findings]],
    }


def _records(tasks: Sequence[TaskResult]) -> list[dict[str, Any]]:
    return [{**task._asdict(), "figures": dict(task.figures)} for task in tasks]


def _device(wanted: str) -> torch.device:
    """`auto`, `cpu`, or a GPU that must be there."""
    count = torch.cuda.device_count()
    if wanted in ("auto", "cpu"):
        return torch.device("cuda" if wanted == "auto" and count else "cpu")
    device = torch.device(wanted)
    if (device.index or 0) >= count:
        raise UserError(
            Finding(
                slug="no-such-gpu",
                what=f"there is no GPU {device.index or 0} here",
                why=f"--gpus was given, and CUDA sees {count}",
                fix="without --gpus, or --cpu 1",
            )
        )
    return device


def _write_media(done: Benchmarked, folder: str | None) -> list[dict[str, str]]:
    if folder is None:
        return []
    written = []
    for media in done.media:
        path = write_named(Path(folder), media.name, media.suffix, media.content)
        written.append({"name": media.name, "path": str(path), "caption": media.caption})
    return written


def _unknown(recipe: Recipe, spec: str, name: str) -> Finding:
    there = known_benchmarks(recipe)
    known = "; ".join(f"{key}: {meaning}" for key, meaning in there.items()) or "it has none"
    return Finding(
        slug="unknown-benchmark",
        what=f"the recipe has no benchmark `{name}`{did_you_mean(name, there)}",
        why=f"recipe = {spec}; {known}",
        fix=" or ".join(f"--benchmark {key}" for key in there)
        or "without --benchmark: its test split",
    )


def _usual(spec: str, name: str, flags: str) -> Finding:
    return Finding(
        slug="usual-benchmark",
        what=f"run in the benchmark `{name}`, and not on the test split",
        why=f"{flags}: for roll-outs; --benchmark was not given, default_benchmark = {name} of "
        f"recipe = {spec}",
        fix="--benchmark NAME for another; without these options: the test split first",
        severity="note",
    )


def _none_is_usual(recipe: Recipe, spec: str, flags: str) -> Finding:
    there = known_benchmarks(recipe)
    known = ", ".join(there) or "none"
    return Finding(
        slug="no-benchmark",
        what=f"{flags}: of no use without --benchmark",
        why=f"recipe = {spec} names no benchmark as its usual one; it has: {known}",
        fix=" or ".join(f"--benchmark {key}" for key in there)
        or "without these options: its test split",
    )


def _failed(recipe: Recipe, name: str, error: Exception) -> Finding:
    return Finding(
        slug="benchmark-failed",
        what=f"the benchmark `{name}` failed: {type(error).__name__}: {str(error)[:600]}",
        why=own_line(error),
        fix=f"mend {type(recipe).__name__}.benchmark",
    )
