"""Demonstrations: written, mapped, split, cut into chunks; HDF5 files of LIBERO and robomimic."""

import json

import numpy as np
import pytest
import torch

from phalanx.recipe.loading import load_recipe
from phalanx.recipes.policy.data import split, thinned
from phalanx.recipes.policy.demonstrations import open_demonstrations
from tests.recipes.policy.robots import SMALL, swings, write_libero, write_swings


def recipe_of(folder, **options):
    recipe = load_recipe("policy", {"data": str(folder), **SMALL, **options})
    findings = recipe.check()
    assert all(finding.severity == "note" for finding in findings), findings
    return recipe


def test_what_is_written_is_what_is_read(tmp_path):
    folder = write_swings(tmp_path / "data", cameras=("wrist", "front"))
    found = open_demonstrations(folder, ["front"])
    expected = swings(cameras=("wrist", "front"))
    assert [task.name for task in found.tasks] == ["near", "far"]
    for (index, steps), one in zip(found.places(), expected, strict=True):
        np.testing.assert_allclose(found.states[steps], one.states, rtol=1e-6)
        np.testing.assert_allclose(found.actions[steps], one.actions, rtol=1e-6)
        np.testing.assert_array_equal(found.images["front"][steps], one.images["front"])
        assert found.episodes[index, 2] == one.task
    assert sorted(p.name for p in folder.iterdir()) == [
        "actions.npy", "episodes.npy", "images-front.npy", "images-wrist.npy", "meta.json",
        "states.npy",
    ]  # fmt: skip


def test_a_chunk_ends_with_its_episode(swings):
    recipe = recipe_of(swings)
    data, found, part = recipe.data("train"), recipe.demonstrations, recipe.parts["train"]
    ids = np.arange(len(data))
    batch = data.__getitems__(ids, ids)
    ends = {steps.start: steps.stop for _, steps in found.places()}
    starts = sorted(ends)
    for row, step in enumerate(part.steps.tolist()):
        end = ends[max(start for start in starts if start <= step)]
        ahead = [min(step + n, end - 1) for n in range(4)]
        np.testing.assert_array_equal(batch["actions"][row], found.actions[ahead])
        np.testing.assert_array_equal(batch["state"][row], found.states[step])


def test_episodes_are_in_one_split_and_each_task_is_in_both(swings):
    found = open_demonstrations(swings)
    parts = split(found, ["far", "near"], 0.3)
    whole = [set(steps) for _, steps in ((i, range(s.start, s.stop)) for i, s in found.places())]
    for steps in whole:
        inside = [len(steps & set(part.steps.tolist())) for part in parts.values()]
        assert sorted(inside) == [0, len(steps)]
    for part in parts.values():
        assert set(part.task.tolist()) == {0, 1}
        assert np.abs(found.states[part.steps[part.task == 0], 0]).max() > 1  # far, as asked
    few = thinned(parts["train"], 10)
    assert len(few.steps) == 10
    assert set(few.task.tolist()) == {0, 1}


def test_one_task_of_the_data_is_trained_alone(swings):
    recipe = recipe_of(swings, tasks=["near"])
    assert recipe.options.tasks == ["near"]
    assert len(recipe.model().scales.state_mean) == 1
    assert recipe.parts["train"].task.max() == 0
    both = recipe_of(swings)
    assert len(both.data("train")) > len(recipe.data("train"))


def test_pictures_stay_on_disk_until_they_are_asked_for(tmp_path):
    folder = write_swings(tmp_path / "data", cameras=("wrist", "front"))
    recipe = recipe_of(folder, cameras=["front", "wrist"], image_size=32)
    data, part = recipe.data("train"), recipe.parts["train"]
    ids = np.array([5, 0])
    batch = data.__getitems__(ids, ids)
    assert batch["images"].shape == (2, 2, 3, 40, 48)
    shown = recipe.demonstrations.images["wrist"][part.steps[5]]
    np.testing.assert_array_equal(batch["images"][0, 1].permute(1, 2, 0), shown)
    torch.manual_seed(0)
    model = recipe.model()
    noise, time = torch.randn(2, 4, 2), torch.rand(2)
    last_layer = model.action_out.weight
    with torch.no_grad():
        last_layer.normal_()
    said, _ = model(batch, noise, time)
    other, _ = model({**batch, "images": 255 - batch["images"]}, noise, time)
    assert (said - other).abs().max() > 1e-4  # what is seen matters
    said.sum().backward()
    assert model.vision.layers[0].weight.grad.abs().max() > 0


def test_libero_files_become_tasks_with_their_descriptions(tmp_path):
    folder = tmp_path / "libero"
    write_libero(folder / "KITCHEN_open_the_drawer_demo.hdf5", text="open the top drawer")
    write_libero(folder / "more" / "turn_on_the_stove_demo.hdf5", episodes=2)
    recipe = recipe_of(folder, cameras=["agentview_rgb"], image_size=32)
    found = recipe.demonstrations
    assert [(task.name, task.text) for task in found.tasks] == [
        ("KITCHEN_open_the_drawer", "open the top drawer"),
        ("turn_on_the_stove", "turn on the stove"),
    ]
    assert found.states.shape == (5 * 8, 6 + 2)
    assert found.actions.shape == (5 * 8, 7)
    assert found.images["agentview_rgb"].shape == (40, 16, 16, 3)
    import h5py

    with h5py.File(folder / "KITCHEN_open_the_drawer_demo.hdf5") as file:
        demo = file["data/demo_1"]
        np.testing.assert_allclose(found.actions[8:16], demo["actions"][:], rtol=1e-6)
        np.testing.assert_allclose(found.states[8:16, 6:], demo["obs/gripper_states"][:], rtol=1e-6)
        upright = demo["obs/agentview_rgb"][:][:, ::-1]
        np.testing.assert_array_equal(found.images["agentview_rgb"][8:16], upright)
    assert recipe.options.state_size == 8


def test_robomimic_files_are_read_by_the_names_of_their_state(tmp_path):
    import h5py

    file = tmp_path / "lift.hdf5"
    with h5py.File(file, "w") as opened:
        for number in range(3):
            demo = opened.create_group(f"data/demo_{number}")
            demo["actions"] = np.zeros((4, 7))
            sizes = {"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2}
            for name, size in (sizes | {"object": 10, "extra": 1}).items():
                demo[f"obs/{name}"] = np.random.default_rng(0).normal(size=(4, size))
    assert recipe_of(file).options.state_size == 3 + 4 + 2 + 10
    chosen = recipe_of(file, state_keys="object,extra")
    assert chosen.options.state_size == 11
    assert chosen.options.tasks == ["lift"]


def test_meta_says_what_the_arrays_are(swings):
    meta = json.loads((swings / "meta.json").read_text())
    assert (meta["format"], meta["schema_version"]) == ("phalanx-demonstrations", 1)
    assert meta["tasks"][1] == {"name": "far", "text": "move to the mark far"}


@pytest.mark.parametrize("encoder", [None, "none"])
def test_descriptions_are_read_by_a_real_text_model(swings, encoder):
    recipe = recipe_of(swings, text_encoder=encoder)
    model = recipe.model()
    if encoder == "none":
        assert not hasattr(model, "texts")
        return
    assert recipe.options.text_size == 384
    near, far = model.texts
    assert near.norm() == pytest.approx(1.0, abs=1e-4)
    assert 0.5 < float(near @ far) < 0.99  # alike, and told apart
