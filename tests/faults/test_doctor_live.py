"""Deaths produced for real, each named by `phalanx doctor` from its run directory alone."""

import json
from pathlib import Path

import pytest

from tests.faults.deaths import DEATHS, FAULTS, GROUP
from tests.faults.report import record
from tests.ranks.command import latest, phalanx

pytestmark = pytest.mark.ranks

QUICK = [death for death in DEATHS if death.is_quick]
NAMED_AT_LEAST = 0.9  # 18 of 20


def die(death, folder):
    """Run it to its end: (exit code, stderr)."""
    if death.script:
        (folder / "script.py").write_text(death.script)
        words = ["launch", "--cpu", str(death.ranks), "--max-restarts", "0", "--no-tensorboard"]
        words += ["script.py", *death.words]
    else:
        words = ["train", f"{FAULTS}:Deadly", "--steps", "4", "--batch-size", "10"]
        words += ["--cpu", str(death.ranks), "micro_batch_size=5", "precision=fp64"]
        words += ["max_restarts=0", "logging.tensorboard=false", f"death={death.name}"]
    code, _, err = phalanx(*words, cwd=folder, env=dict(death.env))
    return code, err


def ask(folder):
    code, out, err = phalanx("doctor", "--json", cwd=folder)
    assert code == 1, err + out
    return json.loads(out)


def judge(death, folder):
    """What is wrong with the doctor's answer; empty when all of it is right."""
    code, err = die(death, folder)
    if code == 0:
        return f"{death.name} did not die: {err}"
    answer = ask(folder)
    record(f"doctor: {death.name}", note=f"called {answer['cause']}, is {death.cause}")
    found = answer["death"] or {}
    text = json.dumps(answer)
    is_rank_right = death.rank in (None, found.get("rank"))
    if answer["cause"] != death.cause or not is_rank_right:
        logs = "".join(path.read_text() for path in latest(folder).logs.glob("*.log"))
        return f"{death.name}: {answer['cause']} of {found.get('rank')}: {answer}\n{logs}"
    if death.says not in text:
        return f"{death.name}: `{death.says}` is not in {text}"
    if not (found["evidence"] or found["exit_code"] < 0) or not answer["fix"]:
        return f"{death.name}: no evidence or no fix: {text}"
    return ""


@pytest.mark.parametrize("death", QUICK, ids=lambda death: death.name)
def test_a_death_is_named_with_its_rank_evidence_and_fix(death, tmp_path):
    assert judge(death, tmp_path) == ""


@pytest.fixture
def _no_group_is_left():
    yield
    for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")):
        if (root / GROUP).is_dir():
            (root / GROUP).rmdir()


@pytest.mark.full
@pytest.mark.usefixtures("_no_group_is_left")
def test_of_all_deaths_nine_in_ten_are_named_right(tmp_path, capsys):
    wrong = []
    for death in DEATHS:
        folder = tmp_path / death.name
        folder.mkdir()
        wrong += [said] if (said := judge(death, folder)) else []
    with capsys.disabled():
        print(f"\ndoctor: {len(DEATHS) - len(wrong)} of {len(DEATHS)} deaths named right")
    assert len(DEATHS) >= 20
    assert len(wrong) <= (1 - NAMED_AT_LEAST) * len(DEATHS), "\n\n".join(wrong)
