"""The run directory: whole files, no name twice, one supervisor at a time."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.run import directory
from phalanx.run.directory import (
    RunDirectory,
    create_run_directory,
    find_run,
    swap_link,
    write_atomic,
)
from phalanx.run.holder import Holder, this_process
from phalanx.run.lock import is_held, lock_run, read_holder


def finding_of(call, *arguments):
    with pytest.raises(UserError) as caught:
        call(*arguments)
    (finding,) = caught.value.findings
    return finding


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def make_run(output, name):
    run = create_run_directory(output, name, "digits")
    write_atomic(run.plan_file, "{}")
    return run


def test_a_written_file_is_whole_and_alone(tmp_path):
    path = tmp_path / "plan.json"
    write_atomic(path, "one")
    write_atomic(path, "two \N{SNOWMAN}")
    assert path.read_text(encoding="utf-8") == "two \N{SNOWMAN}"
    assert names(tmp_path) == ["plan.json"]


@pytest.mark.parametrize("where", ["fsync", "replace", "write"])
def test_a_crash_while_writing_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, where):
    path = tmp_path / "plan.json"
    write_atomic(path, "old")

    def crash(*_):
        raise OSError("no space left on device")

    text = "new" * 100_000
    if where == "fsync":
        monkeypatch.setattr(directory.os, "fsync", crash)
    elif where == "replace":
        monkeypatch.setattr(Path, "replace", crash)
    else:
        text = "half \ud800"  # a lone surrogate cannot be encoded
    with pytest.raises((OSError, UnicodeEncodeError)):
        write_atomic(path, text)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["plan.json"]


def test_the_new_file_is_on_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    path, seen = tmp_path / "plan.json", []
    fsync, replace = os.fsync, Path.replace

    def note(what, call):
        def noted(*arguments):
            seen.append(what)
            return call(*arguments)

        return noted

    monkeypatch.setattr(directory.os, "fsync", note("sync", fsync))
    monkeypatch.setattr(Path, "replace", note("rename", replace))
    write_atomic(path, "text")
    assert seen == ["sync", "rename", "sync"]


def test_a_link_is_swapped_without_left_overs(tmp_path):
    link = tmp_path / "latest"
    for target in ("a", "b"):
        (tmp_path / target).mkdir()
        swap_link(link, target)
        assert link.resolve() == (tmp_path / target).resolve()
    assert names(tmp_path) == ["a", "b", "latest"]


def test_a_link_that_cannot_be_swapped_leaves_nothing_behind(tmp_path):
    (tmp_path / "latest").mkdir()
    (tmp_path / "latest" / "mine").touch()
    with pytest.raises(OSError, match="latest"):
        swap_link(tmp_path / "latest", "a")
    assert names(tmp_path) == ["latest"]


def test_a_new_run_has_its_folders_and_is_the_latest(tmp_path):
    first = create_run_directory(tmp_path / "runs", "first", "digits")
    assert (tmp_path / "runs" / "latest").resolve() == first.path
    second = create_run_directory(tmp_path / "runs", "second", "digits")
    assert (tmp_path / "runs" / "latest").resolve() == second.path
    assert names(first.path) == ["checkpoints", "events", "logs"]
    assert first.name == "first"


def test_an_existing_name_is_refused_and_left_alone(tmp_path):
    run = make_run(tmp_path, "mine")
    finding = finding_of(create_run_directory, tmp_path, "mine", "digits")
    assert finding.slug == "run-exists"
    assert str(run.path) in finding.what
    assert "--resume" in finding.fix
    assert run.plan_file.read_text() == "{}"


def test_a_run_named_latest_does_not_crash(tmp_path):
    # `latest` is the link to the newest run.
    try:
        run = create_run_directory(tmp_path, "latest", "digits")
    except UserError as error:
        assert "latest" in error.findings[0].what
    else:
        assert run.path.is_dir()


@pytest.mark.parametrize(
    ("recipe", "stem"), [("digits", "digits-"), ("/a/b/my_recipe.py:Mine", "my_recipe-")]
)
def test_a_run_without_a_name_is_named_after_its_recipe(tmp_path, recipe, stem):
    assert create_run_directory(tmp_path, None, recipe).name.startswith(stem)


def test_two_unnamed_runs_within_a_second_are_two_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(directory.time, "strftime", lambda _: "20260101-000000")
    runs = {create_run_directory(tmp_path, None, "digits").path for _ in range(3)}
    assert len(runs) == 3


def test_every_plan_revision_stays(tmp_path):
    run = create_run_directory(tmp_path, "run", "digits")
    for revision in (0, 1):
        run.write_plan({"revision": revision})
    assert json.loads((run.path / "plan-0.json").read_text()) == {"revision": 0}
    assert json.loads((run.path / "plan-1.json").read_text()) == {"revision": 1}
    assert json.loads(run.plan_file.read_text()) == {"revision": 1}


def test_a_run_is_found_by_path_by_name_and_as_the_newest(tmp_path, monkeypatch):
    output = tmp_path / "runs"
    first, second = make_run(output, "first"), make_run(output, "second")
    assert find_run(str(first.path), output) == first
    assert find_run("first", output) == first
    assert find_run(None, output) == second
    monkeypatch.chdir(tmp_path)
    assert find_run("runs/first", Path("runs")) == first


def test_a_run_that_is_not_there_names_those_that_are(tmp_path):
    make_run(tmp_path, "first")
    make_run(tmp_path, "second")
    finding = finding_of(find_run, "third", tmp_path)
    assert finding.slug == "no-run"
    assert "third" in finding.what
    assert "first, second" in finding.why
    assert "latest" not in finding.why
    assert finding.fix == f"--resume {tmp_path / 'second'}"


def test_without_any_run_the_fix_is_to_start_one(tmp_path):
    finding = finding_of(find_run, None, tmp_path / "runs")
    assert "none" in finding.why
    assert "phalanx train" in finding.fix


def test_a_second_holder_in_another_process_is_refused(tmp_path):
    run = make_run(tmp_path, "run")
    code = (
        "import sys; from pathlib import Path\n"
        "from phalanx.run.directory import RunDirectory\nfrom phalanx.run.lock import lock_run\n"
        "with lock_run(RunDirectory(Path(sys.argv[1]))):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(run.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError) as caught, lock_run(run):
            pass
        (finding,) = caught.value.findings
        assert finding.slug == "run-busy"
        assert str(holder.pid) in finding.why
        holder.kill()
        holder.communicate()
    with lock_run(run):  # the lock of a killed process is gone with it
        assert read_holder(run).pid == os.getpid()


def test_a_lock_is_free_after_its_holder(tmp_path):
    run = make_run(tmp_path, "run")
    for _ in range(2):
        with lock_run(run):
            pass


def test_a_number_that_was_given_to_another_process_gets_no_signal(tmp_path):
    child = subprocess.Popen(["sleep", "60"])
    try:
        mine = this_process()
        other = Holder(child.pid, mine.host, mine.born)
        assert mine.is_alive() and not other.is_alive()
        assert not other.send(signal.SIGKILL)
        assert not Holder(child.pid, "another-host", mine.born).send(signal.SIGKILL)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_whether_a_run_is_held(tmp_path):
    run = make_run(tmp_path, "run")
    assert not is_held(run) and read_holder(run) is None
    with lock_run(run):
        assert is_held(run) and read_holder(run).is_alive()
    assert not is_held(run)


def make_script_run(output, name):
    run = create_run_directory(output, name, "train.py:")
    command = ["python", "-u", "train.py", "--epochs", "3"]
    run.launch_file.write_text(json.dumps({"command": command}))
    return run


def test_the_newest_run_to_resume_is_none_of_a_script(tmp_path):
    make_run(tmp_path, "older")
    newest = make_run(tmp_path, "newest")
    os.utime(tmp_path / "older" / "plan.json", (1, 1))
    script = make_script_run(tmp_path, "script")
    assert find_run(None, tmp_path) == newest
    assert find_run(None, tmp_path, with_scripts=True) == script
    finding = finding_of(find_run, "script", tmp_path)
    assert finding.slug == "run-of-a-script"
    assert "phalanx launch train.py --epochs 3" in finding.fix
    alone = tmp_path / "alone"
    make_script_run(alone, "script")
    assert finding_of(find_run, None, alone).slug == "run-of-a-script"


def test_paths_of_a_run_lie_inside_it(tmp_path):
    run = RunDirectory(tmp_path)
    paths = [run.job_file, run.machine_file, run.plan_file, run.source_file, run.results_file]
    paths += [run.events, run.logs, run.checkpoints, run.tensorboard, run.log_file(3)]
    assert len(set(paths)) == len(paths)
    assert all(path.is_relative_to(tmp_path) for path in paths)
