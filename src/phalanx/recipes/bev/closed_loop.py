"""The benchmark `highway`: a planner in highway-env, beside its expert and constant velocity.

All three drive the same episodes: the same seeds, the same traffic, seeds that no data has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from phalanx.recipe import (
    Benchmarked,
    BenchmarkSettings,
    Finding,
    Media,
    TaskResult,
    UserError,
    encode_film,
    report,
    roll_out,
)
from phalanx.recipes.bev.dataset import BENCHMARK_SEEDS, missing_simulator
from phalanx.recipes.bev.driving import DRIVERS, Drive, Driver, Episode, drive
from phalanx.recipes.bev.network import SEEN
from phalanx.recipes.bev.scenarios import PLANNED_HZ, WAYPOINT_S, WAYPOINTS

EPISODES = 25
_TOGETHER = 8  # episodes that a process has under way: the model answers them in one batch


def run_highway(
    model: nn.Module, settings: BenchmarkSettings, scenarios: Sequence[str]
) -> Benchmarked:
    """How the model does in each scenario, and how the expert and constant velocity do there."""
    if findings := missing_simulator():
        raise UserError(findings)
    horizon = settings.horizon or 1
    longest = round(WAYPOINTS * WAYPOINT_S * PLANNED_HZ)
    if horizon > longest:
        raise UserError(_too_far(horizon, longest))
    tasks = list(scenarios)[: settings.tasks]
    count = settings.episodes or EPISODES
    first = BENCHMARK_SEEDS + 10_007 * settings.seed
    episodes = [
        Episode(
            task,
            first + index,
            driver,
            settings.max_steps,
            horizon,
            is_filmed=settings.video and driver == "model" and index == 0,
        )
        for driver in DRIVERS
        for task in tasks
        for index in range(count)
    ]
    drives = roll_out(
        drive,
        episodes,
        answer=lambda seen: _answer(model, seen),
        workers=settings.workers,
        together=_TOGETHER,
        done=lambda done: report(f"highway: {done} of {len(episodes)} episodes driven"),
    )
    found: dict[tuple[Driver, str], list[Drive]] = {}
    for episode, result in zip(episodes, drives, strict=True):
        found.setdefault((episode.driver, episode.scenario), []).append(result)
    results: dict[str, list[TaskResult]] = {
        driver: [summarise(task, found[driver, task]) for task in tasks] for driver in DRIVERS
    }
    own = results.pop("model")
    return Benchmarked(own, _films(found, tasks), baselines=results)


def summarise(task: str, drives: Sequence[Drive]) -> TaskResult:
    """Success: arrived, without a collision and without leaving the road."""
    arrived = sum(d.has_arrived and not d.is_crashed and not d.is_off_road for d in drives)
    figures = {
        "collisions": np.mean([d.is_crashed for d in drives]),
        "off_road": np.mean([d.is_off_road for d in drives]),
        "completion": np.mean([d.completion for d in drives]),
        "driving_score": np.mean([d.score for d in drives]),
    }
    return TaskResult(
        task, int(arrived), len(drives), {name: float(value) for name, value in figures.items()}
    )


def _answer(model: nn.Module, seen: list[dict[str, np.ndarray]]) -> list[Any]:
    device = next(model.parameters()).device
    batch = [torch.from_numpy(np.stack([one[name] for one in seen])).to(device) for name in SEEN]
    with torch.no_grad():
        waypoints, deviation = model(*batch)
    pairs = zip(waypoints.cpu().numpy(), deviation.cpu().numpy(), strict=True)
    return [(plan.astype(np.float64), unsure) for plan, unsure in pairs]


def _films(found: dict[tuple[Driver, str], list[Drive]], tasks: Sequence[str]) -> list[Media]:
    films = []
    for task in tasks:
        for one in found["model", task]:
            if one.films:
                how = "collided" if one.is_crashed else "arrived" if one.has_arrived else "ended"
                caption = f"{task}: {how} after {one.seconds:.1f} s"
                film = encode_film(one.films, fps=PLANNED_HZ * 2)
                films.append(Media(task, ".mp4", film, caption))
    return films


def _too_far(horizon: int, longest: int) -> Finding:
    return Finding(
        slug="horizon",
        what=f"--horizon {horizon}: a plan is {longest} steps long",
        why=f"{WAYPOINTS} waypoints, {WAYPOINT_S:g} s apart, at {PLANNED_HZ} steps per second",
        fix=f"--horizon {longest}, or less",
    )
