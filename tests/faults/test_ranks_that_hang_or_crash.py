"""One rank of four hangs or crashes in every known way: it is named, with its line, all start again
from the last checkpoint, and the run ends with the weights of the unbroken one."""

from pathlib import Path

import pytest

from phalanx.errors import ExitCode
from tests.faults.trial import HURT, done_at, findings, report, said, write_job
from tests.ranks.command import latest, phalanx

RECIPE = Path(HURT.rpartition(":")[0])
_AFTER_S = 20  # on a busy machine a rank that computes may be silent for seconds
_WHAT = {
    "stop": "is stopped",
    "gil": "in hold_interpreter",
    "loop": "in loop",
    "threads": "in loop",
    "deadlock": "in lock_twice",
    "barrier": "in wait_alone",
    "segv": "SIGSEGV",
    "abort": "SIGABRT",
}
_FAULTS = {
    "stop": "SIGSTOP",
    "gil": "a C call holds the interpreter",
    "loop": "an endless loop",
    "threads": "an endless loop beside live threads",
    "deadlock": "a lock taken twice",
    "barrier": "a barrier that no other rank enters",
    "segv": "SIGSEGV",
    "abort": "SIGABRT",
    "exit": "sys.exit(3)",
    "exception": "an exception in the recipe",
}
_HANGS = ("stop", "gil", "loop", "threads", "deadlock", "barrier")


@pytest.mark.parametrize(
    "deeds",
    [
        "stop gil loop segv",
        pytest.param("threads deadlock barrier abort", marks=pytest.mark.full),
    ],
)
def test_each_is_named_and_survived(tmp_path, unbroken, deeds):
    # Other limits stay long: an evaluation on a loaded machine is no hang.
    write_job(tmp_path, hurt=f"'{deeds}'", more=f"hang: {{after_s: {_AFTER_S}}}")
    code, _, err = phalanx("train", "job.yaml", cwd=tmp_path, timeout_s=300)
    assert code == 0, err
    run = latest(tmp_path)
    names = deeds.split()
    assert len(said(run, "attempt")) == len(names) + 1, findings(run)
    hangs = {event.attempt: event for event in said(run, "hang")}
    assert set(hangs) == {n for n, name in enumerate(names) if name in _HANGS}
    restarts = [finding for slug, finding in findings(run) if slug == "restarted"]
    for attempt, (name, restart) in enumerate(zip(names, restarts, strict=True)):
        said_of_it = f"{restart['what']} {restart['why']}"
        assert "rank 2" in restart["what"], said_of_it
        assert _WHAT[name] in said_of_it
        if name != "stop":
            assert f"{RECIPE}:" in said_of_it, "the line of the recipe"
        if attempt in hangs:
            assert hangs[attempt].data["rank"] == 2
            assert hangs[attempt].data["part"] == "forward"
            written = Path(hangs[attempt].data["file"]).read_text()
            assert all(f"rank {rank}:" in written for rank in range(4))
            assert "gloo:all_reduce" in written, "the collectives of those that wait"
        note = f"hang.after_s = {_AFTER_S}" if attempt in hangs else ""
        at_s = done_at(tmp_path, attempt)
        report(_FAULTS[name], run, attempt=attempt, at_s=at_s, unbroken=unbroken, note=note)


@pytest.mark.parametrize(
    ("deed", "slug", "words"),
    [
        ("exit", "rank-exited", "rank 2 left with exit code 3"),
        ("exception", "rank-crashed", "rank 2 failed: KeyError"),
    ],
)
@pytest.mark.full
def test_an_error_in_the_program_ends_the_run_and_is_named(tmp_path, deed, slug, words):
    write_job(tmp_path, hurt=deed)
    code, _, err = phalanx("train", "job.yaml", cwd=tmp_path)
    assert code == ExitCode.FAILED
    assert f"error[{slug}]: {words}" in err
    run = latest(tmp_path)
    assert len(said(run, "attempt")) == 1, "it would do the same again"
    report(_FAULTS[deed], run, attempt=0, at_s=done_at(tmp_path), note="ends the run")


@pytest.mark.full
def test_a_crash_loop_without_progress_ends_with_its_own_exit_code(tmp_path):
    # After 5 forwards, always: the first checkpoint would be that of step 20.
    write_job(tmp_path, hurt="'kill kill kill kill'", hurt_after=5, more="max_restarts: 3")
    code, _, err = phalanx("train", "job.yaml", cwd=tmp_path)
    assert code == ExitCode.CRASH_LOOP, err
    assert "error[crash-loop]: the ranks died 4 times without a newer checkpoint" in err
    assert "error[rank-killed]: rank 2 was killed by SIGKILL" in err
    assert len(said(latest(tmp_path), "attempt")) == 4
