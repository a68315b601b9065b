"""Demonstrations by Meta-World's scripted experts, in parallel processes.

Noise is put on what is carried out, and what the expert wanted is what is kept: the policy sees
states that come of mistakes, with the action that mends them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phalanx.recipe import (
    Collected,
    Finding,
    UserError,
    cache_folder,
    did_you_mean,
    format_seconds,
    report,
    roll_out,
    usable_cores,
)
from phalanx.recipes.policy.demonstrations import (
    Episode,
    Task,
    is_demonstrations,
    write_demonstrations,
)
from phalanx.recipes.policy.options import PolicyCollecting
from phalanx.recipes.policy.simulator import (
    CAMERAS,
    FPS,
    PLACES,
    Arm,
    demonstration_seed,
    expert_of,
    missing_simulator,
    text_of,
    unknown_tasks,
)

_VERSION = 1  # of what is collected: another one is collected anew
_LINGER = 20  # steps after success: the policy learns to stay there
_BLOCK = 10  # episodes that one process does in one go: an environment takes a second to make
_SPARE = 1.1  # episodes tried for one that is wanted: experts fail at times


class _Block(NamedTuple):
    task: str
    number: int
    settings: dict[str, Any]


class _Tried(NamedTuple):
    states: np.ndarray
    actions: np.ndarray
    images: dict[str, np.ndarray]
    is_done: bool


def collected_folder(settings: PolicyCollecting) -> Path:
    """Where demonstrations lie that were collected with these settings."""
    asked = settings.model_dump(mode="json", exclude={"workers"})
    name = hashlib.sha256(json.dumps([_VERSION, asked], sort_keys=True).encode()).hexdigest()[:12]
    return cache_folder("policy") / f"metaworld-{name}"


def collect(settings: PolicyCollecting, out: Path | None) -> Collected:
    """Ask the experts, or find what they did before."""
    folder = out or collected_folder(settings)
    if is_demonstrations(folder):
        return Collected(folder, ["collected before"])
    findings = missing_simulator() or unknown_tasks(settings.tasks) + _unknown_cameras(settings)
    if findings:
        raise UserError(findings)
    started = time.monotonic()
    blocks = _blocks(settings)
    total = sum(_size(settings, block.number) for block in blocks)
    report(f"Meta-World's experts begin: {total} episodes")
    workers = settings.workers or usable_cores()
    tried = roll_out(
        _demonstrate,
        blocks,
        workers=workers,
        done=lambda count: report(
            f"Meta-World's experts: {count} of {len(blocks)} blocks of {_BLOCK} episodes"
        ),
    )
    by_task: dict[str, list[_Tried]] = {task: [] for task in settings.tasks}
    for block, episodes in zip(blocks, tried, strict=True):
        by_task[block.task] += episodes
    tasks = [Task(name, text_of(name)) for name in settings.tasks]
    kept = {name: [e for e in all_ if e.is_done] for name, all_ in by_task.items()}
    about = {"fps": FPS, "source": "metaworld", "settings": settings.model_dump(mode="json")}
    write_demonstrations(
        folder,
        _episodes(kept, settings.episodes),
        tasks,
        about=about,
        is_new=out is not None,
    )
    return Collected(folder, _said(by_task, kept, settings, time.monotonic() - started))


def _blocks(settings: PolicyCollecting) -> list[_Block]:
    """Tasks take turns, so that all of them are under way at the same time."""
    asked = settings.model_dump(mode="json")
    count = -(-int(settings.episodes * _SPARE) // _BLOCK)
    return [_Block(task, number, asked) for number in range(count) for task in settings.tasks]


def _size(settings: PolicyCollecting, number: int) -> int:
    return min(_BLOCK, max(1, int(settings.episodes * _SPARE) - number * _BLOCK))


def _demonstrate(block: _Block) -> list[_Tried]:
    """A block of episodes of one task, in a process of roll-outs."""
    settings = PolicyCollecting.model_validate(block.settings)
    number = block.number * _BLOCK
    seed = demonstration_seed(settings.seed, number // PLACES)
    cameras: list[str | None] = [*settings.cameras] or [None]
    arms = {camera: Arm(block.task, seed, camera, settings.image_size) for camera in cameras}
    expert = expert_of(block.task)
    noise = np.random.default_rng([settings.seed, block.number, *block.task.encode()])
    return [
        _demonstration(arms, expert, number + index, settings, noise)
        for index in range(_size(settings, block.number))
    ]


def _demonstration(
    arms: dict[str | None, Arm],
    expert: Any,
    number: int,
    settings: PolicyCollecting,
    noise: np.random.Generator,
) -> _Tried:
    states, actions = [], []
    images: dict[str, list[np.ndarray]] = {camera: [] for camera in settings.cameras}
    # An environment has one camera: several are the same episode several times over.
    beginnings = [arm.reset(number) for arm in arms.values()]
    state = beginnings[0]
    succeeded: int | None = None
    for step in range(settings.max_steps):
        for camera, arm in arms.items():
            if camera is not None:
                images[camera].append(arm.picture())
        wanted = np.clip(expert.get_action(state.astype(np.float64)), -1, 1).astype(np.float32)
        states.append(state)
        actions.append(wanted)
        done = wanted + settings.noise * noise.standard_normal(len(wanted)).astype(np.float32)
        after = [arm.step(done) for arm in arms.values()]
        state, is_success = after[0]
        if is_success and succeeded is None:
            succeeded = step
        if succeeded is not None and step - succeeded >= _LINGER:
            break
    stacked = {camera: np.stack(taken) for camera, taken in images.items()}
    return _Tried(np.stack(states), np.stack(actions), stacked, succeeded is not None)


def _episodes(kept: dict[str, list[_Tried]], most: int) -> Iterator[Episode]:
    for task, (_, episodes) in enumerate(kept.items()):
        for one in episodes[:most]:
            yield Episode(task, one.states, one.actions, one.images)


def _said(
    tried: dict[str, list[_Tried]],
    kept: dict[str, list[_Tried]],
    settings: PolicyCollecting,
    seconds: float,
) -> list[str]:
    lines = []
    for task, episodes in kept.items():
        taken = episodes[: settings.episodes]
        steps = sum(len(one.actions) for one in taken)
        lines.append(
            f"{task}: {len(episodes)} of {len(tried[task])} episodes succeeded, {len(taken)} kept "
            f"({steps:,} steps)"
        )
    return [*lines, f"took {format_seconds(seconds)}"]


def _unknown_cameras(settings: PolicyCollecting) -> list[Finding]:
    return [
        Finding(
            slug="policy-camera",
            what=f"Meta-World has no camera `{camera}`{did_you_mean(camera, CAMERAS)}",
            why=f"cameras names it; there are {', '.join(CAMERAS)}",
            fix=f"cameras={CAMERAS[0]}",
        )
        for camera in settings.cameras
        if camera not in CAMERAS
    ]
