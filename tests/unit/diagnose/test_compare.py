"""Two recordings, one verdict: what counts as a difference, and which one is the first."""

import json
import math
from dataclasses import replace

import pytest

from phalanx.diagnose.compare import TOLERANCE, compare
from phalanx.diagnose.recording import (
    ZERO,
    Fingerprint,
    Recording,
    read_recording,
    recording_file,
    write_line,
)
from tests.unit.diagnose.recordings import (
    change_slots,
    change_start,
    change_step,
    change_tensor,
    make_run,
    moved,
    tensor,
)

NAN = Fingerprint(math.nan, (math.nan,) * 3)


def first(one, many):
    """(kind, step, place) of the first difference."""
    found = compare(one, many).first
    return found and (found.kind, found.step, found.place)


def test_equal_runs_are_the_same_and_counted(one, many):
    compared = compare(one, many)
    assert compared.is_same and compared.first is None
    counts = {name: tally.count for name, tally in compared.tallies.items()}
    assert counts == {
        "samples": 12,
        "batch": 12,
        # two terms, each a sum and a weight, and weight(): 4 slots; the whole step on 2 ranks
        "loss": 3 * (4 * 5 + 2),
        "gradient": 6,
        "weight": 8,
        "buffer": 8,
        "ranks": 22,
    }
    assert all(tally.largest == 0 for tally in compared.tallies.values())


@pytest.mark.parametrize("world", [2, 3, 4])
def test_any_deal_of_the_slots_is_the_same(one, world):
    assert compare(one, make_run(world)).is_same


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (
            lambda run: change_slots(run, lambda s: replace(s, ids=[0, 0, 0]), step=1),
            ("samples", 1, "slot 0"),
        ),
        (
            lambda run: change_slots(run, lambda s: replace(s, batch="other"), ranks=[1]),
            ("batch", 0, "slot 2"),
        ),
        (
            lambda run: change_slots(run, lambda s: replace(s, terms={"fit": (3.5, 3.0)})),
            ("loss", 0, "slot 0, term `fit`"),
        ),
        (
            lambda run: change_slots(run, lambda s: replace(s, weights={"*": 4.0})),
            ("loss", 0, "slot 0, weight() of `*`"),
        ),
        (
            lambda run: change_step(run, 1, 2, weights={"*": 24.0}),
            ("loss", 2, "the whole step, weight() of `*`"),
        ),
        (
            lambda run: change_tensor(run, "gradients", "bias", lambda f: moved(f, 1e-3)),
            ("gradient", 0, "bias"),
        ),
        (
            lambda run: change_tensor(run, "parameters", "bias", lambda f: moved(f, 1e-3), step=2),
            ("weight", 2, "bias"),
        ),
        (
            lambda run: change_tensor(run, "buffers", "count", lambda f: moved(f, 1e-3), step=1),
            ("buffer", 1, "count"),
        ),
        (
            lambda run: change_tensor(run, "parameters", "weight", lambda f: tensor(9), step=-1),
            ("weight", -1, "weight"),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_each_kind_of_difference_is_found(one, many, spoil, expected):
    assert first(one, spoil(many)) == expected


def test_the_first_difference_is_the_cause_and_not_its_effects(one, many):
    # A fault in step 1 spoils all that comes after it; a loss comes before its gradient.
    for step in (1, 2):
        for field in ("gradients", "parameters"):
            many = change_tensor(many, field, "weight", lambda f: moved(f, 1.0), step=step)
        many = change_slots(
            many, lambda s: replace(s, terms={**s.terms, "size": (0.6, 3.0)}), step=step, ranks=[1]
        )
    found = compare(one, many).first
    assert (found.kind, found.step, found.place) == ("loss", 1, "slot 2, term `size`")
    assert (found.one, found.many, found.rank) == (0.5, 0.6, 1)
    assert found.apart == pytest.approx(0.1 / 6.0)  # of the largest term of the step


def test_a_slot_that_nobody_ran_is_a_difference(one, many):
    assert first(one, change_step(many, 1, 0, slots=[])) == ("samples", 0, "slot 2")


@pytest.mark.parametrize("field", ["gradients", "parameters"])
@pytest.mark.parametrize(("share", "is_same"), [(0.5, True), (2.0, False)])
def test_tensors_are_measured_by_the_norm_of_all(one, many, field, share, is_same):
    norm = math.hypot(*(f.norm for f in one.ranks[0].steps[0].__getattribute__(field).values()))
    many = change_tensor(many, field, "bias", lambda f: moved(f, share * TOLERANCE * norm))
    compared = compare(one, many)
    assert compared.is_same == is_same
    kind = field[:-1] if field == "gradients" else "weight"
    assert compared.tallies[kind].largest == pytest.approx(share * TOLERANCE, rel=1e-3)


def test_a_small_buffer_beside_a_large_one_is_measured_by_itself(one, many):
    one, many = (
        change_tensor(r, "buffers", "count", lambda f: tensor(4, 1e9)) for r in (one, many)
    )
    many = change_tensor(many, "buffers", "norm.running_mean", lambda f: moved(f, 1e-6))
    assert first(one, many) == ("buffer", 0, "norm.running_mean")


def test_ranks_are_compared_with_each_other(one, many):
    # Rank 0 equals the run on one rank: only its peer shows that nothing was reduced.
    many = change_tensor(many, "gradients", "bias", lambda f: moved(f, 1e-3), ranks=[1])
    found = compare(one, many).first
    assert (found.kind, found.place, found.ranks) == ("gradient", "bias", (0, 1))


def test_a_norm_alone_can_give_a_difference_away(one, many):
    many = change_tensor(many, "parameters", "weight", lambda f: replace(f, squares=101.0))
    assert first(one, many) == ("weight", 0, "weight")


def test_no_gradient_is_a_gradient_of_zero(one, many):
    one = change_tensor(one, "gradients", "bias", lambda f: None)
    assert compare(one, change_tensor(many, "gradients", "bias", lambda f: ZERO)).is_same
    assert first(one, many) == ("gradient", 0, "bias")


def test_a_parameter_of_one_side_only_is_a_difference(one, many):
    start = {**many.ranks[0].start.parameters, "extra": tensor(5)}
    for rank in range(2):
        many = change_start(many, rank, parameters=start)
    assert first(one, many) == ("weight", -1, "extra")


def test_what_an_optimizer_makes_of_rounding_noise_is_not_judged(one, many):
    # Adam turns a gradient of 1e-17 into a step of full size, on each side in its own direction.
    one, many = (
        change_tensor(
            change_tensor(run, "gradients", "bias", lambda f, seed=seed: tensor(seed, 1e-17)),
            "parameters",
            "bias",
            lambda f, seed=seed: tensor(seed, 0.1),
        )
        for run, seed in ((one, 1), (many, 2))
    )
    compared = compare(one, many)
    assert compared.unjudged == ["bias"]
    assert compared.is_same
    # A mean over what a bias shifts is shifted with it, and by no more.
    shift = one.whole("parameters", 0, "bias").distance(many.whole("parameters", 0, "bias"))
    name = "norm.running_mean"
    assert compare(one, change_tensor(many, "buffers", name, lambda f: moved(f, shift))).is_same
    beyond = change_tensor(many, "buffers", name, lambda f: moved(f, 100 * shift))
    assert first(one, beyond) == ("buffer", 0, name)
    # The ranks must agree on it all the same.
    many = change_tensor(many, "parameters", "bias", lambda f: moved(f, 1.0), ranks=[1])
    assert compare(one, many).first.ranks == (0, 1)


def shard(run, name, *, parts):
    """The run with a parameter held in parts: by rank (label, share of the whole)."""
    for rank, (label, share) in enumerate(parts):

        def cut(f, share=share):
            return Fingerprint(f.squares * share, tuple(p * share for p in f.projections))

        for step in (-1, 0, 1, 2):
            fields = ("parameters",) if step < 0 else ("parameters", "gradients")
            for field in fields:
                run = change_tensor(run, field, name, cut, step=step, ranks=[rank])
        run = change_start(run, rank, parts={name: label})
    return run


def test_shards_add_up_to_the_whole(one, many):
    sharded = shard(many, "weight", parts=[("0:1", 0.25), ("1:4", 0.75)])
    compared = compare(one, sharded)
    assert compared.is_same
    assert compared.tallies["ranks"].count < compare(one, many).tallies["ranks"].count
    wrong = change_tensor(sharded, "gradients", "weight", lambda f: moved(f, 1e-3), ranks=[1])
    assert first(one, wrong) == ("gradient", 0, "weight")


def test_replicas_of_a_shard_count_once_and_must_agree(one):
    halves = [("0:1", 0.5), ("1:2", 0.5), ("0:1", 0.5), ("1:2", 0.5)]
    sharded = shard(make_run(4), "weight", parts=halves)
    assert compare(one, sharded).is_same
    wrong = change_tensor(sharded, "gradients", "weight", lambda f: moved(f, 1e-3), ranks=[3])
    assert compare(one, wrong).first.ranks == (1, 3)


def test_not_a_number_on_one_side_is_a_difference(one, many):
    spoiled = change_tensor(many, "gradients", "bias", lambda f: NAN)
    assert first(one, spoiled) == ("gradient", 0, "bias")
    spoiled = change_slots(many, lambda s: replace(s, terms={"fit": (math.nan, 3.0)}))
    assert first(one, spoiled) == ("loss", 0, "slot 0, term `fit`")


def test_not_a_number_on_both_sides_is_not_the_same(one, many):
    def overflow(slot):
        return replace(slot, terms={**slot.terms, "fit": (math.nan, 3.0)})

    runs = (change_slots(run, overflow, step=1) for run in (one, many))
    compared = compare(
        *(change_tensor(run, "gradients", "bias", lambda f: NAN, step=1) for run in runs)
    )
    assert compared.first is None
    assert compared.not_finite == (1, "fit")
    assert not compared.is_same


def test_a_verdict_is_json(one, many):
    for run in (many, change_step(many, 1, 0, slots=[])):
        json.dumps(compare(one, run).to_json(), allow_nan=False)


def test_a_recording_survives_the_disk(tmp_path, many):
    for rank in many.ranks:
        path = recording_file(tmp_path, rank.start.rank)
        write_line(path, rank.steps[0])  # of an attempt that was started again
        for record in (rank.start, *rank.steps):
            write_line(path, record)
    assert read_recording(tmp_path, 2) == many
    assert isinstance(many, Recording)
