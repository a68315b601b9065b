"""A trained model in the loop: builds it, hands it to its recipe's benchmark, and writes the films.
Runs in a process of its own, on the first GPU where there is one; no data set is opened."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterable, Mapping
from operator import index
from pathlib import Path

import torch

from phalanx.codec import from_json, to_json
from phalanx.engine.checkpoint.trained_model import build_model
from phalanx.engine.process.failure import own_line
from phalanx.errors import Finding, UserError, did_you_mean
from phalanx.recipe.benchmarking import (
    Benchmarked,
    Benchmarking,
    TaskResult,
    default_benchmark,
    known_benchmarks,
)
from phalanx.recipe.interface import Recipe
from phalanx.recipe.loading import load_recipe
from phalanx.recipe.questions import BenchmarkAnswer, BenchmarkQuestion, Film
from phalanx.run.media import write_named


def run_benchmark(request_file: Path, result_file: Path) -> None:
    """Answer a `BenchmarkQuestion`; never raises for the user's mistakes."""
    question = from_json(BenchmarkQuestion, json.loads(request_file.read_text(encoding="utf-8")))
    try:
        answer = _run(question)
    except UserError as error:
        answer = BenchmarkAnswer(findings=error.findings)
    result_file.write_text(json.dumps(to_json(answer)), encoding="utf-8")


def _run(question: BenchmarkQuestion) -> BenchmarkAnswer:
    spec, flags = question.recipe, question.flags
    recipe = load_recipe(spec, question.options)
    name, chosen = question.benchmark, []
    if name is None:
        name = default_benchmark(recipe)
        if name is None:
            raise UserError(_none_is_usual(recipe, spec, flags))
        chosen = [_usual(spec, name, flags)]
    if not isinstance(recipe, Benchmarking) or name not in recipe.benchmarks:
        raise UserError(_unknown(recipe, spec, name))
    device = _device(question.device)
    model, findings = build_model(recipe, question.file, device)
    started = time.perf_counter()
    try:
        with torch.no_grad():
            done = recipe.benchmark(model, name, question.settings)
        tasks = _plain(done.tasks)
        baselines = {str(of): _plain(theirs) for of, theirs in done.baselines.items()}
    except UserError:
        raise
    except Exception as error:  # the recipe's own code, and a simulator's
        traceback.print_exception(error)
        raise UserError(_failed(recipe, name, error)) from error
    seconds = time.perf_counter() - started
    return BenchmarkAnswer(
        benchmark=name,
        tasks=tasks,
        baselines=baselines,
        media=_write_media(done, question.video),
        seconds=seconds,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        findings=[*chosen, *findings],
    )


def _plain(tasks: Iterable[TaskResult]) -> list[TaskResult]:
    """Return results with values of the documented types, whatever a recipe counted with."""
    return [
        TaskResult(str(one.task), index(one.successes), index(one.episodes), _floats(one.figures))
        for one in tasks
    ]


def _floats(figures: Mapping[str, float]) -> dict[str, float]:
    return {str(name): float(value) for name, value in figures.items()}


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


def _write_media(done: Benchmarked, folder: Path | None) -> list[Film]:
    if folder is None:
        return []
    written = []
    for media in done.media:
        path = write_named(folder, media.name, media.suffix, media.content)
        written.append(Film(str(media.name), path, str(media.caption or "")))
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
