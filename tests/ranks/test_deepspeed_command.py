"""A team's own DeepSpeed file trains as it is, by the real command, and is not needed again."""

import json

import pytest
import yaml

from phalanx.errors import ExitCode
from tests.ranks.command import latest, phalanx
from tests.unit.job.test_deepspeed import G3

JOB = "recipe: digits\nepochs: 1\nglobal_batch_size: 64\noptimizer: {lr: 0.003}\n"


@pytest.mark.full
def test_the_file_of_the_guide_trains_and_resumes_without_it(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "ds_config.json").write_text(G3)
    command = ("train", "job.yaml", "--deepspeed", "ds_config.json", "--cpu", "2")
    code, _, err = phalanx(*command, "--stop-after", "12", "steps", cwd=tmp_path)
    assert code == ExitCode.STOPPED, err
    run = latest(tmp_path)
    (tmp_path / "ds_config.json").unlink()
    kept = yaml.safe_load(run.job_file.read_text())["deepspeed"]
    assert kept["config"]["zero_optimization"]["reduce_bucket_size"] == 200_000_000
    code, out, err = phalanx("train", "--resume", cwd=tmp_path)
    assert code == 0, err
    assert "finished" in out + err
    plan = json.loads(run.plan_file.read_text())
    assert (plan["revision"], plan["parallel"]["zero_stage"]["value"]) == (1, 2)
    assert (plan["parallel"]["offload"]["value"], plan["numerics"]["precision"]["value"]) == (
        "optimizer",
        "bf16",
    )
    # Nothing was compiled, and nothing but the line of each attempt is in the log.
    assert [line[:11] for line in run.log_file(1).read_text().splitlines()] == ["--- attempt"] * 2
