"""Files for other tools beside checkpoints and at the end, samples after evaluations."""

import json

import pytest
import torch
from safetensors.torch import load_file

from phalanx.run.checkpoints import list_checkpoints, verify_checkpoint
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import FIXTURES, averages, make_run, outcomes, train

RECIPE = f"{FIXTURES / 'recipes' / 'exporting.py'}:Exporting"
CHANGES = {"recipe": RECIPE, "ema": {"decay": 0.9}, "checkpoint": {"every": "4 steps", "keep": 9}}


def events_of(run, kind):
    return [event.data for event in read_events(run.events) if event.kind == kind]


def slugs(run):
    return [data["finding"]["slug"] for data in events_of(run, "finding")]


@pytest.fixture(scope="module")
def single(pool, tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("single"), ranks=1, **CHANGES, options={"blocks": 2})
    return train(pool, run, ranks=1)


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_files_lie_beside_every_checkpoint_under_its_checksums(single):
    for step, path in list_checkpoints(single.checkpoints):
        manifest = json.loads((path / "manifest.json").read_text())
        assert {"own.safetensors", "about.json", "model.safetensors"} <= set(manifest["files"])
        assert verify_checkpoint(path) is None
        # The evaluated weights: the average.
        assert_same(load_file(path / "own.safetensors"), averages(single, path.name))
        assert not (path / ".export").exists()
        assert step in (4, 8, 12)
    assert slugs(single) == ["export-name"] * 2  # model.safetensors and manifest.json, said once


def test_the_final_model_is_that_of_the_best_checkpoint(single):
    own = load_file(single.final_model / "own.safetensors")
    assert_same(own, averages(single, "best"))
    assert json.loads((single.final_model / "about.json").read_text()) == {"form": "final"}
    (exported,) = events_of(single, "exported")
    assert exported["path"] == "final_model"
    assert (
        exported["step"] == json.loads((single.checkpoints / "best/state.json").read_text())["step"]
    )
    assert not list(single.path.glob(".final_model*"))


def test_pictures_are_written_under_their_step_by_the_first_rank(single):
    shown = events_of(single, "media")
    about = {"name": "../sample 1", "caption": "of a sample"}
    samples = [data for data in shown if data["name"] == "../sample 1"]
    assert samples == [
        {"step": step, **about, "file": f"media/step-{step}/sample-1.png"} for step in (4, 8, 12)
    ]
    best = {data["step"] for data in events_of(single, "evaluate") if data["is_best"]}
    charts = [data for data in shown if data["name"] == "rows"]
    assert {data["step"] for data in charts} == best | {12}
    for data in shown:
        wanted = b"a picture" if data in samples else b"12 rows"
        assert (single.path / data["file"]).read_bytes() == wanted
    assert not list(single.media.rglob(".*"))


def test_sharded_ranks_export_and_make_the_same(pool, single, tmp_path):
    # FSDP gathers embeddings and heads only inside the forward of its root: samples run there.
    run = make_run(tmp_path, ranks=2, **CHANGES, strategy="fsdp", options={"blocks": 2})
    train(pool, run, ranks=2)
    made = events_of(single, "samples")
    assert [data["step"] for data in made] == [4, 8, 12]
    assert made[0]["samples"] != made[1]["samples"]
    assert events_of(run, "samples") == made
    evaluated = [[d["metrics"] for d in events_of(r, "evaluate")] for r in (single, run)]
    assert [m["rows"] for m in evaluated[1]] == [m["rows"] for m in evaluated[0]]
    assert all(m["rows"] > 0 and m["in_order"] for m in evaluated[0] + evaluated[1])
    first, second = (load_file(r.final_model / "own.safetensors") for r in (single, run))
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-9, atol=1e-12)


def test_a_recipe_that_fails_to_export_costs_no_checkpoint_and_no_run(pool, tmp_path):
    run = make_run(tmp_path, ranks=1, **CHANGES, options={"broken": True})
    train(pool, run, ranks=1)
    assert outcomes(run)[-1]["status"] == "finished"
    assert all(verify_checkpoint(path) is None for _, path in list_checkpoints(run.checkpoints))
    # Charts once, files beside checkpoints and at the end.
    assert sorted(slugs(run)) == ["charts-failed", "export-failed", "export-failed"]
    said = [data["finding"]["what"] for data in events_of(run, "finding")]
    assert any("the tokenizer is gone" in what for what in said)
    assert any("no paper" in what for what in said)
    assert not run.final_model.exists()
    assert not list(run.path.rglob("*.tmp"))
