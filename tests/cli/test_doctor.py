"""`phalanx doctor` as a person and as a program reads it."""

import json
import shutil
from pathlib import Path

import phalanx
from phalanx.errors import Finding
from tests.cli.command import run_cli
from tests.fixtures.recorded import RecordedWriter
from tests.unit.diagnose.run_folders import died, folder, steps, traceback
from tests.unit.watch.run_folder import whole_run

GOLDEN = Path(__file__).parents[1] / "golden" / "run-0.1"
MISSING = "ModuleNotFoundError: No module named 'timm'"


def test_a_dead_run_verdict_evidence_and_fix_in_this_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = died(tmp_path, {0: traceback(MISSING)})
    code, out, _ = run_cli("doctor", str(run.path))
    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("module-missing: rank 0, in start: the package `timm` is not in")
    assert "logs/rank-0.log:5: ModuleNotFoundError: No module named 'timm'" in out
    assert lines[-1] == (
        "fix:  /env/bin/python -m pip install timm; or name the environment that has it: "
        "`phalanx launch --python ENV/bin/python ...`"
    )


def test_json_has_a_version_and_every_part(tmp_path):
    run = died(tmp_path, {0: traceback(MISSING)}, {0: 1}, status=None)
    died(tmp_path, {0: "nothing to say"}, attempt=1)
    code, out, _ = run_cli("doctor", str(run.path), "--json")
    answer = json.loads(out)
    assert code == 1
    assert list(answer) == [
        *("schema_version", "run", "kind", "status", "step", "saved_step", "cause", "verdict"),
        *("fix", "death", "earlier", "findings", "speed", "evaluated"),
    ]
    assert answer["schema_version"] == 1
    assert (answer["kind"], answer["status"], answer["cause"]) == ("launch", "failed", "unknown")
    assert answer["death"]["evidence"] == [
        {"file": "logs/rank-0.log", "line": 7, "text": "nothing to say"}
    ]
    assert [death["cause"] for death in answer["earlier"]] == ["module-missing"]


def test_a_finished_run_exits_0_and_the_newest_is_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDEN, tmp_path / "runs" / "golden", symlinks=True)
    (tmp_path / "runs" / "latest").symlink_to("golden")
    code, out, err = run_cli("doctor")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "finished, and nothing is wrong with it"


def test_a_run_that_got_over_a_death_says_so(tmp_path):
    run = died(tmp_path, {0: traceback(MISSING)}, {0: 1}, status=None)
    died(tmp_path, {0: "all well"}, {}, attempt=1, status="finished")
    code, out, _ = run_cli("doctor", str(run.path))
    assert code == 0
    assert out.startswith("finished; its ranks died 1 time on the way, see below")
    assert "attempt before  module-missing: rank 0" in out


def test_a_slow_run_exits_0_and_says_why(tmp_path):
    run = folder(tmp_path, is_script=False, plan={"workers": 2, "ranks": 1})
    steps(run, [1.0] * 10, samples_per_s=50.0, data_wait=0.5)
    events = RecordedWriter(run.events, "supervisor")
    events.write("outcome", status="finished", step=10, reason="", findings=[], exit_code=0)
    events.close()
    code, out, _ = run_cli("doctor", str(run.path))
    assert code == 0
    assert out.startswith("slow-loader: finished; 50% of the time rank 0 waits for samples")


def test_what_is_only_expected_is_a_note_and_no_verdict(tmp_path):
    run = folder(tmp_path, is_script=False)
    forecast = {"samples_per_s": 100.0, "step_s": 1.0, "spread": 0.1}
    run.plan_file.write_text(json.dumps({"revision": 0, "forecast": forecast}))
    steps(run, [1.0] * 10, samples_per_s=40.0, data_wait=0.0)
    events = RecordedWriter(run.events, "supervisor")
    events.write("outcome", status="finished", step=10, reason="", findings=[], exit_code=0)
    events.close()
    code, out, err = run_cli("doctor", str(run.path))
    assert (code, out.splitlines()[0]) == (0, "finished, and nothing is wrong with it")
    assert "note[slow-unknown]: 40% of the predicted speed" in err


def test_what_the_command_found_by_other_means_is_the_verdict(tmp_path):
    run = folder(tmp_path, is_script=False)
    finding = Finding(slug="does-not-fit", what="one sample does not fit", why="x", fix="a smaller")
    events = RecordedWriter(run.events, "supervisor")
    events.write("attempt", ranks=1)
    events.write("death", rank=0, exit_code=1, was_ended=False, oom_kills=0)
    events.write(
        "outcome", status="failed", step=0, reason="", findings=[finding.to_json()], exit_code=1
    )
    events.close()
    code, out, _ = run_cli("doctor", str(run.path))
    assert code == 1
    assert out.startswith("does-not-fit: one sample does not fit")


def test_a_command_that_was_killed_left_no_word(tmp_path):
    run = folder(tmp_path, is_script=False, command=("phalanx", "train", "job.yaml"))
    events = RecordedWriter(run.events, "supervisor")
    events.write("attempt", ranks=1)
    events.close()
    code, out, _ = run_cli("doctor", str(run.path))
    assert code == 1
    assert out.startswith("command-killed: ")
    assert "fix:  phalanx train job.yaml" in out


def test_the_same_from_python(tmp_path):
    run = died(tmp_path, {0: traceback(MISSING)})
    assert phalanx.doctor(run.path).cause == "module-missing"


def test_no_run_is_a_finding(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run_cli("doctor")
    assert code == 2
    assert "error[no-run]" in err


def test_what_was_evaluated_is_told(tmp_path):
    run = whole_run(tmp_path)
    run.evaluated(40.0, 0.5)
    run.evaluated(41.0, 0.75)
    run.evaluated(42.0, 0.25, benchmark="marks")
    code, out, _ = run_cli("doctor", str(run.run.path))
    assert code == 0
    lines = [line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("evaluated")]
    assert lines == ["test split: accuracy 0.75", "marks: accuracy 0.25"], "the newest of each"
