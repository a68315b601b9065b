"""Commands of README and docs for several nodes and for Slurm, on hosts of the test's own."""

import re
from pathlib import Path

import pytest

from tests.cli.command import run_cli
from tests.cli.documented import asked
from tests.cli.reader import write_jobs, write_scripts
from tests.cluster.commands import DEADLINE_S, Commands
from tests.cluster.test_slurm import state_of, wait_for

ORDER = ("launch", "status", "logs", "watch", "requeue", "cancel")
WAITS = "\nimport pathlib, time\nwhile not pathlib.Path('go').exists():\n    time.sleep(0.2)\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_jobs(tmp_path)
    write_scripts(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.full
@pytest.mark.parametrize("question", asked("nodes"), ids=str)
def test_the_same_command_on_every_node(question, hosts, folder):
    commands = Commands(hosts, folder)
    verb, *words = question.words
    place = words.index("--rendezvous")
    (meeting,) = words[place + 1 : place + 2]
    port = meeting.removeprefix("HOST:")
    words[place - 2 : place + 2] = []  # the test's own: --nodes 2 --rendezvous
    try:
        both = [
            commands.start(host, *words, verb=verb, rendezvous=f"{hosts.address(0)}:{port}")
            for host in (0, 1)
        ]
        assert [child.wait(DEADLINE_S) for child in both] == [0, 0], commands.said
    finally:
        commands.close()


def test_a_job_of_slurm_from_its_submission_to_its_end(slurm, folder):
    script = folder / "train.py"
    script.write_text(script.read_text() + WAITS)  # so that it is there for all that follows
    launch, *others = sorted(asked("slurm"), key=lambda q: ORDER.index(_verb(q)))
    code, out, err = run_cli(*launch.words)
    assert code == 0, f"{launch.command}\n{out}{err}"
    number = re.search(r"\d+", out)[0]
    wait_for(lambda: "step 3/3" in _logs(Path("runs") / f"train_{number}"), number)
    for question in others:
        words = [number if word == "42" else word for word in question.words]
        code, out, err = run_cli(*words)
        assert code == 0, f"{question.command}\n{out}{err}"
        assert number in out, f"{question.command}\n{out}"
        if _verb(question) == "requeue":
            wait_for(lambda: state_of(number) == "PENDING", number)
    wait_for(lambda: state_of(number) == "CANCELLED", number)


def _verb(question):
    return next(word for word in question.words if word in ORDER)


def _logs(run):
    return "".join(path.read_text() for path in run.glob("logs/rank-*.log"))
