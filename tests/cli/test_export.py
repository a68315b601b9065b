"""`phalanx export`: the checkpoint and the form that are meant, whole or not at all."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from phalanx.engine.rank.worker import run_worker
from phalanx.errors import UserError
from phalanx.verbs.export import export_trained
from tests.cli.command import run_cli
from tests.fixtures.export_here import answer_here
from tests.ranks.runs import FIXTURES, averages, make_run, outcomes, weights

RECIPE = f"{FIXTURES / 'recipes' / 'exporting.py'}:Exporting"


@pytest.fixture
def ask_here(monkeypatch):
    answer_here(monkeypatch)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of twelve steps with checkpoints 4, 8 and 12 and an average."""
    folder = tmp_path_factory.mktemp("runs")
    run = make_run(
        folder,
        ranks=1,
        threads=1,
        recipe=RECIPE,
        name="first",
        ema={"decay": 0.9},
        checkpoint={"every": "4 steps", "keep": 9},
    )
    assert run_worker(run.path, handle_signals=False), outcomes(run)
    return run


@pytest.fixture
def run(trained, tmp_path):
    """A copy to damage, without what was exported."""
    ignored = shutil.ignore_patterns("exports")
    shutil.copytree(trained.path, tmp_path / "first", symlinks=True, ignore=ignored)
    return type(trained)(tmp_path / "first")


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def slugs_of(call):
    with pytest.raises(UserError) as caught:
        call()
    return [finding.slug for finding in caught.value.findings]


def test_the_command_writes_the_evaluated_weights_of_the_best(trained):
    answer = run_cli("export", str(trained.path), "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    best = (trained.checkpoints / "best").resolve().name
    assert told["folder"] == str(trained.exports / f"{best}-safetensors")
    assert told["weights"] == "average"
    path = trained.exports / f"{best}-safetensors" / "model.safetensors"
    assert told["files"] == {"model.safetensors": path.stat().st_size}
    assert_same(load_file(path), averages(trained, "best"))
    again = run_cli("export", str(trained.path))
    assert again.code == 2
    assert "[export-exists]" in again.err


def test_a_form_of_the_recipe_a_step_and_the_raw_weights(run, tmp_path, ask_here, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()  # an empty folder is nothing to lose
    answer = run_cli(
        "export", "first", "--output", ".", "--to", "doubled", "--checkpoint", "8",
        "--weights", "raw", "--out", "out",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert "doubled of checkpoint-8 (weights)" in answer.out
    assert "out/own.safetensors" in answer.out
    doubled = {name: 2 * tensor for name, tensor in weights(run, "checkpoint-8").items()}
    assert_same(load_file(tmp_path / "out" / "own.safetensors"), doubled)


def test_what_appears_at_the_place_meanwhile_is_left_alone(run, tmp_path, ask_here, monkeypatch):
    from phalanx.exporter import forms

    out, write = tmp_path / "out", forms._write

    def write_slowly(*given):
        write(*given)
        out.mkdir()
        (out / "mine").write_text("mine")

    monkeypatch.setattr(forms, "_write", write_slowly)
    assert slugs_of(lambda: export_trained(str(run.path), out=out)) == ["folder-exists"]
    assert [path.name for path in out.iterdir()] == ["mine"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "out"]


def test_a_link_to_an_empty_folder_stays_a_link(run, tmp_path, ask_here):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    export_trained(str(run.path), out=tmp_path / "out")
    assert (tmp_path / "out").is_symlink()
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["model.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "first", "out"]


def test_what_is_not_there_is_said_with_what_is(run, ask_here):
    answer = run_cli("export", str(run.path), "--to", "doubles")
    assert answer.code == 2
    assert "[unknown-form]" in answer.err
    assert "did you mean `doubled`?" in answer.err
    answer = run_cli("export", str(run.path), "--checkpoint", "7")
    assert "holds 12, 8, 4" in answer.err
    assert slugs_of(lambda: export_trained(str(run.path), weights="both")) == ["unknown-weights"]
    assert slugs_of(lambda: export_trained(str(run.path / "nowhere"))) == ["no-run"]
    assert not run.exports.exists() or not any(run.exports.iterdir())


def test_a_damaged_checkpoint_is_never_exported(run, ask_here):
    (run.checkpoints / "checkpoint-12" / "model.safetensors").write_bytes(b"half")
    done = export_trained(str(run.path), checkpoint="latest")
    assert done.checkpoint.name == "checkpoint-8"
    assert [finding.slug for finding in done.findings] == ["checkpoint-damaged"]
    for call in (
        lambda: export_trained(str(run.path), checkpoint="12"),
        lambda: export_trained(str(run.checkpoints / "checkpoint-12")),
    ):
        assert slugs_of(call) == ["checkpoint-damaged"]
    for step in (4, 8, 12):
        shutil.rmtree(run.checkpoints / f"checkpoint-{step}")
    assert slugs_of(lambda: export_trained(str(run.path))) == ["no-checkpoint"]
