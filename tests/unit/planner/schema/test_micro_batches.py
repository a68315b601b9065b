"""The deal of samples to slots and of slots to ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.planner.schema.micro_batches import BatchPlan, Slot, deal, split_evenly

GUIDE_STEPS = [(1, 7375), (2, 3688), (4, 1844), (8, 922)]

plans = st.builds(
    BatchPlan,
    num_samples=st.integers(1, 200),
    global_batch_size=st.integers(1, 60),
    micro_batch_size=st.integers(1, 20),
)


@given(st.integers(0, 1000), st.integers(1, 500), st.integers(1, 60))
def test_slots_cover_a_step_exactly_once(offset, size, limit):
    slots = split_evenly(offset, size, limit)
    assert [i for s in slots for i in range(s.start, s.stop)] == list(range(offset, offset + size))
    assert [slot.index for slot in slots] == list(range(len(slots)))


@given(st.integers(1, 500), st.integers(1, 60))
def test_slots_keep_to_the_limit_and_within_one_of_each_other(size, limit):
    sizes = [slot.stop - slot.start for slot in split_evenly(0, size, limit)]
    assert 1 <= min(sizes) <= max(sizes) <= limit
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == -(-size // limit)


@given(st.integers(0, 300), st.integers(1, 20))
def test_a_deal_covers_all_in_order_with_counts_within_one(count, ranks):
    parts = [deal(count, rank, ranks) for rank in range(ranks)]
    assert [i for first, last in parts for i in range(first, last)] == list(range(count))
    sizes = [last - first for first, last in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(plans, st.integers(1, 9), st.integers(0, 3))
def test_an_epoch_visits_every_sample_once(plan, ranks, epoch):
    first = epoch * plan.steps_per_epoch
    seen = []
    for step in range(first, first + plan.steps_per_epoch):
        shares = [plan.share_of(step, rank, ranks) for rank in range(ranks)]
        assert {share.epoch for share in shares} == {epoch}
        assert sum(len(share.slots) for share in shares) == shares[0].num_slots
        seen += [i for share in shares for s in share.slots for i in range(s.start, s.stop)]
    assert seen == list(range(plan.num_samples))


@given(plans, st.integers(1, 9), st.integers(0, 400))
def test_the_samples_of_a_step_do_not_depend_on_the_ranks(plan, ranks, step):
    dealt = [slot for rank in range(ranks) for slot in plan.share_of(step, rank, ranks).slots]
    assert dealt == plan.slots_of(step)
    assert plan.share_of(step, 0, 1).slots == tuple(dealt)


@given(plans, st.integers(0, 400))
def test_consumed_counts_the_samples_of_every_step_so_far(plan, steps):
    sizes = [slot.stop - slot.start for step in range(steps) for slot in plan.slots_of(step)]
    assert plan.consumed_after(steps) == sum(sizes)
    if steps:
        assert plan.share_of(steps - 1, 0, 2).consumed == sum(sizes)


@given(plans, st.integers(0, 400))
def test_epoch_is_consumed_over_samples(plan, steps):
    assert plan.epoch_of(steps) == pytest.approx(plan.consumed_after(steps) / plan.num_samples)


@pytest.mark.parametrize(("ranks", "steps"), GUIDE_STEPS)
def test_steps_of_the_guide_are_rounded_up(ranks, steps):
    plan = BatchPlan(29_500, 4 * ranks, 4)
    assert plan.steps_per_epoch == steps
    sizes = [
        slot.stop - slot.start
        for step in range(steps)
        for rank in range(ranks)
        for slot in plan.share_of(step, rank, ranks).slots
    ]
    assert sum(sizes) == 29_500
    assert max(sizes) == 4


def test_seven_samples_on_two_ranks():
    plan = BatchPlan(7, 4, 2)
    assert plan.steps_per_epoch == 2
    assert plan.share_of(0, 0, 2).slots == (Slot(0, 0, 2),)
    assert plan.share_of(0, 1, 2).slots == (Slot(1, 2, 4),)
    assert plan.share_of(1, 0, 2).slots == (Slot(0, 4, 5),)
    assert plan.share_of(1, 1, 2).slots == (Slot(1, 5, 7),)
    assert plan.share_of(1, 1, 2).consumed == 7


def test_a_rank_may_get_nothing():
    plan = BatchPlan(10, 10, 5)
    assert [len(plan.share_of(0, rank, 4).slots) for rank in range(4)] == [1, 1, 0, 0]


def test_a_batch_larger_than_the_data_is_one_step_of_all_of_it():
    plan = BatchPlan(7, 64, 32)
    assert plan.steps_per_epoch == 1
    assert plan.slots_of(3) == [Slot(0, 0, 7)]
    assert plan.consumed_after(3) == 21
