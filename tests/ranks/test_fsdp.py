"""FSDP2 trains what one rank trains, whatever is sharded how, and its checkpoints fit anywhere."""

import pytest
import torch

from tests.fixtures.event_lines import read_events
from tests.ranks.runs import (
    assert_same_bits,
    averages,
    change_run,
    full,
    losses,
    make_run,
    optimizer_state,
    train,
    weights,
)
from tests.ranks.test_parity import TOLERANCE, assert_close, plain_loop

OPTIONS = {"blocks": 2, "gain": True}
EMA = {"decay": 0.9}


def fsdp(folder, *, ranks, options=OPTIONS, **changes):
    settings = changes.pop("fsdp", {})
    return make_run(folder, ranks=ranks, strategy="fsdp", fsdp=settings, options=options, **changes)


@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        full(2, {}, id="2"),
        pytest.param(3, {}, id="3-uneven"),
        full(4, {}, id="4"),
        full(4, {"shard_ranks": 2}, id="2-replicas-of-2"),
        full(2, {"build": "parts"}, id="built-in-parts"),
        pytest.param(2, {"offload": True, "build": "parts"}, id="offload"),
        full(1, {"offload": True}, id="offload-on-one-rank"),
        pytest.param(2, {"reshard_after_forward": False}, id="gathered-through-a-step"),
    ],
)
def test_every_sharding_equals_a_plain_loop(pool, tmp_path, ranks, settings):
    # Slots of 2, 3, 2, 3 with unequal weights on 3 ranks: one rank keeps step with zeros.
    run = train(pool, fsdp(tmp_path, ranks=ranks, fsdp=settings), ranks=ranks)
    assert_close(run, plain_loop(OPTIONS))


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        full({}, {"global_batch_size": 18}, id="accumulation-3"),
        pytest.param({"late_weight": True}, {}, id="late-weight"),
        # It enlarges what another order of sums does: as many threads as the plain loop has.
        pytest.param({"batchnorm": True}, {"threads": None}, id="batchnorm"),
        pytest.param({"unused": True}, {}, id="unused"),
        pytest.param({"samples": 7}, {"global_batch_size": 4, "micro_batch_size": 2}, id="idle"),
    ],
)
def test_every_kind_of_recipe_equals_a_plain_loop(pool, tmp_path, options, changes):
    options = {**OPTIONS, **options}
    run = train(pool, fsdp(tmp_path, ranks=2, options=options, **changes), ranks=2)
    sizes = {"global_batch": changes.get("global_batch_size", 10)}
    sizes["micro"] = changes.get("micro_batch_size", 3)
    assert_close(run, plain_loop(options, **sizes))


def test_what_is_frozen_costs_nothing_and_the_rest_equals_a_plain_loop(pool, tmp_path):
    options = {**OPTIONS, "frozen": True}
    run = train(pool, fsdp(tmp_path, ranks=2, options=options, ema=EMA), ranks=2)
    assert not [name for name in optimizer_state(run) if name.startswith("layers.0.")]
    assert [name for name in optimizer_state(run) if name.startswith("blocks.0.")]
    assert_close(run, plain_loop(options))


def test_the_average_is_sharded_and_equals_that_of_one_rank(pool, tmp_path):
    changes = {"options": OPTIONS, "ema": EMA}
    one = train(pool, make_run(tmp_path / "one", ranks=1, **changes), ranks=1)
    many = train(pool, fsdp(tmp_path / "many", ranks=3, ema=EMA), ranks=3)
    assert averages(one).keys() == averages(many).keys()
    for name, tensor in averages(one).items():
        torch.testing.assert_close(averages(many)[name], tensor, rtol=0, atol=TOLERANCE)
    assert not torch.equal(averages(many)["layers.0.weight"], weights(many)["layers.0.weight"])


@pytest.mark.parametrize("ranks", [2, full(4)])
def test_a_resumed_run_equals_the_unbroken_one_bit_for_bit(pool, tmp_path, ranks):
    changes = {"ema": EMA, "options": {**OPTIONS, "batchnorm": True}}
    unbroken = train(pool, fsdp(tmp_path / "unbroken", ranks=ranks, **changes), ranks=ranks)
    run = fsdp(tmp_path / "broken", ranks=ranks, stop_after="5 steps", **changes)
    train(pool, run, ranks=ranks)
    train(pool, change_run(run, stop_after=None), ranks=ranks, attempt=1)
    assert losses(run) == losses(unbroken)
    assert_same_bits(run, unbroken)
    for name, tensor in averages(unbroken).items():
        assert torch.equal(averages(run)[name], tensor), name


def test_a_checkpoint_fits_any_strategy_and_number_of_ranks(pool, tmp_path):
    changes = {"ema": EMA, "options": OPTIONS}
    unbroken = train(pool, make_run(tmp_path / "unbroken", ranks=1, **changes), ranks=1)
    run = make_run(tmp_path / "moved", ranks=2, stop_after="2 steps", **changes)
    train(pool, run, ranks=2)
    moves = [(4, "fsdp"), (3, "fsdp"), (2, "ddp"), (2, "fsdp"), (1, "auto")]
    for attempt, (ranks, strategy) in enumerate(moves, 1):
        stop = "2 steps" if attempt < len(moves) else None
        change_run(run, ranks=ranks, strategy=strategy, stop_after=stop)
        train(pool, run, ranks=ranks, attempt=attempt)
    assert losses(run) == pytest.approx(losses(unbroken), rel=0, abs=TOLERANCE)
    for read in (weights, averages, optimizer_state):
        assert read(run).keys() == read(unbroken).keys()
        for name, tensor in read(unbroken).items():
            torch.testing.assert_close(read(run)[name], tensor, rtol=0, atol=TOLERANCE)


def scales(run):
    return [e.data["loss_scale"] for e in read_events(run.events) if e.kind == "step"]


@pytest.mark.full
def test_an_overflow_in_one_shard_is_one_for_all(pool, tmp_path):
    # At the first scale of 65,536 a gradient of 1 is beyond fp16's 65,504.
    changes = {"precision": "fp16", "options": {**OPTIONS, "cast": True, "loud": True}}
    changes |= {"steps": 30, "optimizer": {"lr": 0.01}}
    one = train(pool, make_run(tmp_path / "one", ranks=1, **changes), ranks=1)
    many = train(pool, fsdp(tmp_path / "many", ranks=4, **changes), ranks=4)
    assert scales(one)[-1] < 65536, "nothing overflowed"
    # Gradients of weights that travel in fp16 are fp16 too: they overflow a little earlier.
    assert scales(one)[-1] / 4 <= scales(many)[-1] <= scales(one)[-1]
    assert losses(many)[30] == pytest.approx(losses(one)[30], rel=0.05)
    assert losses(many)[30] < 0.8 * losses(many)[1]


def test_sgd_equals_that_of_one_rank(pool, tmp_path):
    changes = {"options": OPTIONS, "optimizer": {"name": "sgd", "lr": 0.01, "clip_norm": 1.0}}
    one = train(pool, make_run(tmp_path / "one", ranks=1, **changes), ranks=1)
    many = train(pool, fsdp(tmp_path / "many", ranks=2, **changes), ranks=2)
    assert losses(many) == pytest.approx(losses(one), rel=0, abs=TOLERANCE)
