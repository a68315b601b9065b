"""When a group counts as hung, and which of its ranks is to blame."""

from dataclasses import replace

import pytest

from phalanx.job.schema import Hang
from phalanx.run.heartbeat import Beat, Part, Phase
from phalanx.run.launching import Witness
from phalanx.supervise import hang
from phalanx.supervise.culprit import find_culprit
from phalanx.supervise.hang import HangWatch, hang_event, hang_finding

BEAT = Beat(0, 0.0, Phase.STEP, Part.BACKWARD, 100, 0, (0.0,) * len(Part))


def group(*changes, **of_all):
    return {rank: replace(BEAT, rank=rank, **(of_all | own)) for rank, own in enumerate(changes)}


def stacks(*frames):
    """As faulthandler writes them."""
    lines = [f'  File "{file}", line {line} in {name}' for file, line, name in frames]
    lines.append('  File "<frozen runpy>", line 198 in _run_module_as_main')
    side = ['Current thread 0x00 (most recent call first):\n  File "/x/side.py", line 1 in run\n']
    return "\n".join([*side, "Thread 0x01 (most recent call first):", *lines])


WAITS = stacks(("/v/site-packages/torch/autograd/graph.py", 979, "_engine_run_backward"))


def test_a_group_hangs_when_all_of_it_is_silent_beyond_its_limits():
    watch = HangWatch(Hang(after_s=10))
    assert watch.look(group({}, {}, silent_s=9)) is None
    assert watch.look(group({"silent_s": 0.1}, {}, silent_s=11)) is None, "somebody moves"
    found = watch.look(group({}, {"part": Part.FORWARD}, silent_s=11))
    assert found is not None
    assert (found.limit_s, found.limit_reason) == (10, "hang.after_s")


@pytest.mark.parametrize(
    ("where", "limit_s"),
    [
        ({"phase": Phase.COMPILE}, 3600),
        ({"phase": Phase.SAVE}, 1800),
        ({"phase": Phase.EVALUATE}, 1800),
        ({"phase": Phase.START}, 3600),
        ({"part": Part.DATA}, 300),
        ({"step": 2}, 3600),  # of the first steps
        ({"step": 1002, "first_step": 1000}, 3600),  # and after a resume
    ],
)
def test_ranks_that_wait_for_one_in_another_phase_are_excused_for_as_long_as_it_is(where, limit_s):
    watch = HangWatch(Hang())
    assert watch.look(group({}, where, silent_s=120)) is None, "a 120 s compile is no hang"
    assert watch.look(group({}, where, silent_s=limit_s - 1)) is None
    assert watch.look(group({}, where, silent_s=limit_s + 1)) is not None


def test_a_rank_that_is_over_is_not_waited_for():
    over = {"phase": Phase.OVER, "silent_s": 0.0}
    watch = HangWatch(Hang())
    assert watch.look(group({}, over, silent_s=61)) is not None
    assert watch.look(group(over, over)) is None


def taught(watch, seconds, monkeypatch):
    """A watch that has seen steps take so long; the first ones teach nothing."""
    clock = [0.0]
    monkeypatch.setattr(hang.time, "monotonic", lambda: clock[0])
    for step, passed in enumerate([500.0] * 3 + seconds):
        watch.look(group({"step": step}))
        clock[0] += passed
    watch.look(group({"step": 3 + len(seconds)}))
    return watch


def test_the_limit_is_a_minute_or_five_steps_as_they_were(monkeypatch):
    assert HangWatch(Hang()).limit_of(BEAT)[0] == 60
    watch = taught(HangWatch(Hang()), [1.0, 1.0, 1.0, 13.0], monkeypatch)
    assert watch.step_s == 4.0
    assert watch.limit_of(BEAT)[0] == 60
    watch = taught(HangWatch(Hang()), [30.0] * 6, monkeypatch)
    assert watch.limit_of(BEAT) == (150, "5 times a step, which takes 30 s")


def test_a_rank_that_waits_for_its_gpu_has_many_steps_to_wait_for(monkeypatch):
    reading = replace(BEAT, part=Part.READ)
    fresh = HangWatch(Hang(), steps_ahead=10)
    assert fresh.limit_of(reading)[0] == 3600, "nobody knows yet what a step takes there"
    assert fresh.limit_of(BEAT)[0] == 3600
    waited = tuple(3.0 if part is Part.READ else 0.0 for part in Part)
    reading, other = replace(reading, seconds=waited), replace(BEAT, seconds=waited)
    watch = taught(HangWatch(Hang(), steps_ahead=10), [20.0] * 6, monkeypatch)
    assert watch.limit_of(reading)[0] == 1000
    assert watch.limit_of(other)[0] == 100
    assert HangWatch(Hang()).limit_of(replace(BEAT, part=Part.READ))[0] == 60, "on a CPU"


def test_watching_can_be_turned_off():
    assert HangWatch(Hang(after_s=None)).look(group({}, silent_s=10**6)) is None


def witnesses(*texts, **states):
    return {
        rank: Witness(rank, states.get(f"rank{rank}", "S"), text) for rank, text in enumerate(texts)
    }


def test_a_stopped_rank_is_to_blame_wherever_it_is():
    found = find_culprit(group({}, {}, {}), witnesses(WAITS, "", WAITS, rank1="T"))
    assert found.rank == 1
    assert "stopped" in found.because


def test_a_rank_that_is_a_step_behind_is_to_blame():
    found = find_culprit(group({}, {}, {"step": 99}), witnesses(WAITS, WAITS, WAITS))
    assert found.rank == 2
    assert "99 steps, others 100" in found.because


def test_a_rank_outside_of_an_exchange_is_to_blame_and_its_own_line_is_named():
    busy = stacks(
        ("/v/site-packages/torch/_ops.py", 5, "call"),
        ("/home/me/recipe.py", 83, "loss"),
        ("/v/site-packages/torch/nn/modules/module.py", 1, "_call_impl"),
    )
    beats = group({}, {}, {})  # it hangs in a hook of backward, as heartbeats cannot tell
    seen = witnesses(WAITS, busy, WAITS)
    assert find_culprit(beats, seen).rank == 1
    event = hang_event(hang.Hung(0, 61, 60, "the least for a step"), beats, [*seen.values()], "f")
    assert event.line == "/home/me/recipe.py:83 in loss"
    finding = hang_finding(event)
    assert finding.what == "rank 1 hangs in the backward of step 101: nothing moved for 1 min 1 s"
    assert "hang.after_s=600" in finding.fix


def test_without_stacks_the_heartbeats_tell():
    assert find_culprit(group({}, {"part": Part.UPDATE}, {}), {}).rank == 1


def test_a_rank_in_another_exchange_than_most_is_to_blame():
    alone = stacks(
        ("/v/site-packages/torch/distributed/distributed_c10d.py", 1, "barrier"),
        ("/home/me/recipe.py", 9, "loss"),
    )
    found = find_culprit(group({}, {}, {}), witnesses(WAITS, WAITS, alone))
    assert found.rank == 2
    assert "/home/me/recipe.py:9 in loss" in found.because


def test_ranks_that_all_wait_at_the_same_place_have_no_culprit():
    found = find_culprit(group({}, {}), witnesses(WAITS, WAITS))
    assert found.rank is None
    assert "same place" in found.because
