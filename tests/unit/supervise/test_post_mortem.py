"""What a run says of ranks that died: written down, explained, and never in the way of the end."""

import os
import time
from types import SimpleNamespace

import pytest

from phalanx.errors import Finding
from phalanx.run.event_kinds import Death, Usage
from phalanx.run.heartbeat import Phase
from phalanx.run.launching import RankDeath
from phalanx.scripts.death import describe_death
from phalanx.supervise import post_mortem, rank_usage
from phalanx.supervise.post_mortem import PostMortem
from phalanx.supervise.rank_usage import RankUsage, driver_numbers
from tests.fixtures.plans import plan_with
from tests.unit.diagnose.run_folders import TRACEBACK, folder

PLAIN = Finding(slug="script-failed", what="rank 0 left with exit code 1", why="so", fix="so")


def test_deaths_are_written_with_the_kills_since_the_last_look(tmp_path, monkeypatch):
    kills = iter([5, 7, 7, None])
    monkeypatch.setattr(post_mortem, "count_oom_kills", lambda: next(kills))
    examined, written = PostMortem(folder(tmp_path)), []
    examined.examine([RankDeath(1, -9)], 0, [], written.append)
    examined.examine([RankDeath(0, 1)], 1, [], written.append)
    examined.examine([RankDeath(0, -9)], 2, [], written.append)
    assert written == [
        Death(rank=1, exit_code=-9, was_ended=False, oom_kills=2),
        Death(rank=0, exit_code=1, was_ended=False, oom_kills=0),
        Death(rank=0, exit_code=-9, was_ended=False, oom_kills=None),
    ]


def test_where_a_rank_was_is_written_with_its_death(tmp_path):
    beat = SimpleNamespace(phase=Phase.EVALUATE, step=40)
    written = []
    PostMortem(folder(tmp_path)).examine([RankDeath(1, -9)], 0, [], written.append, {1: beat})
    assert (written[0].phase, written[0].step) == ("evaluate", 40)


def test_a_diagnosis_that_fails_is_said_and_the_end_stands(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("half a file")

    monkeypatch.setattr("phalanx.diagnose.death.explain_end", fail)
    run = folder(tmp_path)
    found = PostMortem(run).examine([RankDeath(0, 1)], 0, [PLAIN], lambda event: None)
    assert found[0] == PLAIN
    assert (found[1].slug, found[1].severity) == ("doctor-failed", "note")
    assert "RuntimeError: half a file" in found[1].what


@pytest.mark.parametrize(
    ("lines", "code", "what", "why"),
    [
        (
            [f"[rank1]: {line}" for line in (TRACEBACK + "KeyError: 'x'").split("\n")],
            1,
            "rank 1 left with exit code 1: KeyError: 'x'",
            'its last traceback ends at "/home/u/train.py", line 7, in main',
        ),
        (["bye"], 3, "rank 1 left with exit code 3", "it printed no traceback"),
        ([], -11, "rank 1 was killed by SIGSEGV", "a crash in native code"),
    ],
)
def test_how_a_rank_of_a_script_ended(lines, code, what, why, tmp_path):
    found = describe_death(RankDeath(1, code, lines=tuple(lines)), folder(tmp_path))
    assert (found.what, found.why) == (what, why)


def test_gpu_ranks_are_sampled_once_all_have_started(tmp_path, monkeypatch):
    made = []
    sample = Usage(rank=4, step=None, cpu_percent=1.0, memory_bytes=1, gpu_percent=90)

    class Sampler:
        def __init__(self, pids, gpus, first):
            made.append((pids, gpus, first))

        def look(self):
            return [sample]

        def close(self):
            made.append("closed")

    monkeypatch.setattr(rank_usage, "UsageSampler", Sampler)
    usage = RankUsage(
        driver_numbers(folder(tmp_path), plan_with(device="cuda", gpus=[0, 1])), first=4
    )
    assert usage.look([]) == []
    assert usage.look([100, 101]) == []
    assert made == [([100, 101], [0, 1], 4)]
    assert usage.look([100, 101]) == [sample]
    usage.close()
    assert made[-1] == "closed"


def test_ranks_on_cpu_are_sampled_without_a_driver(tmp_path):
    plan = plan_with(device="cpu", gpus=[])
    usage = RankUsage(driver_numbers(folder(tmp_path), plan), first=1)
    while not (found := usage.look([os.getpid()])):
        time.sleep(0.05)
    usage.close()
    assert found[0].rank == 1
    assert found[0].memory_bytes > 2**20
    assert found[0].gpu_percent is None
