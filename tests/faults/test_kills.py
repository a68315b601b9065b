"""Processes of a run are killed: ranks, loader processes, the command itself. Nothing is lost,
nothing is left behind, and the run ends with the weights of the unbroken one."""

import random
import signal
import time
from collections import Counter

import psutil
import pytest

from phalanx.engine.data.order import ids_at
from phalanx.errors import ExitCode
from phalanx.planner.schema.micro_batches import BatchPlan, deal
from tests.faults.report import record
from tests.faults.trial import findings, report, said, wait_for_attempt, write_job
from tests.ranks.command import (
    finish,
    is_alive,
    kill,
    latest,
    phalanx,
    rank_pids,
    start,
    wait_for_step,
)
from tests.ranks.runs import assert_same_bits, losses

_STEPS = 200
_SETTLING = 3  # passes before the first step, thrown away, on several ranks


@pytest.mark.full
@pytest.mark.parametrize(
    ("kills", "seed"),
    [(2, 0), *((1, seed) for seed in range(1, 101))],
)
def test_ranks_killed_at_random_cost_no_bit(tmp_path, unbroken, kills, seed):
    chance = random.Random(seed)
    write_job(tmp_path)
    process = start("train", "job.yaml", cwd=tmp_path)
    faults = []
    for attempt, least in enumerate(sorted(chance.sample(range(5, 160), kills))):
        run = wait_for_step(process, tmp_path, least)
        wait_for_attempt(run, attempt)
        time.sleep(chance.uniform(0, 0.2))
        pids = rank_pids(run)
        rank = chance.randrange(len(pids))
        faults.append((rank, time.time()))
        kill(pids[rank])
    code, _, err = finish(process)
    assert code == 0, err
    restarts = [finding["what"] for slug, finding in findings(run) if slug == "restarted"]
    assert len(restarts) == kills, err
    for attempt, (rank, at_s) in enumerate(faults):
        assert f"rank {rank} was killed by SIGKILL" in restarts[attempt]
        report("kill -9 of a rank", run, at_s=at_s, attempt=attempt, unbroken=unbroken)
    assert losses(run) == losses(unbroken)
    assert_same_bits(run, unbroken)


@pytest.mark.full
def test_digits_on_four_ranks_run_again_within_seconds(tmp_path):
    words = ["--cpu", "4", "--epochs", "40", "checkpoint.every=20 steps", "logging.every=5"]
    process = start("train", "digits", *words, cwd=tmp_path)
    run = wait_for_step(process, tmp_path, 60)
    at_s = time.time()
    kill(rank_pids(run)[3])
    wait_for_attempt(run, 1)
    report("kill -9 of a rank of digits", run, at_s=at_s)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == ExitCode.STOPPED
    assert any("rank 3 was killed" in finding["what"] for _, finding in findings(run))


@pytest.mark.full
def test_a_killed_loader_process_restarts_the_ranks(tmp_path, unbroken):
    write_job(tmp_path, more="loader: {workers: 1}")
    process = start("train", "job.yaml", cwd=tmp_path)
    run = wait_for_step(process, tmp_path, 30)
    loaders = psutil.Process(rank_pids(run)[1]).children()
    assert loaders, "no loader process"
    at_s = time.time()
    for loader in loaders:
        loader.kill()
    code, _, err = finish(process)
    assert code == 0, err
    restart = next(finding for slug, finding in findings(run) if slug == "restarted")
    assert "rank 1 lost a loader process" in restart["what"], restart
    report("kill -9 of a loader process", run, at_s=at_s, unbroken=unbroken)
    assert_same_bits(run, unbroken)


@pytest.mark.full
def test_a_killed_command_leaves_nothing_and_is_resumed(tmp_path, unbroken):
    write_job(tmp_path)
    process = start("train", "job.yaml", cwd=tmp_path)
    run = wait_for_step(process, tmp_path, 60)
    family = psutil.Process(process.pid).children(recursive=True)
    at_s = time.time()
    process.kill()
    process.communicate()
    psutil.wait_procs(family, timeout=30)
    assert not [child for child in family if is_alive(child.pid)]
    gone_s = time.time() - at_s
    code, _, err = phalanx("train", "--resume", cwd=tmp_path)
    assert code == 0, err
    assert_same_bits(run, unbroken)
    record("kill -9 of the command", is_equal=True, note=f"no process left after {gone_s:.1f} s")


@pytest.mark.full
def test_a_killed_command_leaves_no_rank_that_hangs(tmp_path):
    write_job(tmp_path, steps=100_000)
    process = start("train", "job.yaml", cwd=tmp_path)
    run = wait_for_step(process, tmp_path, 20)
    family = psutil.Process(process.pid).children(recursive=True)
    kill(rank_pids(run)[1], signal.SIGSTOP)
    process.kill()
    process.communicate()
    psutil.wait_procs(family, timeout=200)
    assert not [child for child in family if is_alive(child.pid)]


@pytest.mark.full
def test_a_second_supervisor_is_refused(tmp_path):
    write_job(tmp_path, steps=100_000)
    process = start("train", "job.yaml", cwd=tmp_path)
    wait_for_step(process, tmp_path, 5)
    code, _, err = phalanx("train", "--resume", cwd=tmp_path)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == ExitCode.STOPPED
    assert code == ExitCode.USAGE
    assert "error[run-busy]" in err
    record("a second command on the run", note="refused")


@pytest.mark.full
def test_memory_that_runs_out_on_one_rank_costs_the_steps_since_the_checkpoint(tmp_path):
    write_job(tmp_path, hurt="memory")
    code, _, err = phalanx("train", "job.yaml", cwd=tmp_path)
    assert code == 0, err
    run = latest(tmp_path)
    (revision,) = said(run, "revision")
    assert revision.data["changes"]["micro_batch_size"] == {"old": 3, "new": 2}
    at_s = float((tmp_path / "done-0").read_text())
    report("out of memory on a rank", run, at_s=at_s, note="goes on with a smaller micro-batch")


@pytest.mark.full
def test_other_numbers_of_ranks_after_each_kill_see_the_same_samples(tmp_path):
    """4, 2, 3 and 1 ranks: one is killed, the run ends, and is resumed on the next number."""
    write_job(tmp_path, more="max_restarts: 0")
    begun, seen = [], []
    for ranks in (4, 2, 3, 1):
        log = tmp_path / f"log-{ranks}"
        log.mkdir()
        env = {"PARITY_LOG": str(log)}
        words = ["job.yaml"] if not begun else ["--resume", f"devices.cpu={ranks}"]
        process = start("train", *words, cwd=tmp_path, env=env)
        if ranks > 1:
            run = wait_for_step(process, tmp_path, 50 * (len(begun) + 1))
            kill(rank_pids(run)[ranks - 1])
        code, _, err = finish(process)
        assert code == (ExitCode.FAILED if ranks > 1 else ExitCode.OK), err
        starts = said(latest(tmp_path), "start")
        begun.append(starts[-1].data["step"])
        seen.append(_steps_seen(log, ranks, begun[-1]))
    ends = [*begun[1:], _STEPS]
    counted = {}
    for first, end, steps in zip(begun, ends, seen, strict=True):
        assert set(range(first, end)) <= set(steps), "a step that is counted was not done"
        counted |= {step: steps[step] for step in range(first, end)}
    assert sorted(counted) == list(range(_STEPS)), "a step was lost, or is counted twice"
    for step, ids in counted.items():
        first = step % 5 * 10
        assert Counter(ids) == Counter(ids_at(3, step // 5, first, first + 10, 50).tolist())
    record("4 -> 2 -> 3 -> 1 ranks", is_equal=True, note="the same samples in every step")


def _steps_seen(log, ranks, first):
    """The samples of each step that all ranks have done, by what their forwards wrote down."""
    plan = BatchPlan(50, 10, 3)
    lines = [(log / f"rank-{rank}").read_text().splitlines() for rank in range(ranks)]
    forwards = [iter(own[_SETTLING if ranks > 1 else 0 :]) for own in lines]
    steps = {}
    for step in range(first, _STEPS):
        ids = []
        for rank in range(ranks):
            begin, end = deal(len(plan.slots_of(step)), rank, ranks)
            for _ in range(end - begin):
                line = next(forwards[rank], None)
                if line is None:
                    return steps
                ids += [int(word) for word in line.split()]
        steps[step] = ids
    return steps
