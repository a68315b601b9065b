"""The usual cause of a difference, read from what the recordings say around it."""

import math
from dataclasses import replace

import pytest

from phalanx.diagnose.compare import compare
from phalanx.diagnose.difference_cause import explain, explain_crash
from phalanx.errors import Finding
from tests.unit.diagnose.recordings import (
    change_slots,
    change_start,
    change_step,
    change_tensor,
    moved,
    tensor,
)


def find(one, many):
    finding = explain(compare(one, many), one, many)
    assert finding.severity == "error" and finding.why and finding.fix
    return finding


def with_terms(slot, factor, weight=1.0):
    return replace(slot, terms={n: (s * factor, w * weight) for n, (s, w) in slot.terms.items()})


def test_runs_that_are_the_same_have_no_cause(one, many):
    assert explain(compare(one, many), one, many) is None


def test_samples_asked_for_are_ours(one, many):
    finding = find(one, change_slots(many, lambda s: replace(s, ids=[0, 0, 0])))
    assert finding.slug == "verify-samples"
    assert "[0, 1, 2] on 1 rank and [0, 0, 0] on 2 ranks" in finding.what


def other_sample(slot, part):
    """The slot as if its data set had given sample 0 for each."""
    rows = ["x0"] * 3 if part == "x" else ["y7"] * 3
    return replace(slot, batch="other", samples={**slot.samples, part: rows})


def test_what_belongs_to_another_sample_gives_a_sampler_away(one, many):
    finding = find(one, change_slots(many, lambda s: other_sample(s, "x"), ranks=[1]))
    assert finding.slug == "verify-data-by-rank"
    assert "step 1, slot 2 (rank 1)" in finding.what
    assert "asked for sample 20, it gave the `x` of 0" in finding.why
    assert "slots of rank 0 are equal, slots of rank 1 are not" in finding.why


def test_new_content_in_a_part_of_the_batch_is_randomness(one, many):
    def noise(slot):
        rows = [f"{row} with noise {slot.slot}" for row in slot.samples["x"]]
        return replace(slot, batch="other", samples={**slot.samples, "x": rows})

    finding = find(one, change_slots(many, noise, ranks=[1]))
    assert finding.slug == "verify-data-random"
    assert "only x differs" in finding.why


def test_a_sample_unlike_any_other_in_all_its_parts_was_picked_by_rank(one, many):
    def unseen(slot):
        return replace(
            slot, batch="other", samples={"x": [f"x{900 + slot.slot}"] * 3, "label": ["y7"] * 3}
        )

    assert find(one, change_slots(many, unseen)).slug == "verify-data-by-rank"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: with_terms(s, 0.5), "1/2 what it is on one rank"),
        (lambda s: with_terms(s, 2.0), "2 times what it is on one rank"),
        (lambda s: with_terms(s, 1.0, weight=0.5), "1/2 what it is on one rank"),
        (lambda s: replace(s, weights={"*": 6.0}), "weight(batch)"),
        (
            lambda s: replace(with_terms(s, 0.7), collectives=["my.py:5 allreduce"]),
            "my.py:5 allreduce",
        ),
    ],
    ids=["halved", "doubled", "weight", "weight()", "collective"],
)
def test_a_loss_that_knows_the_number_of_ranks(one, many, change, words):
    finding = find(one, change_slots(many, change))
    assert finding.slug == "verify-loss-world"
    assert words in finding.why


def test_a_loss_that_differs_on_one_rank_is_tied_to_the_rank(one, many):
    finding = find(one, change_slots(many, lambda s: with_terms(s, 1.01 + s.slot / 100), ranks=[1]))
    assert finding.slug == "verify-loss-by-rank"
    assert "slots of rank 0 are equal" in finding.why


def test_a_loss_that_depends_on_a_buffer_of_forward(one, many):
    one, many = (change_tensor(r, "buffers", "count", lambda f: tensor(77)) for r in (one, many))
    finding = find(one, change_slots(many, lambda s: with_terms(s, 1.1), ranks=[1]))
    assert finding.slug == "verify-buffers"
    assert "forward changes count" in finding.why


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ({"outside": ["bias"]}, "the model has not got it"),
        ({"frozen": ["bias"]}, "it was frozen"),
        ({}, "_ddp_params_and_buffers_to_ignore"),
    ],
    ids=["outside", "frozen", "ignored"],
)
def test_a_gradient_that_each_rank_has_for_itself(one, many, start, words):
    for rank in range(2):
        many = change_start(many, rank, **start)
        many = change_tensor(
            many, "gradients", "bias", lambda f, rank=rank: tensor(rank, 0.1 + rank), ranks=[rank]
        )
    finding = find(one, many)
    assert finding.slug == "verify-not-reduced"
    assert "the gradient of `bias`: norm 0.1 on 1 rank, 0.1 on 2 ranks" in finding.what
    assert "norm 0.1 on rank 0, 1.1 on rank 1" in finding.why
    assert words in finding.why


def test_a_gradient_all_ranks_agree_on_is_changed_on_the_way(one, many):
    def halved(f):
        return replace(f, squares=f.squares / 4, projections=tuple(p / 2 for p in f.projections))

    finding = find(one, change_tensor(many, "gradients", "weight", halved))
    assert finding.slug == "verify-gradient"
    assert "it is 1/2 what it is on one rank" in finding.why


@pytest.mark.parametrize(
    ("field", "name", "slug"),
    [
        ("parameters", "weight", "verify-weight"),
        ("buffers", "count", "verify-buffers"),
        ("buffers", "norm.running_mean", "verify-buffers"),
    ],
)
def test_weights_and_buffers(one, many, field, name, slug):
    finding = find(one, change_tensor(many, field, name, lambda f: moved(f, 1.0)))
    assert finding.slug == slug
    assert ("twice" in finding.why) == (name == "norm.running_mean")


def test_weights_before_the_first_step(one, many):
    many = change_tensor(many, "parameters", "weight", lambda f: tensor(9), step=-1)
    finding = find(one, many)
    assert finding.slug == "verify-initial-weights"
    assert finding.what.startswith("before the first step")
    frozen = change_start(change_start(many, 0, frozen=["weight"]), 1, frozen=["weight"])
    assert find(one, frozen).slug == "verify-weight"


@pytest.mark.parametrize(
    ("field", "step", "slug"),
    [
        ("gradients", 0, "verify-rounding"),  # slots are scaled by the number of ranks
        ("parameters", 0, "verify-weight"),
        ("parameters", 1, "verify-rounding"),
        ("buffers", 0, "verify-buffers"),
        ("buffers", 1, "verify-rounding"),
    ],
)
def test_a_difference_as_small_as_rounding_is_called_that(one, many, field, step, slug):
    name = "count" if field == "buffers" else "weight"
    many = change_tensor(many, field, name, lambda f: moved(f, 1e-7), step=step)
    assert find(one, many).slug == slug


def test_a_small_gradient_that_each_rank_has_for_itself_is_no_rounding(one, many):
    many = change_tensor(many, "gradients", "bias", lambda f: moved(f, 1e-7), ranks=[1])
    assert find(one, many).slug == "verify-not-reduced"


def test_a_loss_that_is_no_number_proves_nothing(one, many):
    runs = [change_slots(run, lambda s: with_terms(s, math.nan), step=1) for run in (one, many)]
    finding = find(*runs)
    assert finding.slug == "verify-not-finite"
    assert finding.what.startswith("step 2: the loss term `fit`")


def test_both_numbers_are_shown_with_the_digits_that_differ(one, many):
    many = change_slots(many, lambda s: with_terms(s, 1 + 1e-8), step=0)
    assert "3 on 1 rank, 3.00000003 on 2 ranks" in find(one, many).what
    many = change_step(many, 0, 0, slots=[])
    assert "nothing on 2 ranks" in find(one, many).what


def test_a_crash_for_want_of_a_process_group_is_explained():
    def crash(text, slug="rank-crashed"):
        return Finding(slug=slug, what=f"rank 0 failed: {text}", why="my.py:7 in loss", fix="x")

    found = explain_crash([crash("Default process group has not been initialized")])
    assert found.slug == "verify-needs-ranks"
    assert "my.py:7 in loss" in found.why
    assert explain_crash([crash("IndexError")]) is None
    assert explain_crash([crash("process group", slug="out-of-memory")]) is None
