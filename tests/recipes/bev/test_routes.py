"""Folders of recorded routes: read as they are, refused with file and frame where they are not."""

import json

import numpy as np
import pytest

from phalanx.errors import UserError
from phalanx.recipe.loading import load_recipe
from phalanx.recipes.bev.routes import read_route
from tests.recipes.bev.recorded_routes import measurement, pose, seen_from, write_routes

OPTIONS = {"bev_channels": 5, "bev_cells": [32, 32], "width": 16, "depth": 1}


@pytest.fixture
def folder(tmp_path):
    return write_routes(tmp_path / "data")


def recipe_of(folder, **changes):
    return load_recipe("bev", {"data": str(folder), **OPTIONS, **changes})


def fetch(data, *ids):
    return data.__getitems__(np.array(ids), np.array(ids))


@pytest.mark.parametrize("kind", ["image", "feature"])
def test_plans_are_where_the_vehicle_was_seconds_later(tmp_path, kind):
    folder = write_routes(tmp_path / "data", kind=kind, zipped=kind == "image")
    cells = {} if kind == "image" else {"bev_cells": [16, 16], "bev_kind": "feature"}
    recipe = recipe_of(folder, **cells)
    assert recipe.check() == []
    data, test = recipe.data("train"), recipe.data("test")
    # 30 frames, of which 16 have 4 s at 4 frames/s after them... and whole routes to test with.
    assert (len(data), len(test)) == (2 * 14, 14)
    batch = fetch(data, 3, 17)  # frame 3 of the first and of the second route
    wanted = seen_from(3, [pose(3 + 2 * k)[:2] for k in range(1, 9)])
    for sample in range(2):
        assert batch["plan"][sample].numpy() == pytest.approx(wanted, abs=1e-4)
        assert batch["route"][sample, 0].numpy() == pytest.approx(
            seen_from(3, pose(3 + 4.0 * 4.0 / 6.0)[:2]), abs=1e-2
        )
    assert batch["speed"].tolist() == [6.0, 6.0]
    model = recipe.model()
    plans, _ = model(*(batch[name] for name in ("bev", "speed", "command", "route")))
    assert plans.shape == (2, 8, 2)


def test_the_history_is_half_a_second_apart_and_ahead_is_up(folder):
    data = recipe_of(folder, bev_cells=[64, 64]).data("train")
    batch = fetch(data, 0, 5)
    assert batch["bev"].shape == (2, 3 * 5, 64, 64)
    of_class_2 = batch["bev"].numpy().reshape(2, 3, 5, 64, 64)[:, :, 2]
    rows = of_class_2[..., 0].argmax(-1)  # counted from behind the vehicle
    assert rows.tolist() == [[63, 63, 63], [63 - 5, 63 - 3, 63 - 1]]
    assert (batch["bev"].numpy().reshape(2, 3, 5, 64, 64)[:, :, 4, 0, -1] == 255).all()


def test_statistics_of_the_train_split_reach_the_model(folder):
    recipe = recipe_of(folder)
    assert recipe.weights() == {}  # nothing is opened where a trained planner drives
    recipe.data("train")
    assert set(recipe.weights()) == {"centre", "spread"}


def test_a_target_point_does_where_no_route_is_told(folder):
    path = folder / "town/route_0/measurements/0000.json.gz"
    path.unlink()
    values = {**measurement(0), "route": [], "target_point": [0.0, 7.0]}
    (path.parent / "0000.json").write_text(json.dumps(values))
    route, problems = read_route(folder / "town/route_0")
    assert problems == []
    assert route.ahead[0, :, 1] == pytest.approx([4, 8, 12, 18, 26, 36, 50, 70])


def write_measurement(folder, frame, **changes):
    path = folder / f"town/route_1/measurements/{frame:04d}.json.gz"
    path.unlink()
    values = {**measurement(frame), **changes}
    path.with_suffix("").write_text(json.dumps({k: v for k, v in values.items() if v != "gone"}))


def spoil_json(folder):
    (folder / "town/route_1/measurements/0007.json.gz").write_bytes(b"\x1f\x8b broken")


def spoil_png(folder):
    (folder / "town/route_0/bev_semantics/0000.png").write_bytes(b"\x89PNG\r\n\x1a\n cut off")


def spoil_size(folder):
    from PIL import Image

    small = Image.fromarray(np.zeros((8, 8), np.uint8))
    small.save(folder / "town/route_0/bev_semantics/0000.png")


def spoil_classes(folder):
    from PIL import Image

    other = Image.fromarray(np.full((64, 64), 9, np.uint8))
    other.save(folder / "town/route_0/bev_semantics/0000.png")


@pytest.mark.parametrize(
    ("spoil", "slug", "told"),
    [
        (spoil_json, "bev-measurement", ["route_1/measurements/0007.json.gz`, frame 7"]),
        (lambda f: write_measurement(f, 4, speed="gone"), "bev-measurement", ["frame 4", "speed"]),
        (lambda f: write_measurement(f, 5, command=9), "bev-measurement", ["frame 5", "command"]),
        (
            lambda f: write_measurement(f, 6, pos_global=[1.0]),
            "bev-measurement",
            ["frame 6", "pos_global has the shape (1,)"],
        ),
        (
            lambda f: write_measurement(f, 8, theta=float("nan")),
            "bev-not-finite",
            ["route_1/measurements/0008.json`, frame 8", "heading"],
        ),
        (
            lambda f: (f / "town/route_2/bev_semantics/0009.png").unlink(),
            "bev-missing",
            ["route_2/measurements/0009.json.gz`, frame 9"],
        ),
        (spoil_png, "bev-shape", ["route_0/bev_semantics/0000.png`, frame 0"]),
        (spoil_size, "bev-shape", ["[8, 8]", "bev_cells = [32, 32]"]),
        (spoil_classes, "bev-shape", ["class 9", "bev_channels = 5"]),
    ],
)
def test_what_is_wrong_is_told_with_file_and_frame(folder, spoil, slug, told):
    spoil(folder)
    (finding,) = recipe_of(folder).check()
    assert finding.slug == slug
    assert all(part in finding.why for part in told), finding.why
    assert finding.fix


def test_all_that_is_wrong_is_told_at_once(folder):
    spoil_json(folder)
    write_measurement(folder, 8, theta=float("nan"))
    spoil_png(folder)
    found = {finding.slug for finding in recipe_of(folder).check()}
    assert found == {"bev-measurement", "bev-not-finite", "bev-shape"}


def test_a_feature_that_is_not_finite_is_told_when_it_is_read(tmp_path):
    folder = write_routes(tmp_path / "data", kind="feature")
    path = folder / "town/route_0/bev/0003.npy"
    feature = np.load(path)
    feature[2, 3, 4] = np.nan
    np.save(path, feature)
    data = recipe_of(folder, bev_cells=[16, 16], bev_kind="feature").data("train")
    with pytest.raises(UserError) as raised:
        fetch(data, 3)
    (finding,) = raised.value.findings
    assert finding.slug == "bev-not-finite"
    assert "route_0/bev/0003.npy`, frame 3" in finding.why


@pytest.mark.parametrize(
    ("changes", "slug"),
    [({"frames_per_s": 30.0}, "bev-routes"), ({"bev_kind": "feature"}, "bev-shape")],
)
def test_options_that_do_not_fit_the_folder_are_told(folder, changes, slug):
    assert [finding.slug for finding in recipe_of(folder, **changes).check()] == [slug]


def test_a_folder_without_routes_and_one_that_is_not_there_are_told(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "gone"):
        (finding,) = recipe_of(tmp_path / name).check()
        assert finding.slug == "bev-routes"
        assert name in finding.what
