"""`train --ladder`: rungs in their order, each reported; the first that fails ends it."""

import pytest

from tests.ranks.command import latest, phalanx
from tests.ranks.runs import FIXTURES, RECIPE, outcomes

JOB = f"""
recipe: {RECIPE}
steps: 8
global_batch_size: 10
precision: fp64
logging: {{tensorboard: false}}
devices: {{cpu: 2}}
"""


@pytest.mark.full
def test_the_rungs_come_before_the_run(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    code, out, err = phalanx("train", "job.yaml", "--ladder", cwd=tmp_path, timeout_s=240)
    assert code == 0, err
    first, second, third = [line for line in out.splitlines() if line.startswith("rung ")]
    assert first.startswith("rung 1 of 3: 1 rank on cpu, 5 steps, loss ")
    assert "samples/s" in first and "iB: trains" in first
    assert second.startswith("rung 2 of 3: 2 ranks on cpu, 5 steps: the same as on 1 rank, to ")
    assert third.startswith("rung 3 of 3: 2 ranks on cpu, 5 steps, loss ")
    assert "x the samples/s of 1 rank" in third
    assert outcomes(latest(tmp_path))[-1]["step"] == 8
    runs = [path for path in (tmp_path / "runs").iterdir() if not path.is_symlink()]
    assert len(runs) == 1, "rungs leave no run behind"


@pytest.mark.full
def test_a_rung_that_differs_ends_it_before_the_run(tmp_path):
    recipe = f"{FIXTURES / 'recipes' / 'faults.py'}:Faults"
    (tmp_path / "job.yaml").write_text(JOB.replace(RECIPE, recipe))
    code, out, err = phalanx(
        "train", "job.yaml", "--ladder", "fault=world-in-loss", cwd=tmp_path, timeout_s=240
    )
    assert code == 1
    assert "rung 1 of 3" in out and "rung 2" not in out
    assert "error[verify-" in err
    assert not (tmp_path / "runs").exists()


def test_a_run_that_goes_on_has_no_ladder(tmp_path):
    code, _, err = phalanx("train", "--resume", "runs/x", "--ladder", cwd=tmp_path)
    assert code == 2
    assert "error[ladder-resume]" in err
