"""`--resume` as a user types it: by name, by checkpoint, with changes, of a finished run."""

from pathlib import Path

import pytest

from phalanx.errors import ExitCode
from tests.fixtures.event_lines import read_events
from tests.ranks.command import latest, phalanx
from tests.ranks.runs import RECIPE, assert_same_bits, losses

JOB = f"""
recipe: {RECIPE}
steps: 8
global_batch_size: 10
micro_batch_size: 5
precision: fp64
logging: {{every: 1, tensorboard: false}}
checkpoint: {{every: 2 steps, keep: 9}}
evaluate: {{every: 4 steps}}
devices: {{cpu: 1}}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a job and its finished run, and a run of it stopped at step 4."""
    folder = tmp_path_factory.mktemp("resume")
    (folder / "job.yaml").write_text(JOB)
    assert phalanx("train", "job.yaml", "--name", "whole", cwd=folder)[0] == 0
    code, out, err = phalanx(
        "train", "job.yaml", "--name", "half", "--stop-after", "4", "steps", cwd=folder
    )
    assert code == ExitCode.STOPPED, err
    assert "phalanx train --resume runs/half" in out
    return folder


def run_of(folder, name):
    from phalanx.run.directory import RunDirectory

    return RunDirectory((folder / "runs" / name).resolve())


@pytest.mark.full
def test_resume_from_one_checkpoint_makes_a_new_run(finished):
    before = sorted((finished / "runs" / "half").rglob("*"))
    code, _, err = phalanx("train", "--resume", "runs/half/checkpoints/checkpoint-2", cwd=finished)
    assert code == 0, err
    assert "continues at step 2" in err
    run = latest(finished)
    assert run.name not in ("half", "whole")
    assert_same_bits(run, run_of(finished, "whole"))
    assert sorted((finished / "runs" / "half").rglob("*")) == before


def test_resume_a_finished_run_says_so(finished):
    code, out, err = phalanx("train", "--resume", "runs/whole", cwd=finished)
    assert code == 0, err
    assert "already finished" in out


def test_resume_with_another_seed_is_refused_and_with_another_rate_asks_for_consent(finished):
    changes = ["--seed", "5", "--lr", "0.5"]
    code, _, err = phalanx("train", "--resume", "half", *changes, cwd=finished)
    assert code == ExitCode.USAGE
    assert "error[resume-differs]: `seed` is not what it was" in err
    assert "0 then, 5 now" in err
    assert "lr: 0.001 then, 0.5 now" in err
    assert "--accept-changes" in err


def test_resume_without_a_run_is_a_finding(tmp_path):
    code, _, err = phalanx("train", "--resume", cwd=tmp_path)
    assert code == ExitCode.USAGE
    assert "error[no-run]" in err


@pytest.mark.full
def test_existing_name_is_refused(finished):
    code, _, err = phalanx("train", "job.yaml", "--name", "whole", cwd=finished)
    assert code == ExitCode.USAGE
    assert "error[run-exists]" in err


@pytest.mark.full
def test_changed_recipe_is_noticed(tmp_path):
    text = Path(RECIPE.rpartition(":")[0]).read_text()
    (tmp_path / "mine.py").write_text(text)
    (tmp_path / "job.yaml").write_text(JOB.replace(RECIPE, "mine.py:Parity"))
    assert phalanx("train", "job.yaml", "--stop-after", "2", "steps", cwd=tmp_path)[0] == 75
    (tmp_path / "mine.py").write_text(text.replace("nn.Tanh()", "nn.ReLU()"))
    code, _, err = phalanx("train", "--resume", cwd=tmp_path)
    assert code == ExitCode.USAGE
    assert "`recipe_fingerprint` is not what it was" in err
    code, _, err = phalanx("train", "--resume", "--accept-changes", cwd=tmp_path)
    assert code == 0, err
    assert "warning[resume-differs]" in err


@pytest.mark.full
def test_longer_run_continues_with_a_warning(finished):
    code, _, err = phalanx("train", "--resume", "half", "--steps", "10", cwd=finished)
    assert code == 0, err
    assert "warning[resume-length]: the run had 8 steps, now it has 10" in err
    run = run_of(finished, "half")
    assert max(losses(run)) == 10
    assert (run.path / "plan-0.json").is_file()
    assert (run.path / "plan-1.json").is_file()
    assert {e.attempt for e in read_events(run.events)} == {0, 1}
