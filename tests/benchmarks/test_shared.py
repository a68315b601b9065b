"""What the benchmarks share: where figures come from, turns in sessions of their own, the meter."""

import json
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from tests.fixtures.scripts import BENCHMARKS, beside

ABOUT = {
    "date": "2026-11-15 10:00 UTC", "machine": "CPU only", "cores": 2, "python": "3.12",
    "torch": "2.11", "commit": "abc", "command": "python run_gpu.py",
}  # fmt: skip
LEAVES_A_CHILD = """
    import json, os, subprocess, sys
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("a bar without an end", end="")
    print("\\n" + json.dumps({"samples_per_s": 5.0, "child": child.pid}), flush=True)
    os._exit(0)
"""


@pytest.fixture(autouse=True)
def _beside():
    with beside("."):
        yield


def _python(code):
    return [sys.executable, "-c", textwrap.dedent(code)]


def _is_running(pid):
    """Where nobody is first of all processes, one that was killed stays listed."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _git(folder, *words):
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *settings, *words], cwd=folder, check=True, capture_output=True)


def test_only_files_of_the_commit_make_a_tree_dirty(tmp_path):
    from origin import commit_of_tree

    assert commit_of_tree(tmp_path) == "an unknown commit"
    kept = tmp_path / "kept.py"
    kept.write_text("1\n")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "one")
    commit = commit_of_tree(tmp_path)
    assert len(commit) >= 7 and "dirty" not in commit
    (tmp_path / "script.py").write_text("brought along\n")
    kept.chmod(0o755)  # a copy of a tree keeps no modes
    assert commit_of_tree(tmp_path) == commit
    _git(tmp_path, "add", "script.py")
    assert commit_of_tree(tmp_path) == commit
    kept.write_text("2\n")
    assert commit_of_tree(tmp_path) == f"{commit}-dirty"
    kept.unlink()
    assert commit_of_tree(tmp_path) == f"{commit}-dirty"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--out", "/somewhere/out/a.jsonl", "--seconds", "7"], "--out a.jsonl --seconds 7"),
        (["--out", "folder/a.jsonl", "--tiny"], "--out a.jsonl --tiny"),
        (["--out=/somewhere/a.jsonl"], "--out=a.jsonl"),
        (["--only", "6m", "--folder", "/somewhere/photos"], "--only 6m --folder photos"),
    ],
)
def test_a_command_is_shown_as_typed_in_the_tree(words, shown):
    from origin import command_line

    script = BENCHMARKS / "policy" / "run_gpu.py"
    assert command_line([str(script), *words]) == f"python benchmarks/policy/run_gpu.py {shown}"


def test_a_turn_ends_with_all_that_it_started(tmp_path):
    from turns import Turn, run_turns

    out = tmp_path / "a.jsonl"
    turns = [
        Turn("6m", "quick", 1, _python(LEAVES_A_CHILD), limit_s=60, facts={"batch": 4}),
        Turn("6m", "wrong", 1, _python("raise SystemExit('no such thing')"), limit_s=60),
        Turn("6m", "endless", 1, _python("import time; time.sleep(600)"), limit_s=1.0),
        Turn("6m", "late", 10**6, _python("print('{}')")),
    ]
    run_turns(turns, out=out, about=ABOUT, ends=time.monotonic() + 100)
    quick, wrong, endless, late = map(json.loads, out.read_text().splitlines())
    assert (quick["samples_per_s"], quick["batch"], quick["about"]) == (5.0, 4, ABOUT)
    assert not _is_running(quick["child"])  # it would take time from the next
    assert "exit code 1" in wrong["error"] and "no such thing" in wrong["error"]
    assert endless["error"].startswith("over 1 s")
    assert late["left_out"]


def test_those_that_may_wait_are_measured_in_turn(tmp_path):
    from turns import Turn, run_turns

    waits = """
        import json, pathlib, sys, time
        gate = pathlib.Path(sys.argv[sys.argv.index("--gate") + 1])
        (gate / "ready").touch()
        while not (gate / "go").exists():
            time.sleep(0.01)
        began = time.time()
        time.sleep(0.2)
        print(json.dumps({"began": began, "ended": time.time(), "first_step_at": began}))
    """
    out = tmp_path / "a.jsonl"
    turns = [Turn("6m", name, 20, _python(waits), may_wait=True) for name in ("one", "other")]
    run_turns(turns, out=out, about=ABOUT, ends=time.monotonic() + 100, together=True)
    one, other = map(json.loads, out.read_text().splitlines())
    assert one["ended"] <= other["began"]
    assert "first_step_s" not in one  # beside others, a start says nothing


def test_names_that_are_not_known_are_refused():
    from turns import Turn, choose_turns

    turns = [Turn(work, name, 1, []) for work in ("6m", "170m") for name in ("phalanx", "plain")]
    chosen = choose_turns(turns, ["6m", "plain"], [])
    assert [(turn.work, turn.contestant) for turn in chosen] == [("6m", "plain")]
    assert len(choose_turns(turns, [], ["plain"])) == 2
    with pytest.raises(SystemExit, match=r"unknown: plan; known: 170m, 6m, phalanx, plain"):
        choose_turns(turns, ["plan"], [])


def test_a_meter_leaves_out_what_settles(monkeypatch):
    import meter

    now = [0.0]
    monkeypatch.setattr(meter.time, "perf_counter", lambda: now[0])
    clock = meter.Meter(10, window=2, device="cpu", seconds=8.0, settle_s=30.0)
    steps = 0
    while True:
        now[0] += 4.0 if steps < 10 else 1.0  # slow at first: compiling, caches
        steps += 1
        if clock.step():
            break
    figures = clock.figures()
    assert figures["samples_per_s"] == pytest.approx(10.0)
    assert (figures["slowest"], figures["quickest"]) == (10.0, 10.0)
    assert (figures["windows"], figures["steps"]) == (4, 18)


def test_older_lines_are_read_and_the_latest_counts(tmp_path):
    from records import by_contestant, read_records
    from tables import heading, times

    records = [
        {"work": "6m", "contestant": "phalanx", "samples_per_s": 1.0, "about": ABOUT},
        {"work": "6m", "contestant": "phalanx", "samples_per_s": 2.0,
         "versions": {"accelerate": "1.15"}, "about": {**ABOUT, "command": "python later.py"}},
        {"work": "6m", "contestant": "phalanx", "left_out": True, "about": ABOUT},
    ]  # fmt: skip
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = read_records([file])
    assert by_contestant(found)["6m"]["phalanx"]["samples_per_s"] == 2.0
    page = "\n".join(heading("Title", found))
    assert "- versions: python 3.12, torch 2.11, accelerate 1.15; phalanx at abc" in page
    assert "- command: python run_gpu.py\n- command: python later.py" in page
    assert list(times("them", 3.0, None, asked=2)) == []
    assert list(times("them", 3.0, 2.0, asked=2)) == [
        "- times them: 1.50, asked at least 2: **not reached**"
    ]
    with pytest.raises(FileNotFoundError):
        read_records([tmp_path / "typo.jsonl"])
