"""`phalanx watch`: the terminal view, pinned; for scripts; and what is refused."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phalanx.watch.terminal import Room, render
from phalanx.watch.watched_run import WatchedRun
from tests.cli.command import run_cli
from tests.unit.watch.run_folder import BEGAN, Run, plan, whole_run

GOLDEN = Path(__file__).parents[1] / "golden" / "watch"


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def dead_run(folder):
    made = Run(folder, "dead")
    made.begin()
    for step in range(10, 61, 10):
        made.step(step)
    made.evaluate(60, 0.4)
    made.write(
        "death", 9.0, rank=1, exit_code=1, was_ended=False, phase="step", step=60, oom_kills=0
    )
    finding = {
        "slug": "out-of-memory",
        "what": "rank 1 ran out of GPU memory: 2.1 GiB more were "
        "wanted, 0.4 GiB of 79.2 GiB were free",
        "why": "micro_batch_size = 16 (job.yaml:7)",
        "fix": "phalanx train --resume runs/dead micro_batch_size=8",
        "severity": "error",
    }
    made.end("failed", 10.0, 60, "rank 1 ran out of GPU memory", [finding])
    return made


def live_run(folder):
    made = Run(folder, "live", plan_record=plan() | {"revision": 1})
    made.begin()
    for step in range(10, 91, 10):
        made.step(step)
    made.hold()
    for rank in range(2):
        made.usage(rank, 10.0)
    made.pace(10.0, (0.01, 0.011))
    return made


def script_run(folder):
    made = Run(folder, "script", plan_record={})
    made.write("attempt", 0.0, ranks=1)
    made.write(
        "start",
        0.1,
        rank=0,
        world=1,
        pid=1,
        device="cpu",
        backend="gloo",
        step=None,
        resumed_from=None,
        source="launch",
    )
    for step in range(1, 20):
        made.write(
            "step",
            step,
            step=step,
            epoch=None,
            loss=3 / step,
            terms={},
            lr=None,
            grad_norm=None,
            total_steps=40,
            source="output",
        )
    made.end("stopped", 20.0, 19, "SIGTERM was passed on to the ranks")
    return made


MAKE = {"finished": whole_run, "dead": dead_run, "live": live_run, "script": script_run}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("kind", MAKE)
def test_the_view_is_as_pinned(kind, width, tmp_path):
    from rich.console import Console

    made = MAKE[kind](tmp_path)
    watched = WatchedRun(made.run, is_kept=False, clock=lambda: BEGAN + 12)
    watched.reader.read_all()
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    console.print(render(watched, Room(width)))
    shown = "\n".join(line.rstrip() for line in console.export_text().splitlines()) + "\n"
    assert max(map(len, shown.splitlines())) <= width
    path = GOLDEN / f"{kind}-{width}.txt"
    if os.environ.get("PHALANX_WRITE_GOLDEN"):
        path.write_text(shown)
    assert shown == path.read_text(), "PHALANX_WRITE_GOLDEN=1 writes it anew: look at it"


def test_once_in_a_pipe_and_its_exit_code(tmp_path, monkeypatch):
    whole_run(tmp_path / "runs")
    dead_run(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run_cli("watch", "first", "--once")
    assert code == 0
    assert "best accuracy 0.900 at step 200" in out
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = run_cli("watch", "runs/dead")
    assert code == 1, "without a terminal it is shown once"
    assert "phalanx train --resume runs/dead micro_batch_size=8" in out


def test_json_for_other_programs(tmp_path, monkeypatch):
    made = whole_run(tmp_path / "runs")
    made.evaluate(200, float("nan"))
    monkeypatch.chdir(tmp_path)
    code, out, _ = run_cli("watch", "--json")
    record = json.loads(out)
    assert (code, record["schema_version"], record["status"]) == (0, 1, "finished")
    assert record["ranks"][1]["is_straggler"]
    assert record["metrics"] == {"accuracy": None}
    assert record["mfu"] == pytest.approx(0.06)


def test_a_slurm_job_is_found_by_its_number(tmp_path, monkeypatch):
    whole_run(tmp_path / "runs", "digits_4242")
    monkeypatch.chdir(tmp_path)
    assert run_cli("watch", "4242", "--once")[0] == 0
    assert "no-run" in run_cli("watch", "4243", "--once")[2]


@pytest.mark.parametrize(
    ("argv", "slug"),
    [
        (["--web", "--once"], "watch-how"),
        (["a", "b"], "watch-one"),
        (["nowhere"], "no-run"),
        (["--tensorboard", "first"], "no-tensorboard"),
        (["--web", "--metrics-token-file", "nowhere"], "watch-token"),
        (["--remote", "nowhere"], "remote-unknown"),
    ],
)
def test_what_is_refused(argv, slug, tmp_path, monkeypatch):
    whole_run(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    code, _, err = run_cli("watch", *argv)
    assert code == 2
    assert f"[{slug}]" in err


def test_a_port_that_is_taken_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = run_cli("watch", "--web", "--port", str(port))
    assert code == 4
    assert "[watch-port]" in err


def test_terminals_get_no_escape_codes_of_others(tmp_path, monkeypatch):
    evil = "\x1b]0;owned\x07\x1b[2J"
    made = Run(tmp_path / "runs", "evil")
    made.begin(device=evil)
    made.step(10)
    made.evaluate(10, 0.5, metrics={evil: 0.5})
    made.finding(5.0, what=evil, why=evil, fix=evil, slug=evil)
    made.end("failed", reason=evil)
    monkeypatch.chdir(tmp_path)
    _, out, _ = run_cli("watch", "--once")
    assert "\x1b" not in out
    assert "\x07" not in out


def test_a_live_run_is_followed_to_its_end_on_a_terminal(tmp_path):
    import pty

    made = live_run(tmp_path / "runs")
    holder = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lock = json.loads((made.run.path / ".lock").read_text())
    from phalanx.run import holder as holder_module

    lock |= {"pid": holder.pid, "born": holder_module._born(holder.pid)}
    (made.run.path / ".lock").write_text(json.dumps(lock))
    main, side = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    env.pop("CI", None)
    watching = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "watch"],
        cwd=tmp_path,
        stdout=side,
        stderr=side,
        stdin=side,
        env=env,
    )
    os.close(side)
    seen = b""
    while b"running" not in seen:
        seen += os.read(main, 4096)
    for step in range(100, 201, 10):
        made.step(step)
    made.end()
    holder.communicate(b"\n")
    while True:
        try:
            seen += os.read(main, 65536)
        except OSError:
            break
    assert watching.wait() == 0
    os.close(main)
    assert b"finished" in seen
    assert b"step 200 of 200" in seen
