"""What ranks are told about how to talk: the backend, the timeout, and the user's own variables."""

import json

import pytest

from phalanx.planner.schema.plan import Plan
from tests.ranks.command import latest, phalanx
from tests.ranks.runs import FIXTURES

RECIPE = f"{FIXTURES / 'recipes' / 'talking.py'}:Talking"
USERS = {
    "NCCL_IB_DISABLE": "1",
    "GLOO_LOG": "quiet",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_HUB_TOKEN": "a-secret-canary",
    "TORCH_DISTRIBUTED_BACKEND": "gloo",
}


@pytest.mark.full
def test_variables_timeout_and_debugging_reach_the_ranks(tmp_path):
    options = ["--cpu", "2", "--steps", "2", "--comm-timeout", "36000", "--debug-comm"]
    code, _, err = phalanx(
        "train", RECIPE, *options, "global_batch_size=10", cwd=tmp_path, env=USERS
    )
    assert code == 0, err
    run = latest(tmp_path)
    plan = Plan.from_json(json.loads(run.plan_file.read_text()))
    assert plan.devices.backend.reason == "TORCH_DISTRIBUTED_BACKEND=gloo in the environment"
    assert plan.devices.comm_timeout_s.value == 36000
    for name, value in USERS.items():
        if "TOKEN" not in name:
            assert plan.devices.environment[name] == value
            assert f"{name}={value}" in err
    assert "note[debug-detail]" in err
    assert "a-secret-canary" not in err
    for rank in (0, 1):
        log = run.log_file(rank).read_text()
        assert "timeout 36000.0 s" in log
        assert "NCCL_IB_DISABLE=1" in log and "GLOO_LOG=quiet" in log
        assert f"NCCL_DEBUG_FILE={run.nccl_log(rank)}" in log
        assert "debug level DebugLevel.INFO" in log, "DETAIL ends DDP over gloo"
        assert "[I" in log, "torch's own lines of level INFO"
    files = [path for path in run.path.rglob("*") if path.is_file()]
    written = [path.name for path in files if b"a-secret-canary" in path.read_bytes()]
    assert written == []


def test_variables_and_debugging_reach_a_launched_script(tmp_path):
    (tmp_path / "script.py").write_text(
        "import os\n"
        "for name in ('NCCL_DEBUG', 'TORCH_DISTRIBUTED_DEBUG', 'NCCL_DEBUG_FILE', 'GLOO_LOG'):\n"
        "    print(name, os.environ[name])\n"
    )
    argv = ["launch", "--cpu", "1", "--debug-comm", "script.py"]
    code, out, err = phalanx(*argv, cwd=tmp_path, env={**USERS, "NCCL_DEBUG": "WARN"})
    assert code == 0, err
    run = latest(tmp_path)
    assert "NCCL_DEBUG WARN" in out, "the user's own wins"
    assert "TORCH_DISTRIBUTED_DEBUG DETAIL" in out and "GLOO_LOG quiet" in out
    assert f"NCCL_DEBUG_FILE {run.nccl_log(0)}" in out
    assert "NCCL_IB_DISABLE=1" in err and "a-secret-canary" not in err
    assert "a-secret-canary" not in run.launch_file.read_text()


@pytest.mark.parametrize("key", ["--backend=tcp", "--comm-timeout=0"])
def test_values_that_cannot_be(tmp_path, key):
    code, _, err = phalanx("plan", "digits", key, cwd=tmp_path)
    assert code == 2
    assert "error[" in err and "devices." in err
