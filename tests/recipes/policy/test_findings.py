"""What is wrong with demonstrations is said with file and place, and before anything starts."""

import json

import numpy as np
import pytest

from phalanx.tracing.trace import trace_recipe
from tests.recipes.policy.robots import SMALL, write_libero, write_swings


def found_in(folder, **options):
    """Every Finding but notes, as planning says them."""
    trace, findings = trace_recipe("policy", {"data": str(folder), **SMALL, **options})
    told = [finding for finding in findings if finding.severity != "note"]
    assert (trace is None) == any(finding.severity == "error" for finding in told)
    for finding in told:
        assert finding.what and finding.why and finding.fix
    return {finding.slug: finding for finding in told}


@pytest.fixture
def folder(tmp_path):
    return write_swings(tmp_path / "data", episodes=4, steps=6)


def changed(folder, name, change):
    array = np.load(folder / f"{name}.npy")
    np.save(folder / f"{name}.npy", change(array))


def test_numbers_that_are_not_finite_are_named(folder):
    def spoil(actions):
        actions[9, 1] = np.nan
        actions[30, 0] = np.inf
        return actions

    changed(folder, "actions", spoil)
    finding = found_in(folder)["policy-not-finite"]
    assert f"2 steps of `{folder / 'actions'}.npy`" in finding.what
    assert "episode 1, step 3 (row 9), number 1: nan" in finding.what
    assert "number 0: inf" in finding.what


def test_a_broken_table_of_episodes_is_named(folder):
    def spoil(table):
        table[2, 1] = 10_000
        table[5, 2] = 7
        return table

    changed(folder, "episodes", spoil)
    finding = found_in(folder)["policy-episode"]
    assert "2 of 8 episodes" in finding.what
    assert "episode 2: " in finding.what
    assert "episode 5: " in finding.what
    assert "task 7" in finding.what


def test_a_file_that_was_cut_off_is_named(folder):
    file = folder / "states.npy"
    file.write_bytes(file.read_bytes()[:-100])
    assert f"`{file}` cannot be read" in found_in(folder)["policy-file"].what


def test_arrays_of_different_length_are_named(folder):
    changed(folder, "actions", lambda actions: actions[:-1])
    assert "states 54, actions 53" in found_in(folder)["policy-episode"].what


def test_a_camera_that_is_not_there_is_named(tmp_path):
    folder = write_swings(tmp_path / "data", episodes=2, steps=4, cameras=("wrist",))
    finding = found_in(folder, cameras=["wrists"])["policy-camera"]
    assert "no camera `wrists` (did you mean `wrist`?)" in finding.what
    names = ("a", "b", "c")
    folder = write_swings(tmp_path / "more", episodes=2, steps=4, cameras=names)
    assert "room for 2" in found_in(folder, cameras=list(names))["policy-camera"].what


def test_a_task_that_is_not_there_is_named(folder):
    assert "(did you mean `near`?)" in found_in(folder, tasks=["neer"])["policy-task"].what


def test_data_of_another_robot_is_refused(folder):
    finding = found_in(folder, action_size=7)["policy-action-size"]
    assert "2 numbers in an action, the policy 7" in finding.what


def test_nothing_there_is_a_finding(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "neither meta.json nor .hdf5" in found_in(tmp_path / "empty")["policy-file"].what
    assert "is not there" in found_in(tmp_path / "gone")["policy-file"].what


def test_another_format_is_a_finding(folder):
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "schema_version": 2}))
    assert "schema_version 2" in found_in(folder)["policy-file"].what


def test_one_task_with_the_statistics_of_many_is_warned_of(folder):
    finding = found_in(folder, tasks=["near"], statistics="dataset")["policy-statistics"]
    assert finding.severity == "warning"
    assert "`near` alone is trained with the statistics of 2 tasks" in finding.what
    assert finding.fix == "statistics=task"
    assert not found_in(folder, tasks=["near"])
    assert not found_in(folder, statistics="dataset")


def test_an_encoder_that_is_not_there_is_a_finding(folder, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    finding = found_in(folder, text_encoder="nobody/no-such-model")["policy-encoder"]
    assert "options.text_encoder = nobody/no-such-model" in finding.why


class TestHdf5:
    def test_an_episode_whose_parts_differ_in_length_is_named(self, tmp_path):
        import h5py

        file = write_libero(tmp_path / "drawer_demo.hdf5")
        with h5py.File(file, "a") as opened:
            del opened["data/demo_1/actions"]
            opened["data/demo_1/actions"] = np.zeros((5, 7))
            del opened["data/demo_2/obs/ee_states"]
        finding = found_in(file)["policy-episode"]
        assert f"2 of 3 episodes in `{file}`" in finding.what
        assert "demo_1: actions 5, ee_states 8" in finding.what
        assert "demo_2" in finding.what

    def test_actions_of_another_size_are_named(self, tmp_path):
        for name, size in (("a", 7), ("b", 7), ("c", 6)):
            write_libero(tmp_path / f"{name}.hdf5", episodes=2, action_size=size)
        finding = found_in(tmp_path)["policy-action-size"]
        assert "2 episodes have actions of other sizes than 7" in finding.what
        assert f"`{tmp_path / 'c.hdf5'}`, demo_0: 6" in finding.what

    def test_a_nan_a_camera_and_a_damaged_file_are_all_told_at_once(self, tmp_path):
        import h5py

        with h5py.File(write_libero(tmp_path / "a.hdf5"), "a") as opened:
            opened["data/demo_0/obs/ee_states"][3, 2] = np.nan
        write_libero(tmp_path / "b.hdf5", cameras=("eye_in_hand_rgb",))
        (tmp_path / "c.hdf5").write_bytes(b"not an HDF5 file")
        told = found_in(tmp_path, cameras=["agentview_rgb"])
        assert "demo_0, ee_states, step 3" in told["policy-not-finite"].what
        assert f"`{tmp_path / 'b.hdf5'}` has no `agentview_rgb`" in told["policy-camera"].what
        assert f"`{tmp_path / 'c.hdf5'}` cannot be read" in told["policy-file"].what

    def test_an_unknown_state_asks_for_its_name(self, tmp_path):
        import h5py

        with h5py.File(tmp_path / "own.hdf5", "w") as opened:
            opened["data/demo_0/actions"] = np.zeros((4, 2))
            opened["data/demo_0/obs/joints"] = np.zeros((4, 3))
        finding = found_in(tmp_path / "own.hdf5")["policy-state"]
        assert finding.fix == "state_keys=joints"
