"""Detection trains the same on one rank and on two, goes on from the middle of an epoch with mosaic
on, and leaves files that Ultralytics takes."""

import json
import shutil

import cv2
import pytest
import torch

from phalanx.run.events import read_events
from tests.ranks.command import phalanx
from tests.ranks.runs import assert_same_bits, averages, change_run, make_run, train, weights

pytestmark = pytest.mark.ranks
OPTIONS = {"image_size": 64, "mixup": 0.5, "close_mosaic": 1, "pictures": 2}
SETTINGS = {
    "recipe": "detection",
    "steps": 7,  # 24 images are 3 steps an epoch
    "global_batch_size": 8,
    "micro_batch_size": 4,
    "precision": "fp32",
    "ema": {"decay": 0.9999, "ramp": 5, "buffers": True},
    "optimizer": {"lr": 0.002, "clip_norm": 10.0},
    "evaluate": {"every": "1 epochs", "batch_size": 4},
}


def detection(folder, shapes, model, *, ranks, **changes):
    options = {"data": str(shapes), "model": str(model), **OPTIONS, **changes.pop("options", {})}
    return make_run(folder, ranks=ranks, **{**SETTINGS, **changes}, options=options)


def events_of(run, kind):
    return [event.data for event in read_events(run.events) if event.kind == kind]


@pytest.fixture(scope="module")
def unbroken(pool, shapes, small, tmp_path_factory):
    """On one rank."""
    run = detection(tmp_path_factory.mktemp("unbroken"), shapes, small, ranks=1)
    return train(pool, run, ranks=1, timeout_s=250)


def test_mosaic_goes_on_in_the_middle_of_an_epoch_to_the_bit(
    pool, unbroken, shapes, small, tmp_path
):
    run = detection(tmp_path, shapes, small, ranks=1, stop_after="4 steps")
    train(pool, run, ranks=1, timeout_s=250)
    assert events_of(run, "outcome")[-1]["status"] == "stopped"
    change_run(run, stop_after=None)
    train(pool, run, ranks=1, attempt=1, timeout_s=250)
    assert events_of(run, "start")[-1]["resumed_from"].endswith("checkpoint-4")
    assert_same_bits(run, unbroken)
    one, other = averages(run), averages(unbroken)
    assert all(torch.equal(one[name], other[name]) for name in one)
    last, expected = (events_of(r, "evaluate")[-1]["metrics"] for r in (run, unbroken))
    assert last == expected


def test_two_ranks_see_and_find_what_one_does(pool, shapes, small, tmp_path):
    runs = []
    for ranks in (1, 2):
        run = detection(
            tmp_path / str(ranks), shapes, small, ranks=ranks, precision="fp64", steps=4
        )
        runs.append(train(pool, run, ranks=ranks, timeout_s=250))
    one, two = ([d["loss"] for d in events_of(run, "step")] for run in runs)
    assert one[0] == pytest.approx(two[0], rel=1e-12)
    # A gradient that is zero but for rounding makes Adam take whole steps of either sign.
    assert one == pytest.approx(two, rel=1e-5)
    first, second = (events_of(run, "evaluate")[0]["metrics"] for run in runs)
    assert first == pytest.approx(second, rel=1e-3, abs=1e-3)
    found = [sorted(p.name for p in run.media.rglob("*.*")) for run in runs]
    assert found[0] == found[1]


def test_verify_finds_two_ranks_equal_to_one(shapes, small, tmp_path):
    given = [
        f"data={shapes}",
        f"model={small}",
        "image_size=64",
        "--batch",
        "8",
        "--epochs",
        "2",
        "mixup=0.5",
    ]
    code, out, err = phalanx("verify", "detection", *given, cwd=tmp_path, timeout_s=240)
    assert code == 0, err
    assert "the same: training on 2 ranks is training on one" in out + err


def test_pictures_and_curves_are_kept(unbroken):
    shown = events_of(unbroken, "media")
    assert {data["name"] for data in shown} >= {"detections", "confusion"}
    for data in shown:
        image = cv2.imread(str(unbroken.path / data["file"]))
        assert image is not None and min(image.shape[:2]) >= 64
    last = events_of(unbroken, "evaluate")[-1]["metrics"]
    assert set(last) == {
        *("precision", "recall", "mAP50", "mAP50-95", "fitness"),
        *("box_loss", "cls_loss", "dfl_loss"),
    }


def test_a_pt_of_ultralytics_is_where_training_begins(pool, unbroken, shapes, tmp_path):
    file = tmp_path / "start.pt"
    shutil.copyfile(unbroken.final_model / "best.pt", file)
    run = detection(tmp_path, shapes, file, ranks=1, steps=1, optimizer={"lr": 1e-12})
    train(pool, run, ranks=1, timeout_s=250)
    best, now = averages(unbroken, "best"), weights(run)
    fixed = ("running", "num_batches", ".dfl.")
    learned = [name for name in best if not any(word in name for word in fixed)]
    assert len(learned) > 50
    for name in learned:
        torch.testing.assert_close(now[name], best[name], rtol=0, atol=1e-6)
    # What does not learn is in no checkpoint of such a run, and in its file all the same.
    from ultralytics import YOLO

    written = YOLO(str(run.final_model / "best.pt")).model.state_dict()
    assert torch.equal(written["model.10.dfl.conv.weight"].flatten(), torch.arange(16.0))


def test_other_classes_begin_anew_and_that_is_said(unbroken, shapes, tmp_path):
    data = tmp_path / "data.yaml"
    data.write_text(json.dumps({"path": str(shapes.parent), "train": "images/train",
                                "val": "images/val", "names": list("abcdef")}))  # fmt: skip
    file = tmp_path / "start.pt"
    shutil.copyfile(unbroken.final_model / "best.pt", file)
    from phalanx.recipe.load import load_recipe

    recipe = load_recipe("detection", {"data": str(data), "model": str(file), "image_size": 64})
    (note,) = recipe.check_weights()
    assert note.slug == "detection-weights"
    assert "knows 4 classes, the data has 6" in note.why
    names = set(recipe.model().state_dict())
    missing = names - set(recipe.weights())
    assert missing and all("cv3" in name for name in missing)
