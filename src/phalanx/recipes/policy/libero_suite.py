"""LIBERO's suites as environments, where the package and its assets are installed."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.recipe import Finding, UserError

SUITES = {
    "libero_spatial": "LIBERO: 10 tasks that differ in where things are.",
    "libero_object": "LIBERO: 10 tasks that differ in the object.",
    "libero_goal": "LIBERO: 10 tasks that differ in the goal.",
    "libero_10": "LIBERO: 10 long tasks.",
    "libero_90": "LIBERO: 90 short tasks.",
}
# Control steps in a second: `control_freq=20` of ControlEnv, which OffScreenRenderEnv is one of
# (github.com/Lifelong-Robot-Learning/LIBERO, libero/libero/envs/env_wrapper.py).
FPS = 20
_SETTLE = 10  # steps without a move: things fall into place after a reset
_CAMERAS = {"agentview_rgb": "agentview", "eye_in_hand_rgb": "robot0_eye_in_hand"}
"""Names in LIBERO's data, and in its simulator."""


def missing_libero(suite: str) -> list[Finding]:
    """What stands between this recipe and LIBERO. Importing it without its configuration would ask
    a question on the terminal, so it is looked for first."""
    absent = [name for name in ("libero", "robosuite") if find_spec(name) is None]
    config = Path(os.environ.get("LIBERO_CONFIG_PATH", Path.home() / ".libero"), "config.yaml")
    if absent:
        said = f"{' and '.join(absent)} not installed"
    elif not config.is_file():
        said = f"`{config}` is not there: it says where the assets are"
    else:
        said = _without_assets(config)
    if not said:
        return []
    return [
        Finding(
            slug="policy-libero",
            what=f"the benchmark `{suite}` cannot be run: {said}",
            why="LIBERO's scenes (assets, bddl_files, init_files) are no part of its package",
            fix="git clone https://github.com/Lifelong-Robot-Learning/LIBERO, then pip install it; "
            "`--benchmark metaworld` needs no assets",
        )
    ]


def _without_assets(config: Path) -> str:
    import yaml

    try:
        places = yaml.safe_load(config.read_text(encoding="utf-8")) or {}
        wanted = {
            name: Path(str(places.get(name, "")))
            for name in ("assets", "bddl_files", "init_states")
        }
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        return f"`{config}` cannot be read: {error}"
    gone = [f"{name} ({path})" for name, path in wanted.items() if not path.is_dir()]
    return f"`{config}` names folders that are not there: {', '.join(gone)}" if gone else ""


def suite_tasks(suite: str) -> list[str]:
    """Names of a suite's tasks in their order: those of LIBERO's data files."""
    library = _suite(suite)
    return [library.get_task(index).name for index in range(library.n_tasks)]


def _suite(name: str) -> Any:
    from libero.libero import benchmark

    return benchmark.get_benchmark_dict()[name]()


class LiberoArm:
    """One environment of a task of LIBERO; `reset` takes one of its recorded beginnings."""

    def __init__(self, suite: str, task: str, camera: str | None, side: int) -> None:
        if sys.platform == "linux":
            os.environ.setdefault("MUJOCO_GL", "egl")
        from libero.libero import get_libero_path
        from libero.libero.envs import OffScreenRenderEnv

        library = _suite(suite)
        index = suite_tasks(suite).index(task)
        about = library.get_task(index)
        folder = Path(get_libero_path("bddl_files"), about.problem_folder)
        self._camera = _CAMERAS.get(camera or "", "agentview")
        self._environment = OffScreenRenderEnv(
            bddl_file_name=str(folder / about.bddl_file), camera_heights=side or 128,
            camera_widths=side or 128,
        )  # fmt: skip
        states = Path(get_libero_path("init_states"), about.problem_folder, about.init_states_file)
        self._beginnings = _read_beginnings(states)
        self._seen: dict[str, Any] = {}

    def reset(self, place: int) -> np.ndarray:
        self._environment.reset()
        beginning = self._beginnings[place % len(self._beginnings)]
        self._seen = self._environment.set_init_state(beginning)
        for _ in range(_SETTLE):
            self._seen, *_ = self._environment.step([0.0] * 6 + [-1.0])
        return self._state()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, bool]:
        self._seen, _, is_done, _ = self._environment.step(np.clip(action, -1, 1).tolist())
        return self._state(), bool(is_done)

    def picture(self) -> np.ndarray:
        # What OpenGL gives, the last row first; the data is turned the same way.
        return np.asarray(self._seen[f"{self._camera}_image"], np.uint8)[::-1]

    def _state(self) -> np.ndarray:
        """As `ee_states` and `gripper_states` of its data: position, axis-angle, both fingers."""
        seen = self._seen
        turned = axis_angle(np.asarray(seen["robot0_eef_quat"]))
        parts = [seen["robot0_eef_pos"], turned, seen["robot0_gripper_qpos"]]
        return np.concatenate(parts).astype(np.float32)


def axis_angle(quaternion: np.ndarray) -> np.ndarray:
    """Of a quaternion (x, y, z, w)."""
    w = float(np.clip(quaternion[3], -1, 1))
    length = float(np.sqrt(1 - w * w))
    if length < 1e-8:
        return np.zeros(3)
    return np.asarray(quaternion[:3] * (2 * np.arccos(w) / length))


def _read_beginnings(file: Path) -> np.ndarray:
    """States of the simulator, which LIBERO saved with torch: arrays alone are let in."""
    import torch

    remade: Any = np._core.multiarray._reconstruct  # type: ignore[attr-defined]
    # LIBERO's own files were saved with numpy 1, which calls it by another name.
    old_name = (remade, "numpy.core.multiarray._reconstruct")
    allowed: list[Any] = [remade, old_name, np.ndarray, np.dtype, type(np.dtype(np.float64))]
    try:
        with torch.serialization.safe_globals(allowed):
            return np.asarray(torch.load(file, weights_only=True))
    except Exception as error:
        raise UserError(
            Finding(
                slug="policy-libero",
                what=f"`{file}` is no file of beginnings: {str(error)[:200]}",
                why="LIBERO keeps the first states of each task in it, as an array",
                fix="git -C LIBERO checkout -- libero/libero/init_files",
            )
        ) from error
