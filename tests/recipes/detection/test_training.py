"""Detection trains the same on one rank and on two, goes on from the middle of an epoch with mosaic
on, and leaves files that Ultralytics takes."""

import json
import shutil
from types import SimpleNamespace

import cv2
import pytest
import torch

from phalanx.engine.data.micro_batches import Fetcher, Request
from phalanx.engine.data.order import INIT
from phalanx.engine.rank.worker import run_worker
from phalanx.job import load_job
from phalanx.planner.schema.micro_batches import Slot
from phalanx.recipe.keys import make_key
from phalanx.recipe.loading import load_recipe
from tests.fixtures.event_lines import read_events
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
        "micro_batch_size=4",  # the same on 1 and on 2 ranks: the model has BatchNorm
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
    recipe = load_recipe("detection", {"data": str(data), "model": str(file), "image_size": 64})
    (note,) = recipe.check_weights()
    assert note.slug == "detection-weights"
    assert "knows 4 classes, the data has 6" in note.why
    names = set(recipe.model().state_dict())
    missing = {name for name in names - set(recipe.weights()) if ".dfl." not in name}
    assert missing and all("cv3" in name for name in missing)


def test_the_first_steps_are_those_of_ultralytics_trainer(shapes, small, tmp_path):
    """The same batches through Ultralytics' loss, groups, clipping and average: before anything is
    found the sum of the wanted scores is below 1, which the loss is divided by then."""
    steps, size, lr = 6, 8, 0.0005
    run = detection(
        tmp_path, shapes, small, ranks=1, steps=steps, micro_batch_size=size, precision="fp64",
        optimizer={"lr": lr, "clip_norm": 10.0, "weight_decay": 0.0005, "betas": [0.9, 0.999]},
        ema={"decay": 0.9999, "ramp": 2000, "buffers": True}, evaluate={"every": None},
        schedule={"name": "constant", "warmup": "0 steps"}, options={"pictures": 0},
    )  # fmt: skip
    assert run_worker(run.path, handle_signals=False), events_of(run, "outcome")
    ours = [data["terms"] for data in events_of(run, "step")]
    theirs, first, average = train_as_ultralytics(run, steps=steps, size=size, lr=lr)
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, rel=1e-2)  # rounding grows: parts of theirs stay fp32
    assert min(one["cls"] for one in ours) < 2  # the sum was below 1 on the way
    learned, wanted = averages(run), average.state_dict()
    names = [name for name, value in wanted.items() if value.is_floating_point()]
    apart = sum(float((learned[name] - wanted[name]).square().sum()) for name in names)
    moved = sum(float((wanted[name] - first[name]).square().sum()) for name in names)
    assert apart < 0.05**2 * moved


def train_as_ultralytics(run, *, steps, size, lr):
    """Losses of each step, the first weights, and their average at the end."""
    from ultralytics.models.yolo.detect import DetectionTrainer
    from ultralytics.utils.loss import v8DetectionLoss
    from ultralytics.utils.torch_utils import ModelEMA

    job = load_job(run.job_file).job
    recipe = load_recipe("detection", job.options)
    torch.manual_seed(make_key(job.seed, INIT) & (1 << 62) - 1)
    model = recipe.model().train().double()
    model.args = SimpleNamespace(box=7.5, cls=0.5, dfl=1.5)
    optimizer = DetectionTrainer.build_optimizer(
        SimpleNamespace(), model, "AdamW", lr=lr, momentum=0.9, decay=0.0005
    )
    average, criterion = ModelEMA(model), v8DetectionLoss(model)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    data = recipe.data("train")
    per_epoch = len(data) // size
    fetcher = Fetcher(recipe, data, seed=job.seed, is_shuffled=True, epochs=-(-steps // per_epoch))
    losses = []
    for step in range(steps):
        epoch, place = divmod(step, per_epoch)
        slot = Slot(0, size * place, size * (place + 1))
        batch = fetcher[Request(epoch, slot, is_training=True)].batch
        there = batch["classes"] >= 0
        low, high = batch["boxes"][there].split(2, 1)
        given = {
            "batch_idx": there.nonzero()[:, 0].float(),
            "cls": batch["classes"][there].float().view(-1, 1),
            "bboxes": torch.cat([(low + high) / 2, high - low], 1),
        }
        loss, items = criterion(model(batch["image"].double() / 255), given)
        loss.sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()
        average.update(model)
        losses.append({name.removesuffix("_loss"): float(value) for name, value in items.items()})
    return losses, first, average.ema
