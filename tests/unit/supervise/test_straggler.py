"""A rank that is slower than the others is named once, with factor and part; others are not."""

from phalanx.run.heartbeat import Beat, Part, Phase
from phalanx.supervise.straggler import StragglerWatch
from tests.fixtures.plans import plan_with


def plan(ranks=4, **changes):
    sizes = {"num_samples": 800, "global_batch_size": 8 * ranks, "micro_batch_size": 8}
    return plan_with(**{"ranks": ranks, **sizes, **changes})


def feed(watch, seconds_of, *, windows, steps=50, phase=Phase.STEP):
    """Look once per window of 6 s; every rank does the same steps."""
    said = []
    for number in range(windows + 1):
        done = number * steps
        beats = {
            rank: Beat(
                rank,
                0.0,
                phase,
                Part.FORWARD,
                done,
                0,
                tuple(done * own.get(part, 0.0) for part in Part),
            )
            for rank, own in enumerate(seconds_of)
        }
        said += watch.look(beats, 6.0 * number)
    return said


def usual(**changes):
    parts = {Part.DATA: 0.01, Part.FORWARD: 0.03, Part.UPDATE: 0.01, Part.BACKWARD: 0.05}
    return parts | {Part[name]: value for name, value in changes.items()}


def test_it_is_said_once_with_factor_and_part():
    ranks = [usual(), usual(), usual(FORWARD=0.09), usual()]
    watch = StragglerWatch(plan())
    said = feed(watch, ranks, windows=2)
    assert not said, "two windows may be chance"
    said = feed(StragglerWatch(plan()), ranks, windows=20)
    assert [finding.slug for finding in said] == ["straggler"]
    assert said[0].what.startswith("rank 2 takes 3.0 times as long as the others in the forward")
    assert "90 ms per step, the middle one of the others 30 ms" in said[0].why


def test_waiting_for_data_is_named_as_such():
    said = feed(StragglerWatch(plan()), [usual(), usual(DATA=0.2)] + [usual()] * 2, windows=5)
    assert "rank 1 takes 20.0 times as long as the others in fetching data" in said[0].what


def test_what_may_be_waiting_for_others_is_not_compared():
    slow_backward = [usual(), usual(BACKWARD=0.5), usual(), usual()]
    assert not feed(StragglerWatch(plan()), slow_backward, windows=5)
    slow_forward = [usual(), usual(FORWARD=0.5), usual(), usual()]
    for changes in ({"strategy": "fsdp"}, {"sync_batchnorm": True}, {"device": "cuda"}):
        assert not feed(StragglerWatch(plan(**changes)), slow_forward, windows=5)


def test_little_is_not_worth_a_word_and_more_work_is_no_slowness():
    small = [usual(), usual(UPDATE=0.025), usual(), usual()]  # 15 ms of a step of 120 ms
    assert not feed(StragglerWatch(plan()), small, windows=5)
    uneven = plan(ranks=3, global_batch_size=32)  # 4 slots: 2, 1, 1
    shares = [len(uneven.micro_batches.share_of(0, rank, 3).slots) for rank in range(3)]
    assert sorted(shares) == [1, 1, 2]
    ranks = [usual(FORWARD=0.06 if share == 2 else 0.03) for share in shares]
    assert not feed(StragglerWatch(uneven), ranks, windows=5)


def test_nothing_is_said_before_the_first_step():
    ranks = [usual(), usual(), usual(FORWARD=0.09), usual()]
    assert not feed(StragglerWatch(plan()), ranks, windows=5, phase=Phase.COMPILE)
