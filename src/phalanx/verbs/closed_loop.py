"""Runs a trained model in the loop: `phalanx evaluate --benchmark NAME`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Unpack

from phalanx.errors import Finding, UserError
from phalanx.job import Override
from phalanx.prepare.engine_child import require_answer
from phalanx.prepare.trained_model import Trained, Which, find_trained
from phalanx.recipe.benchmarking import BenchmarkSettings, TaskResult
from phalanx.recipe.questions import BenchmarkAnswer, BenchmarkQuestion
from phalanx.recipe.rollouts import usable_cores
from phalanx.run.event_kinds import BenchmarkTask
from phalanx.verbs.evaluate import Evaluated, Say, record_in_run

_TIMEOUT_S = 24 * 3600.0  # simulators take their time
_Z = 1.959964  # of a normal distribution: 95 % lie within


@dataclass(frozen=True)
class Benchmark:
    """A closed-loop benchmark, and how it is to be run; None: its own way."""

    name: str | None = None
    """None: the one that the recipe names as its usual one."""
    tasks: int | None = None
    episodes: int | None = None
    max_steps: int | None = None
    horizon: int | None = None
    video: Path | None = None
    seed: int | None = None
    workers: int | None = None

    @property
    def flags(self) -> str:
        """What was asked of its roll-outs, as options of the command line."""
        asked = [name for name, value in vars(self).items() if value is not None]
        return ", ".join("--" + name.replace("_", "-") for name in asked if name != "name")


def benchmark_trained(
    reference: str | None,
    overrides: Sequence[Override | str] = (),
    *,
    benchmark: Benchmark,
    say: Say = lambda phase: None,
    **which: Unpack[Which],
) -> Evaluated:
    """Run a trained model in a benchmark of its recipe; raises UserError."""
    say("looking for the weights")
    trained = find_trained(reference, overrides, command="phalanx evaluate", **which)
    if trained.file.suffix == ".onnx":
        raise UserError(_not_in_the_loop(trained))
    say(f"running {benchmark.name or 'the usual benchmark of the recipe'}")
    answer, findings = require_answer(
        "benchmark",
        _question(trained, benchmark, overrides),
        BenchmarkAnswer,
        timeout_s=_TIMEOUT_S,
        silent=partial(_silent, benchmark),
        notes=[*trained.findings, *trained.changes()],
        uses_gpu=True,
        say=say,
    )
    tasks = [_task(result) for result in answer.tasks]
    done = Evaluated(
        title=trained.title,
        file=trained.file,
        recipe=trained.job.recipe,
        step=trained.step,
        weights=trained.weights,
        metrics=_overall(tasks),
        samples=None,
        seconds=round(answer.seconds, 6),
        where=answer.device,
        benchmark=answer.benchmark,
        tasks=tasks,
        baselines={
            name: [_task(result) for result in results]
            for name, results in answer.baselines.items()
        },
        media=[film.path for film in answer.media],
        run=trained.run.path if trained.run is not None else None,
        findings=findings,
    )
    return record_in_run(trained, done, [film._asdict() for film in answer.media])


def _device(trained: Trained, overrides: Sequence[Override | str]) -> str:
    """The device that was asked for now; what training had is of no account."""
    asked = {o.key for o in overrides if isinstance(o, Override) and o.value is not None}
    if "devices.cpu" in asked:
        return "cpu"
    if "devices.gpus" not in asked:
        return "auto"
    gpus = trained.job.devices.gpus
    return f"cuda:{gpus[0]}" if isinstance(gpus, list) and gpus else "cuda"


def _question(
    trained: Trained, benchmark: Benchmark, overrides: Sequence[Override | str]
) -> BenchmarkQuestion:
    return BenchmarkQuestion(
        recipe=trained.job.recipe,
        options=trained.job.options,
        file=trained.file,
        benchmark=benchmark.name,
        flags=benchmark.flags,
        video=benchmark.video.absolute() if benchmark.video is not None else None,
        device=_device(trained, overrides),
        settings=BenchmarkSettings(
            tasks=benchmark.tasks,
            episodes=benchmark.episodes,
            max_steps=benchmark.max_steps,
            horizon=benchmark.horizon,
            video=benchmark.video is not None,
            seed=benchmark.seed if benchmark.seed is not None else trained.job.seed,
            workers=benchmark.workers or usable_cores(),
        ),
    )


def _task(result: TaskResult) -> BenchmarkTask:
    task, successes, episodes, figures = result
    low, high = wilson_interval(successes, episodes)
    return BenchmarkTask(task, successes, episodes, low, high, dict(figures))


def _overall(tasks: list[BenchmarkTask]) -> dict[str, float]:
    """Success over all episodes, and the mean over the tasks of each other figure."""
    episodes = sum(task.episodes for task in tasks)
    if not episodes:
        return {}
    names = dict.fromkeys(name for task in tasks for name in task.figures)
    means = {
        name: math.fsum(task.figures[name] for task in tasks if name in task.figures)
        / sum(name in task.figures for task in tasks)
        for name in names
    }
    return {"success": sum(task.successes for task in tasks) / episodes, **means}


def wilson_interval(successes: int, episodes: int) -> tuple[float, float]:
    """The 95 % interval of a rate by Wilson (1927): sound for few episodes and for rates of 0 and
    1, where the usual one is empty."""
    if episodes == 0:
        return 0.0, 1.0
    rate, z2 = successes / episodes, _Z * _Z
    middle = (rate + z2 / (2 * episodes)) / (1 + z2 / episodes)
    half = (
        _Z
        * math.sqrt(rate * (1 - rate) / episodes + z2 / (4 * episodes * episodes))
        / (1 + z2 / episodes)
    )
    return max(0.0, middle - half), min(1.0, middle + half)


def _not_in_the_loop(trained: Trained) -> Finding:
    return Finding(
        slug="benchmark-of-onnx",
        what=f"`{trained.file.name}` cannot be run in a benchmark",
        why="a benchmark is given the recipe's own model, which takes more than a forward",
        fix="phalanx evaluate RUN --benchmark NAME; without --benchmark: its test split",
    )


def _silent(benchmark: Benchmark, why: str) -> Finding:
    return Finding(
        slug="benchmark-silent",
        what=f"the benchmark `{benchmark.name or 'default_benchmark'}` gave no result",
        why=f"the process that ran it ended early: {why}",
        fix="fewer --workers, if memory is short",
    )
