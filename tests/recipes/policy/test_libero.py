"""The adapter of LIBERO, beside a package that has its names: LIBERO itself ships no assets."""

import sys
import textwrap

import numpy as np
import pytest
import torch
import yaml

from phalanx.errors import UserError
from phalanx.recipes.policy.libero_suite import (
    LiberoArm,
    axis_angle,
    missing_libero,
    suite_tasks,
)

# As LIBERO 0.1 has them: benchmark/__init__.py and envs/env_wrapper.py.
SUITE = """
    from collections import namedtuple
    Task = namedtuple("Task", "name language problem_folder bddl_file init_states_file")
    class Suite:
        n_tasks = 2
        def get_task(self, i):
            return Task(f"TASK{i}", f"do {i}", "libero_90", f"TASK{i}.bddl", f"TASK{i}.pruned_init")
    def get_benchmark_dict():
        return {"libero_90": Suite}
"""
ENVIRONMENT = """
    from pathlib import Path
    import numpy as np
    class OffScreenRenderEnv:
        def __init__(self, bddl_file_name, camera_heights, camera_widths):
            assert Path(bddl_file_name).is_file()
            self.side, self.steps = camera_heights, 0
        def reset(self):
            self.steps = 0
        def set_init_state(self, state):
            self.place = state
            return self.seen()
        def step(self, action):
            assert len(action) == 7
            self.steps += 1
            return self.seen(), 0.0, self.steps >= 13, {}
        def seen(self):
            image = np.zeros((self.side, self.side, 3), np.uint8)
            image[0] = 255
            half = 0.5 ** 0.5
            return {
                "robot0_eef_pos": np.asarray(self.place[:3]),
                "robot0_eef_quat": np.array([0, 0, half, half]),
                "robot0_gripper_qpos": np.array([0.04, -0.04]),
                "agentview_image": image,
                "robot0_eye_in_hand_image": image // 2,
            }
"""
PATHS = """
    import os, yaml
    def get_libero_path(key):
        with open(os.path.join(os.environ["LIBERO_CONFIG_PATH"], "config.yaml")) as file:
            return yaml.safe_load(file)[key]
"""


@pytest.fixture
def libero(tmp_path, monkeypatch):
    """The package on the path and its folders; returns its configuration."""
    parts = {"libero": "", "libero.libero": PATHS, "libero.libero.benchmark": SUITE,
             "libero.libero.envs": ENVIRONMENT, "robosuite": ""}  # fmt: skip
    for name, text in parts.items():
        folder = tmp_path.joinpath("packages", *name.split("."))
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path / "packages")
    for name in [name for name in sys.modules if name.split(".")[0] in ("libero", "robosuite")]:
        monkeypatch.delitem(sys.modules, name)
    places = {name: str(tmp_path / name) for name in ("assets", "bddl_files", "init_states")}
    for path in places.values():
        (tmp_path / path / "libero_90").mkdir(parents=True)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(places))
    monkeypatch.setenv("LIBERO_CONFIG_PATH", str(tmp_path))
    (tmp_path / "bddl_files/libero_90/TASK1.bddl").touch()
    torch.save(np.arange(20.0).reshape(4, 5), tmp_path / "init_states/libero_90/TASK1.pruned_init")
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in ("libero", "robosuite")]:
        del sys.modules[name]


def test_a_task_begins_where_libero_says_and_is_seen_upright(libero):
    assert missing_libero("libero_90") == []
    assert suite_tasks("libero_90") == ["TASK0", "TASK1"]
    arm = LiberoArm("libero_90", "TASK1", "eye_in_hand_rgb", 16)
    state = arm.reset(6)  # the beginnings are used again and again
    np.testing.assert_allclose(state, [10, 11, 12, 0, 0, np.pi / 2, 0.04, -0.04], atol=1e-6)
    assert arm.picture()[-1].max() == 127  # the first row of OpenGL is the lowest
    done = [arm.step(np.full(7, 2.0))[1] for _ in range(3)]  # ten steps have passed to settle
    assert done == [False, False, True]


def test_beginnings_with_code_in_them_are_refused(libero):
    file = libero / "init_states/libero_90/TASK1.pruned_init"
    torch.save(libero.stat, file)  # a function, where an array belongs
    with pytest.raises(UserError, match="policy-libero"):
        LiberoArm("libero_90", "TASK1", None, 0)


def test_folders_that_are_not_there_are_named(libero):
    (libero / "assets/libero_90").rmdir()
    (libero / "assets").rmdir()
    (finding,) = missing_libero("libero_90")
    assert f"assets ({libero / 'assets'})" in finding.what
    (libero / "config.yaml").unlink()
    (finding,) = missing_libero("libero_90")
    assert "config.yaml` is not there" in finding.what


def test_axis_and_angle_of_a_quaternion():
    np.testing.assert_allclose(axis_angle(np.array([0.0, 0, 0, 1])), 0)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(axis_angle(np.array([half, 0, 0, half])), [np.pi / 2, 0, 0])


@pytest.mark.parametrize(("world", "steps_per_s"), [("metaworld", 80), ("libero_90", 20)])
def test_a_film_runs_as_fast_as_its_world(monkeypatch, world, steps_per_s):
    from phalanx.recipes.policy import rolling

    shown = []
    monkeypatch.setattr(rolling, "encode_film", lambda frames, *, fps: shown.append(fps) or b"")
    roll = rolling.Roll(world, "reach", 0, 0, 0, 100, 8, (), 0, True)
    rolling._film(roll, rolling.Rolled(True, 9, [np.zeros((2, 2, 3), np.uint8)]))
    assert shown == [steps_per_s / rolling._EVERY]
