"""A policy in the loop: simulators in processes, one model that is asked for all of them at once.

The noise of a prediction is a function of seed, task, episode and step, and not of who else asks.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from phalanx.recipe import (
    Benchmarked,
    BenchmarkSettings,
    Finding,
    Media,
    TaskResult,
    UserError,
    encode_film,
    keys,
    report,
    roll_out,
)
from phalanx.recipes.policy.libero_suite import FPS as LIBERO_FPS
from phalanx.recipes.policy.libero_suite import LiberoArm
from phalanx.recipes.policy.network import PolicyNetwork
from phalanx.recipes.policy.options import PolicyOptions
from phalanx.recipes.policy.simulator import (
    FILM_CAMERA,
    FILM_SIDE,
    FPS,
    PLACES,
    Arm,
    evaluation_seed,
)
from phalanx.recipes.policy.vision import Frozen

EPISODES, MAX_STEPS, HORIZON = 50, 200, 8
_TOGETHER = 8  # episodes of one process: the model is asked for as many at once
_FILMED = 1  # episodes of each task that are filmed
_SMALL = 20_000_000  # parameters of a model that one thread runs quickly enough
_EVERY = 4  # steps between two frames: drawing takes longer than simulating


class Roll(NamedTuple):
    """One episode."""

    world: str
    task: str
    row: int
    """Of the task among those that were trained."""
    number: int
    seed: int
    max_steps: int
    horizon: int
    cameras: tuple[str, ...]
    side: int
    is_filmed: bool


class Seen(NamedTuple):
    """What the policy is shown."""

    row: int
    key: int
    state: np.ndarray
    images: np.ndarray | None


class Rolled(NamedTuple):
    """How an episode went."""

    is_success: bool
    steps: int
    frames: list[np.ndarray]


def run(
    model: PolicyNetwork,
    options: PolicyOptions,
    world: str,
    tasks: Sequence[str],
    settings: BenchmarkSettings,
) -> Benchmarked:
    """Every task of `tasks`, each with its episodes."""
    if settings.horizon is not None and settings.horizon > options.chunk:
        raise UserError(_too_far(settings.horizon, options.chunk))
    rolls = _rolls(options, world, tasks, settings)
    report(f"{world}: {len(rolls)} episodes of {len(tasks)} tasks begin")
    rolled: list[Rolled] = roll_out(
        drive,
        rolls,
        answer=Answering(model, options),
        workers=settings.workers,
        together=min(_TOGETHER, -(-len(rolls) // settings.workers)),
        done=lambda count: report(f"{world}: {count} of {len(rolls)} episodes"),
    )
    results, media = [], []
    for task in tasks:
        mine = [(roll, one) for roll, one in zip(rolls, rolled, strict=True) if roll.task == task]
        good = [one for _, one in mine if one.is_success]
        figures = {"steps": float(np.mean([one.steps for one in good]))} if good else {}
        results.append(TaskResult(task, len(good), len(mine), figures))
        media += [_film(roll, one) for roll, one in mine if one.frames]
    return Benchmarked(results, media)


def _rolls(
    options: PolicyOptions, world: str, tasks: Sequence[str], settings: BenchmarkSettings
) -> list[Roll]:
    trained = options.tasks or []
    return [
        Roll(
            world,
            task,
            trained.index(task),
            number,
            settings.seed,
            settings.max_steps or MAX_STEPS,
            settings.horizon or min(HORIZON, options.chunk),
            tuple(options.cameras),
            options.image_size,
            settings.video and number < _FILMED,
        )
        for number in range(settings.episodes or EPISODES)
        for task in tasks
    ]


def drive(roll: Roll) -> Generator[Seen, np.ndarray, Rolled]:
    """One episode in a process of roll-outs: yields what is seen, is sent a chunk of actions."""
    eyes = _Eyes(roll)
    try:
        state, step = eyes.reset(), 0
        while step < roll.max_steps:
            key = keys.make_key(roll.seed, roll.row, roll.number, step)
            chunk = yield Seen(roll.row, key, state, eyes.pictures())
            for action in chunk[: min(roll.horizon, roll.max_steps - step)]:
                state, is_success = eyes.step(action)
                step += 1
                if is_success:
                    return Rolled(True, step, eyes.frames)
        return Rolled(False, step, eyes.frames)
    finally:
        eyes.put_back()


_FREE: dict[tuple[Any, ...], list[Any]] = {}
"""Environments of this process that no episode uses: making one takes a second."""


class _Eyes:
    """The same episode as many times as there are cameras: an environment has one."""

    def __init__(self, roll: Roll) -> None:
        self._roll = roll
        cameras: list[tuple[str | None, int]] = [(c, roll.side) for c in roll.cameras]
        self._films = roll.is_filmed
        if roll.is_filmed:
            cameras.append((FILM_CAMERA, FILM_SIDE))
        self._arms = {camera: self._take(*camera) for camera in cameras or [(None, 0)]}
        self._steps = 0
        self.frames: list[np.ndarray] = []

    def _take(self, camera: str | None, side: int) -> tuple[tuple[Any, ...], Any]:
        roll = self._roll
        seed = evaluation_seed(roll.seed, roll.number // PLACES)
        kind = (roll.world, roll.task, seed, camera, side)
        free = _FREE.setdefault(kind, [])
        if free:
            return kind, free.pop()
        if roll.world != "metaworld":
            return kind, LiberoArm(roll.world, roll.task, camera, side)
        return kind, Arm(roll.task, seed, camera, side)

    def put_back(self) -> None:
        for kind, arm in self._arms.values():
            _FREE[kind].append(arm)

    def reset(self) -> np.ndarray:
        states = [arm.reset(self._roll.number) for _, arm in self._arms.values()]
        self._film()
        return np.asarray(states[0])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, bool]:
        after = [arm.step(action) for _, arm in self._arms.values()]
        self._steps += 1
        state, is_success = after[0]
        if is_success or self._steps % _EVERY == 0:
            self._film()
        return state, is_success

    def pictures(self) -> np.ndarray | None:
        roll = self._roll
        if not roll.cameras:
            return None
        return np.stack([self._arms[camera, roll.side][1].picture() for camera in roll.cameras])

    def _film(self) -> None:
        if self._films:
            self.frames.append(self._arms[FILM_CAMERA, FILM_SIDE][1].picture())


class Answering:
    """The model as all episodes ask it: what they see becomes chunks of actions."""

    def __init__(self, model: PolicyNetwork, options: PolicyOptions) -> None:
        self._model = model
        self._options = options
        self._device = next(model.parameters()).device
        if self._device.type == "cpu" and sum(p.numel() for p in model.parameters()) < _SMALL:
            torch.set_num_threads(1)  # simulators have the cores: threads would wait for each other
        is_frozen = bool(options.cameras and options.vision_encoder) and not options.train_vision
        self._frozen = Frozen(options.vision_encoder or "", self._device) if is_frozen else None

    def __call__(self, seen: list[Seen]) -> list[np.ndarray]:
        batch: dict[str, Tensor] = {
            "state": torch.from_numpy(np.stack([one.state for one in seen])),
            "task": torch.tensor([one.row for one in seen]),
        }
        if seen[0].images is not None:
            images = np.stack([one.images for one in seen if one.images is not None])
            batch |= self._looked_at(images)
        batch = {name: value.to(self._device) for name, value in batch.items()}
        noise_keys = torch.tensor([one.key for one in seen], device=self._device)
        size = self._options.chunk, self._options.action_size or 0
        actions = self._model(batch, keys.normal(noise_keys, *size))
        return list(actions.float().cpu().numpy())

    def _looked_at(self, images: np.ndarray) -> dict[str, Tensor]:
        if self._frozen is None:
            return {"images": torch.from_numpy(images).permute(0, 1, 4, 2, 3)}
        looked = self._frozen.look(images.reshape(-1, *images.shape[2:]))
        return {"seen": torch.from_numpy(looked.reshape(*images.shape[:2], *looked.shape[1:]))}


def _film(roll: Roll, one: Rolled) -> Media:
    ending = f"done after {one.steps} steps" if one.is_success else "not done"
    caption = f"{roll.task}, episode {roll.number}: {ending}"
    fps = FPS if roll.world == "metaworld" else LIBERO_FPS
    content = encode_film(one.frames, fps=fps / _EVERY)
    return Media(f"{roll.task}-{roll.number}", ".mp4", content, caption)


def _too_far(horizon: int, chunk: int) -> Finding:
    return Finding(
        slug="policy-horizon",
        what=f"--horizon {horizon}: the policy foresees {chunk} actions",
        why=f"it was trained with options.chunk = {chunk}",
        fix=f"--horizon {chunk}, or a smaller one: it looks again more often",
    )
