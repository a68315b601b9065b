"""Who failed first, and why: of several ranks, of several attempts, with and without a word."""

import pytest

from phalanx.diagnose.attempt_end import UNKNOWN
from phalanx.diagnose.death import explain_end, find_death
from phalanx.diagnose.scene import Scene
from phalanx.errors import Finding
from tests.fixtures.recorded import RecordedWriter
from tests.unit.diagnose.run_folders import died, failed_rank, folder, traceback

RESET = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Read error "
    "[127.0.0.1]:4: Connection reset by peer."
)
MISSING = "ModuleNotFoundError: No module named 'timm'"


def death_of(run, attempt=0):
    found = find_death(Scene(run), attempt)
    assert found is not None
    return found


def test_ranks_that_only_lost_their_peer_are_not_the_cause(tmp_path):
    logs = {0: traceback(RESET), 1: traceback(MISSING), 2: traceback(RESET)}
    death = death_of(died(tmp_path, logs, {0: 1, 2: 1, 1: 1}))
    assert (death.rank, death.cause) == (1, "module-missing")
    assert [peer.split(" (")[0] for peer in death.peers] == [
        "rank 0: peer-lost",
        "rank 2: peer-lost",
    ]
    assert [str(line) for line in death.evidence] == ["logs/rank-1.log:5", "logs/rank-1.log:3"]


def test_of_two_causes_the_first_in_time_wins_over_the_lower_rank(tmp_path):
    run = died(tmp_path, {}, {0: 1, 1: 1}, is_script=False)
    failed_rank(run, 1, MISSING, phase="evaluate", step=40)
    failed_rank(run, 0, "KeyError: 'late'")
    death = death_of(run)
    assert (death.rank, death.cause, death.phase, death.step) == (
        1,
        "module-missing",
        "evaluate",
        40,
    )
    assert death.place == "rank 1, in evaluate after 40 steps"


def test_a_killed_rank_is_the_cause_and_not_those_that_noticed(tmp_path):
    run = died(tmp_path, {1: ""}, {1: -9, 0: 1}, is_script=False)
    failed_rank(run, 0, RESET)
    death = death_of(run)
    assert (death.rank, death.cause) == (1, "killed")
    assert "no kill for want of memory" in death.words


def test_a_peer_that_was_ended_is_not_the_cause(tmp_path):
    run = died(tmp_path, {0: "", 1: traceback("KeyError: 'image'")}, {1: 1, 0: -15})
    assert death_of(run).rank == 1


def test_only_the_silent_rank_is_left_when_all_others_timed_out(tmp_path):
    text = "RuntimeError: Timed out waiting 4000ms for recv operation to complete"
    run = died(tmp_path, {0: traceback(text), 1: "", 2: traceback(text)}, {0: 1, 2: 1})
    death = death_of(run)
    assert death.cause == "collective-timeout"
    assert "waited for rank 1" in death.words


def test_of_ranks_that_all_timed_out_the_one_that_is_behind_is_named(tmp_path):
    said = (
        "Exception (either an error or timeout) detected by watchdog at work: {}, last enqueued "
        "NCCL work: {}, last completed NCCL work: 1579."
    )
    logs = {0: said.format(1580, 1582), 1: said.format(1580, 1580), 2: said.format(1580, 1582)}
    death = death_of(died(tmp_path, logs, {0: -6, 1: -6, 2: -6}))
    assert death.cause == "collective-timeout"
    assert "waited for rank 1" in death.words


@pytest.mark.parametrize("world", [1, 2])
def test_a_connection_of_the_scripts_own_is_no_rank(world, tmp_path):
    text = "ConnectionResetError: [Errno 104] Connection reset by peer"
    death = death_of(died(tmp_path, {0: traceback(text)}, world=world))
    assert death.cause == "exception"


def test_alone_nobody_else_is_gone(tmp_path):
    assert death_of(died(tmp_path, {0: traceback(RESET)}, world=1)).cause == "exception"


def test_an_exception_that_was_caught_before_is_not_the_cause(tmp_path):
    caught = traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB.")
    log = f"{caught}\nsmaller batch: going on\nstep 2 loss 1\n{traceback(MISSING)}"
    assert death_of(died(tmp_path, {0: log})).cause == "module-missing"
    (tmp_path / "shared").mkdir()
    shared = traceback("RuntimeError: unable to write to file </torch_1>: No space left (28)")
    log = f"{shared}\ngoing on without\n{traceback(MISSING)}"
    assert death_of(died(tmp_path / "shared", {0: log})).cause == "module-missing"
    (tmp_path / "killed").mkdir()
    killed = died(tmp_path / "killed", {0: caught}, {0: -9})
    assert death_of(killed).cause == "killed"


def test_the_kernel_ended_it_when_it_counted_a_kill(tmp_path):
    run = folder(tmp_path)
    events = RecordedWriter(run.events, "supervisor")
    events.write("attempt", ranks=1)
    events.write("death", rank=0, exit_code=-9, was_ended=False, oom_kills=2)
    events.close()
    death = death_of(run)
    assert death.cause == "host-out-of-memory-kill"
    assert "counted 2" in death.words
    assert death.evidence[0].file == "events/supervisor.jsonl"


def test_both_calls_of_a_mismatch_are_shown(tmp_path):
    fingerprint = "CollectiveFingerPrint(SequenceNumber=1, OpType={}, TensorShape=[4])"
    text = (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running "
        f"collective: {fingerprint.format('ALLREDUCE')}, but Rank 1 is running collective: "
        f"{fingerprint.format('BARRIER')}"
    )
    one = traceback(text)
    other = traceback(text).replace("line 7, in main", "line 11, in other")
    death = death_of(died(tmp_path, {0: one, 1: other}, {0: 1, 1: -15}))
    assert "rank 0 was in ALLREDUCE of [4], rank 1 in BARRIER" in death.words
    shown = " ".join(line.text for line in death.evidence)
    assert "line 7, in main" in shown and "line 11, in other" in shown


def test_the_sample_is_named(tmp_path):
    log = traceback("ValueError: no boxes") + "\nphalanx: while fetching sample 17"
    death = death_of(died(tmp_path, {0: log}))
    assert death.cause == "data-error"
    assert death.words.endswith("ValueError: no boxes; sample 17")


def test_each_attempt_has_its_own_death(tmp_path):
    run = died(tmp_path, {0: traceback(MISSING)}, status=None)
    died(tmp_path, {0: traceback("KeyError: 'image'")}, attempt=1)
    assert death_of(run, 0).cause == "module-missing"
    assert death_of(run, 1).cause == "exception"


def test_lines_are_counted_from_the_beginning_of_a_long_log(tmp_path):
    filler = "\n".join("x" * 99 for _ in range(30_000))  # 3 MB, of which 2 are read
    death = death_of(died(tmp_path, {0: f"{filler}\n{traceback(MISSING)}"}))
    assert death.evidence[0].line == 30_000 + 5


def test_a_fix_has_the_numbers_of_the_plan(tmp_path):
    plan = {"micro_batch_size": 8, "workers": 6, "lr": 0.01}
    command = ("/env/bin/phalanx", "train", "job.yaml")
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    run = died(tmp_path, {}, {0: 1}, is_script=False, plan=plan, command=command)
    failed_rank(run, 0, text)
    assert "phalanx train job.yaml micro_batch_size=4" in death_of(run).fix
    (run.checkpoints / "latest").mkdir()
    assert "phalanx train --resume" in death_of(run).fix


@pytest.mark.parametrize("slug", ["rank-crashed", "script-failed"])
def test_a_cause_takes_the_place_of_what_only_says_how(tmp_path, slug):
    run = died(tmp_path, {0: traceback(MISSING)})
    plain = Finding(slug=slug, what="rank 0 failed", why="there", fix="so")
    loop = Finding(slug="crash-loop", what="twice", why="so", fix="so")
    found = explain_end(Scene(run, is_brief=True), 0, [plain, loop])
    assert [finding.slug for finding in found] == ["module-missing", "crash-loop"]
    assert "logs/rank-0.log:5: ModuleNotFoundError" in found[0].why
    assert "pip install timm" in found[0].fix


def test_what_knows_more_or_nothing_better_is_known_stays(tmp_path):
    run = died(tmp_path, {0: traceback(MISSING)})
    known = Finding(slug="does-not-fit", what="too large", why="so", fix="so")
    assert explain_end(Scene(run), 0, [known]) == [known]
    assert explain_end(Scene(run), 0, []) == []
    (tmp_path / "other").mkdir()
    other = died(tmp_path / "other", {0: traceback("KeyError: 'image'")})
    plain = Finding(slug="rank-crashed", what="rank 0 failed: KeyError", why="a.py:3", fix="so")
    assert explain_end(Scene(other), 0, [plain]) == [plain], "an exception speaks for itself"


def test_a_rank_that_said_what_is_wrong_is_believed(tmp_path):
    run = died(tmp_path, {}, {0: 1}, is_script=False)
    failed_rank(run, 0, "no such column", slug="weights-changed")
    death = death_of(run)
    assert (death.cause, death.grade) == ("weights-changed", "finding")


def test_a_damaged_run_directory_is_read_as_far_as_it_goes(tmp_path):
    run = died(tmp_path, {0: "bye"}, is_script=False)
    run.plan_file.write_text("{")
    run.job_file.write_text(": : :")
    (run.events / "rank-0.jsonl").write_bytes(b'{"v":1,"t":1.0,"kind":"sta')
    run.log_file(0).write_bytes(b"\xff\xfe\x00 half a \rline")
    assert death_of(run).cause in (UNKNOWN, "rank-left")


def hung(run, **changes):
    """What the supervisor writes when a group hangs."""
    line, file = "recipe.py:83 in loss", "/elsewhere/logs/hang-0.txt"
    figures = {"rank": 1, "step": 7, "silent_s": 61.0, "limit_s": 60.0, "place": "step 8"}
    events = RecordedWriter(run.events, "supervisor")
    events.write("hang", **{**figures, "phase": "step", "line": line, "file": file, **changes})
    events.close()
    (run.logs / "hang-0.txt").write_text(
        "rank 0: backward of step 8, silent for 61.0 s\n  state of its process: S\n\n"
        'rank 1: forward of step 8, silent for 61.2 s\n  state of its process: R\n\n  File "a"\n'
    )


def test_a_hang_is_told_from_what_was_written_down_and_not_by_how_we_ended_it(tmp_path):
    run = died(tmp_path, {0: "", 1: ""}, {0: -9, 1: -9}, is_script=False)
    hung(run)
    death = death_of(run)
    assert (death.cause, death.rank, death.phase, death.step) == ("rank-hung", 1, "step", 7)
    assert "nothing moved for 1 min 1 s" in death.words
    assert "recipe.py:83 in loss" in death.words
    assert str(death.evidence[0]) == "logs/hang-0.txt:4"
    assert "logs/hang-0.txt" in death.fix and "/elsewhere" not in death.fix


def test_where_python_was_in_a_crash_of_native_code(tmp_path):
    log = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call "
        'first):\n  File "/env/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
        '  File "/home/u/recipe.py", line 12 in loss\n'
    )
    death = death_of(died(tmp_path, {0: log}, {0: -11}))
    assert death.cause == "native-crash"
    assert "it was at /home/u/recipe.py:12 in loss" in death.words
    assert 'File "/home/u/recipe.py", line 12 in loss' in death.evidence[0].text
