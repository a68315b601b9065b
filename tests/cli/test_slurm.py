"""`phalanx slurm` without a Slurm: what its script does, and that nothing in it is ever run."""

import os
import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phalanx.errors import ExitCode, errors_of
from phalanx.places.slurm.checks import parse_gres, parse_memory
from phalanx.places.slurm.job import (
    SlurmRequest,
    batch_script,
    parse_time,
    train_words,
    value_findings,
)
from phalanx.places.slurm.jobs import parse_reference
from tests.cli.command import run_cli

# srun writes down what it was given, and waits to be told its end; the others only say their names.
STAND_INS = {
    "srun": 'printf "%s\\0" "$@" > argv; [[ -n $WITH_SIGNAL ]] && kill -USR1 $PPID'
    "\nwhile [[ -n $WITH_SIGNAL && ! -s scancelled ]]; do sleep 0.02; done\nexit $SRUN_CODE",
    "scancel": 'echo "$@" >> scancelled; sleep 0.1; exit 1',
    "scontrol": 'echo "$@" >> scontrolled; [[ $1 == show ]] && echo "PreemptTime=$PREEMPTED"',
}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A folder in which a batch script can be run: Slurm's commands are stand-ins."""
    folder = tmp_path_factory.mktemp("node")
    for name, text in STAND_INS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


def run_script(node, script, *, code=0, with_signal=False, **variables):
    """Run a batch script: its exit code, and what it asked of scontrol."""
    for name in ("argv", "scancelled", "scontrolled"):
        (node / name).unlink(missing_ok=True)
    known = {"PATH": f"{node}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SRUN_CODE": str(code)}
    known |= {"WITH_SIGNAL": "1" if with_signal else "", **variables}
    (node / "slurm_script").write_text(script, encoding="utf-8")  # as slurmd does
    argv = ["bash", "slurm_script"]
    done = subprocess.run(argv, env=known, cwd=node, capture_output=True, timeout=30)
    asked = node / "scontrolled"
    return done.returncode, asked.read_text().strip() if asked.exists() else ""


def request(*words, **changes):
    values = {"name": "job", "output": "runs", "python": "python", **changes}
    return SlurmRequest(words=words or ("digits",), **values)


@pytest.mark.parametrize(
    ("code", "with_signal", "restarts", "asked"),
    [
        (0, False, None, ""),
        (75, True, None, "requeue 7"),
        (75, True, "4", "requeue 7"),
        (75, True, "5", ""),  # as often as it may
        (75, False, None, "show job 7"),  # it stopped by a wish of its own: `--stop-after`
        (1, True, None, ""),  # a crash, though a signal came
        (0, True, None, ""),  # done before it heard
    ],
)
def test_only_a_run_that_was_told_to_stop_and_saved_is_queued_again(
    node, code, with_signal, restarts, asked
):
    counted = {"SLURM_RESTART_COUNT": restarts} if restarts is not None else {}
    script = batch_script(request())
    done = run_script(node, script, code=code, with_signal=with_signal, **counted)
    assert done == (code, asked)
    assert (node / "scancelled").exists() == with_signal
    if with_signal:
        assert set((node / "scancelled").read_text().splitlines()) == {"--signal=USR1 7"}


def test_a_run_that_gives_way_to_another_is_queued_again(node):
    script = batch_script(request())
    assert run_script(node, script, code=1, PREEMPTED="2026-11-16T03:19:14") == (1, "")
    for since, asked in (("2026-11-16T03:19:14", "show job 7\nrequeue 7"), ("None", "show job 7")):
        assert run_script(node, script, code=75, PREEMPTED=since) == (75, asked)


HOSTILE = ["a b", "'", '"', "$(touch pwned)", "`touch pwned`", ";touch pwned", "é\u202e", "-x", "*"]


@settings(max_examples=40)
@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4), st.text(min_size=1))
@example(HOSTILE, "my '$(touch pwned)' runs")
@example(["a\n#SBATCH --uid=0\ntouch pwned"], "runs")
@example(["~", "#", "!!", "{a,b}", "\\"], "-runs")
def test_words_reach_the_ranks_as_they_were_typed_or_are_refused(node, words, output):
    asked = request(*words, output=output, python="/my envs/it's/python")
    is_odd = any(ord(c) < 32 or ord(c) == 127 or "{task}" in w for w in (*words, output) for c in w)
    refused = errors_of(value_findings(asked, {}))
    assert bool(refused) == is_odd
    if refused:
        return
    assert run_script(node, batch_script(asked))[0] == 0
    argv = (node / "argv").read_bytes().decode().split("\0")[:-1]
    assert argv[argv.index("phalanx") :] == [
        *("phalanx", "/my envs/it's/python", "-m", "phalanx", "train"),
        *(f"--output={output}", "--name=job_7", *words),
    ]
    assert not (node / "pwned").exists()


@pytest.mark.parametrize("field", ["name", "partition", "account", "qos", "constraint", "array"])
@pytest.mark.parametrize("value", [*HOSTILE, "", "a\n#SBATCH --uid=0", "a\n", "a --wrap=b", "%j"])
def test_values_that_could_be_more_than_a_value_are_refused(field, value):
    found = value_findings(request(**{field: value}), {})
    assert "slurm-value" in [finding.slug for finding in errors_of(found)]


def test_continued_run_resumes_and_tasks_have_numbers(node):
    (node / "runs" / "job_7").mkdir(parents=True, exist_ok=True)
    (node / "runs" / "job_7" / "plan.json").write_text("{}")
    run_script(node, batch_script(request()))
    assert (node / "argv").read_text().endswith("train\0--resume\0runs/job_7\0")
    (node / "runs" / "job_7" / "plan.json").unlink()
    script = batch_script(request("digits", "seed={task}", array="0-3%2"))
    run_script(node, script, SLURM_ARRAY_JOB_ID="5", SLURM_ARRAY_TASK_ID="3")
    assert (node / "argv").read_text().endswith("--name=job_5_3\0digits\0seed=3\0")
    assert "#SBATCH --output=logs/job_%A_%a.out" in script


def test_the_command_line_of_train_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    argv = ["--gpus", "0,", "--fsdp", "--bf16", "--save-every", "5 minutes", "--name", "x"]
    argv += ["--batch-size", "64", "lr=0.01", "output=my runs", "seed={task}", "--array", "0-1"]
    code, out, err = run_cli("slurm", "digits", *argv, "--time", "1-12", "--print")
    assert code == 0, err
    assert (
        "words=('--output=my runs' --name=\"$name\" --gpus=0, --batch-size=64 --bf16 --fsdp "
        "'--save-every=5 minutes' digits lr=0.01 seed=\"$SLURM_ARRAY_TASK_ID\")\n"
    ) in out
    assert "#SBATCH --gpus-per-node=1\n" in out
    assert f" {sys.executable} -m phalanx " in out
    assert not list(tmp_path.iterdir())
    code, _, err = run_cli("slurm", "digits")
    assert code == ExitCode.USAGE
    assert "error[slurm-missing]" in err


def test_several_nodes_meet_at_the_first_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    code, out, err = run_cli("slurm", "digits", "--nodes", "2", "--cpu", "1", "--print")
    assert code == 0, err
    for line in (
        "#SBATCH --nodes=2",
        'host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "port=$((20000 + SLURM_JOB_ID % 10000))",
        'words=(--nodes="$SLURM_NNODES" --rendezvous="$host:$port" "${words[@]}")',
        "srun --nodes=2 --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 \\",
    ):
        assert line in out.splitlines()
    words = [line for line in out.splitlines() if line and line[0].isalpha()]
    known = (
        "name=",
        "run=",
        "if ",
        "else",
        "fi",
        "host=",
        "port=",
        "words=",
        "signals=",
        "pass_on()",
    )
    known += ("trap ", "export ", "srun ", "step=", "while ", "done", "restarts=", "exit ")
    assert [line for line in words if not line.startswith(known)] == []


def test_what_is_wrong_without_asking_slurm_is_said_together(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_canary_canary")
    monkeypatch.setenv("SBATCH_EXPORT", "NONE")
    argv = ["--nodes", "0", "--time", "soon", "--mem", "64 GB", "--signal-s", "0", "--print"]
    code, out, err = run_cli("slurm", "digits", *argv, "data=hf_canary_canary")
    assert code == ExitCode.USAGE
    for slug in ("slurm-time", "slurm-value", "slurm-secret"):
        assert f"error[{slug}]" in err
    assert "warning[slurm-environment]" in err
    assert "canary" not in out + err
    code, _, err = run_cli("slurm", "digits", "--gpus", "4", "--gpus-per-node", "2", "--print")
    assert "the job asks for 4 GPUs, Slurm is asked for 2" in err
    assert code == ExitCode.USAGE
    assert "error[unknown-key]" in run_cli("slurm", "digits", "optimizer.lrr=1", "--print").err


def test_words_of_slurm_are_read():
    times = {"90": 5400, "1:30": 90, "1:00:00": 3600, "2-1": 176400, "1-0:30": 88200, "0": None}
    times |= {"infinite": None, "1-2:03:04": 93784, "-5": None, "\u0661": None, "1:2:3:4": None}
    assert {text: parse_time(text) for text in times} == times
    assert parse_gres("gpu:a100:4(S:0-1),gpu:2,nic:1") == {"": 6, "a100": 4}
    assert parse_gres("(null)") == {}
    assert parse_memory("64G") == 64 * 2**30
    assert parse_memory("100") == 100 * 2**20
    for text in ("42", "digits_42", "runs/my_digits_42", "logs/digits_42.out"):
        assert parse_reference(text) == "42"
    assert parse_reference("logs/digits_42_3.err") == "42_3"
    assert train_words("-j.yaml", ["a=1"], ["--cpu=2"]) == ("--cpu=2", "--", "-j.yaml", "a=1")
