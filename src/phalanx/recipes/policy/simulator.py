"""Meta-World: its tasks, their scripted experts, and environments whose places never repeat between
demonstrations and evaluations."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from phalanx.recipe import Finding, UserError, did_you_mean

FPS = 80  # control steps of Meta-World in a second: 5 frames of 2.5 ms
PLACES = 50  # that one seed of Meta-World draws
STATE_SIZE, ACTION_SIZE = 39, 4
CAMERAS = ("corner", "corner2", "corner3", "corner4", "topview", "behindGripper", "gripperPOV")
FILM_CAMERA, FILM_SIDE = "corner2", 256
_UPSIDE_DOWN = ("corner", "corner2", "corner3", "corner4", "topview")

_TEXTS = {
    "reach": "move the gripper to the red goal",
    "push": "push the red puck to the green goal",
    "door-open": "open the door by its handle",
}


def text_of(task: str) -> str:
    """What a task is called in words."""
    name = task.rsplit("-v", 1)[0]
    return _TEXTS.get(name, name.replace("-", " "))


def missing_simulator() -> list[Finding]:
    """What stands between this recipe and Meta-World."""
    absent = [name for name in ("metaworld", "mujoco") if find_spec(name) is None]
    if not absent:
        return []
    return [
        Finding(
            slug="missing-extra",
            what=f"Meta-World needs {' and '.join(absent)}, not installed here",
            why="demonstrations are collected and policies driven in it; extra `policy`",
            fix="pip install 'phalanx[policy]'; training on data=FOLDER does without",
        )
    ]


def unknown_tasks(tasks: Sequence[str]) -> list[Finding]:
    """Tasks that Meta-World does not have."""
    known = sorted(_library().policies.ENV_POLICY_MAP)
    return [
        Finding(
            slug="policy-task",
            what=f"Meta-World has no task `{task}`{did_you_mean(task, known)}",
            why=f"options.tasks names it; there are {len(known)}, such as {', '.join(known[:4])}",
            fix=f"tasks={known[0]}",
        )
        for task in tasks
        if task not in known
    ]


def is_task(task: str) -> bool:
    return task in _library().policies.ENV_POLICY_MAP


@functools.cache
def _library() -> Any:
    if found := missing_simulator():
        raise UserError(found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of gymnasium, about itself
        import metaworld
        import metaworld.policies
    return metaworld


def expert_of(task: str) -> Any:
    """The task's scripted expert."""
    return _library().policies.ENV_POLICY_MAP[task]()


def demonstration_seed(seed: int, block: int) -> int:
    """Even seeds are for demonstrations, odd ones for evaluations: no place is in both."""
    return 2 * (seed * 1000 + block)


def evaluation_seed(seed: int, block: int) -> int:
    return 2 * (seed * 1000 + block) + 1


class Arm:
    """One environment of a task at one of the places that a seed draws."""

    def __init__(self, task: str, seed: int, camera: str | None = None, side: int = 0) -> None:
        if camera is not None and sys.platform == "linux":
            os.environ.setdefault("MUJOCO_GL", "egl")  # read when mujoco draws first
        self._task = task
        self._camera = camera
        self._places = _places(task, seed)
        drawing = {"render_mode": "rgb_array", "camera_name": camera, "width": side, "height": side}
        kind = self._places.train_classes[task]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._environment = kind(**drawing) if camera is not None else kind()

    def reset(self, place: int) -> np.ndarray:
        """Begin at a place, 0 to 49; returns the state."""
        self._environment.set_task(self._places.train_tasks[place % PLACES])
        state, _ = self._environment.reset()
        return np.asarray(state, np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, bool]:
        """The next state, and whether the task is done."""
        state, _, _, _, about = self._environment.step(np.clip(action, -1, 1).astype(np.float32))
        return np.asarray(state, np.float32), bool(about["success"])

    def picture(self) -> np.ndarray:
        """What its camera sees: height x width x 3 bytes."""
        viewer = self._environment.mujoco_renderer.viewer
        if viewer is not None:
            # gymnasium 1.4 draws in whatever context was used last: another environment's, with
            # half of this one's shapes.
            viewer.make_context_current()
        image = np.asarray(self._environment.render(), np.uint8)
        return image[::-1] if self._camera in _UPSIDE_DOWN else image

    def close(self) -> None:
        self._environment.close()


@functools.lru_cache(maxsize=8)
def _places(task: str, seed: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _library().MT1(task, seed=seed)
