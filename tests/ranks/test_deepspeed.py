"""DeepSpeed's ZeRO trains what one rank trains, whatever is spread or offloaded, and its
checkpoints fit anywhere. It keeps weights in fp32, and so does the plain loop beside it."""

import json

import pytest
import torch

from tests.fixtures.event_lines import read_events
from tests.fixtures.recipes.adapted import write_base
from tests.ranks import test_pretrained
from tests.ranks.pool import RankPool
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
from tests.ranks.test_bytes import ODD, SHORT, assert_as_predicted
from tests.ranks.test_parity import norms_of, plain_loop
from tests.ranks.test_sync_batchnorm import rounds_of

TOLERANCE = 5e-6  # losses near 7 have a spacing of 5e-7 in fp32; 12 steps of AdamW
OPTIONS = {"blocks": 2, "gain": True, "cast": True}
EMA = {"decay": 0.9}


@pytest.fixture(scope="module")
def pool():
    """Ranks of its own: DeepSpeed changes torch in the process for good."""
    pool = RankPool()
    yield pool
    pool.close()


def zero(folder, stage, *, ranks, options=None, **changes):
    """A run under ZeRO; `offload` keeps all in host memory that this stage can keep there."""
    offload = changes.pop("offload", False)
    settings = {
        "stage": stage,
        "offload_optimizer": offload,
        "offload_parameters": offload and stage == 3,
        # So small that stage 3 also cuts up and gathers the few weights of this model.
        "config": {"zero_optimization": {"stage3_param_persistence_threshold": 60}},
    }
    settings["config"] |= changes.pop("config", {})
    return make_run(
        folder,
        ranks=ranks,
        strategy="deepspeed",
        options=options if "recipe" in changes else OPTIONS | (options or {}),
        **{"precision": "fp32", "deepspeed": settings, **changes},
    )


def assert_close(run, options, **sizes):
    expected_losses, expected_weights, norms = plain_loop(options, dtype=torch.float32, **sizes)
    assert list(losses(run).values()) == pytest.approx(expected_losses, rel=0, abs=TOLERANCE)
    assert norms_of(run) == pytest.approx(norms, rel=1e-5)
    found = weights(run)
    assert found.keys() == expected_weights.keys()
    for name, tensor in expected_weights.items():
        assert found[name].dtype == tensor.dtype
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=TOLERANCE, msg=name)


def events(run, kind):
    return [event.data for event in read_events(run.events) if event.kind == kind]


def findings(run):
    return [event["finding"]["slug"] for event in events(run, "finding")]


@pytest.mark.parametrize(
    ("stage", "ranks", "offload"),
    [
        (1, 2, False),
        full(2, 2, False),
        (3, 2, False),
        full(3, 4, False),
        full(2, 3, True),
        full(3, 1, True),
    ],
)
def test_every_stage_equals_a_plain_loop(pool, tmp_path, stage, ranks, offload):
    # Slots of 2, 3, 2, 3 with unequal weights: on 3 ranks two of them keep step with zeros.
    run = zero(tmp_path, stage, ranks=ranks, offload=offload, options={"groups": True})
    train(pool, run, ranks=ranks)
    assert_close(run, OPTIONS)


@pytest.mark.parametrize(
    ("stage", "ranks", "options", "changes"),
    [
        full(1, 2, {}, {"global_batch_size": 18}, id="accumulation-3"),
        pytest.param(
            *(3, 2, {}, {"global_batch_size": 18}), id="accumulation-3-cut", marks=pytest.mark.full
        ),
        pytest.param(2, 2, {"late_weight": True}, {"offload": True}, id="late-weight"),
        # Over two samples BatchNorm would leave rounding error alone of a gradient.
        pytest.param(
            2, 2, {"batchnorm": True}, {"global_batch_size": 20, "micro_batch_size": 10}, id="norms"
        ),
        pytest.param(3, 2, {}, {"activation_checkpointing": "on"}, id="recomputed"),
        pytest.param(
            *(1, 2, {"unused": True, "frozen": True}, {}),
            id="unused-and-frozen",
            marks=pytest.mark.full,
        ),
        pytest.param(3, 2, {"unused": True, "frozen": True}, {}, id="unused-and-frozen-cut"),
        # ZeRO alone would lose gradients of a layer that the last pass of a step does not reach,
        # and add old ones to a layer that the first does not: 4 passes, of 2, 3, 2, 3 samples.
        pytest.param(2, 1, {"sometimes": 2}, {"offload": True}, id="not-in-the-last-pass"),
        pytest.param(2, 1, {"sometimes": 3}, {"offload": True}, id="not-in-the-first-pass"),
        pytest.param(3, 1, {"sometimes": 2}, {"offload": True}, id="not-in-the-last-pass-cut"),
    ],
)
def test_every_kind_of_recipe_equals_a_plain_loop(pool, tmp_path, stage, ranks, options, changes):
    run = train(pool, zero(tmp_path, stage, ranks=ranks, options=options, **changes), ranks=ranks)
    sizes = {"global_batch": changes.get("global_batch_size", 10)}
    assert_close(run, OPTIONS | options, micro=changes.get("micro_batch_size", 3), **sizes)
    # The pass before the first step has 2 samples.
    is_unused = "unused" in options or options.get("sometimes") == 3
    assert findings(run) == (["unused-parameters"] if is_unused else [])
    state = optimizer_state(run)
    assert "never.weight:exp_avg" not in state
    assert ("seldom.weight:exp_avg" in state) == ("sometimes" in options)


def test_norms_over_all_ranks_equal_one_rank_with_all_samples_of_a_round(pool, tmp_path):
    # 20 samples in slots of 5: 2 ranks run 2 rounds of 10.
    options = {"batchnorm": True, "dropout": 0.0}
    sizes = {"global_batch_size": 20, "micro_batch_size": 5, "sync_batchnorm": True}
    run = train(pool, zero(tmp_path, 3, ranks=2, options=options, **sizes), ranks=2)
    together = rounds_of(2)
    assert_close(run, OPTIONS | options, global_batch=20, micro=5, together=together)


@pytest.mark.parametrize("stage", [full(2), 3])
def test_the_average_equals_that_of_one_rank(pool, tmp_path, stage):
    # In two optimizer groups: ZeRO steps each on its own, and the average must move once.
    changes = {"options": OPTIONS | {"groups": True}, "ema": EMA, "precision": "fp32"}
    one = train(pool, make_run(tmp_path / "one", ranks=1, **changes), ranks=1)
    many = train(pool, zero(tmp_path / "many", stage, ranks=2, **changes), ranks=2)
    assert averages(one).keys() == averages(many).keys()
    for name, tensor in averages(one).items():
        torch.testing.assert_close(averages(many)[name], tensor, rtol=0, atol=TOLERANCE)
    # The averages are evaluated: ZeRO must gather them, and afterwards the weights again.
    figures = [[e["metrics"]["loss"] for e in events(run, "evaluate")] for run in (one, many)]
    assert figures[1] == pytest.approx(figures[0], rel=0, abs=TOLERANCE)
    assert losses(many) == pytest.approx(losses(one), rel=0, abs=TOLERANCE)


def scales(run):
    return [step["loss_scale"] for step in events(run, "step")]


def state(run):
    return json.loads((run.checkpoints / "latest" / "state.json").read_text())


@pytest.mark.parametrize(
    ("ranks", "stage", "precision", "config"),
    [
        full(2, 3, "fp32", {}, id="fp32"),
        full(4, 3, "fp32", {}, id="fp32-on-4"),
        # 2^18 overflows until it is 2^14; after two good steps it grows again.
        pytest.param(
            *(2, 2, "fp16", {"fp16": {"initial_scale_power": 18, "loss_scale_window": 2}}),
            id="fp16",
        ),
    ],
)
def test_a_resumed_run_equals_the_unbroken_one_bit_for_bit(
    pool, tmp_path, ranks, stage, precision, config
):
    options = {"batchnorm": True}
    changes = {"precision": precision, "config": config, "ema": EMA, "options": options}
    unbroken = train(pool, zero(tmp_path / "unbroken", stage, ranks=ranks, **changes), ranks=ranks)
    run = zero(tmp_path / "broken", stage, ranks=ranks, stop_after="5 steps", **changes)
    train(pool, run, ranks=ranks)
    train(pool, change_run(run, stop_after=None), ranks=ranks, attempt=1)
    assert losses(run) == losses(unbroken)
    assert_same_bits(run, unbroken)
    for name, tensor in averages(unbroken).items():
        assert torch.equal(averages(run)[name], tensor), name
    assert state(run)["scaler"] == state(unbroken)["scaler"]
    assert scales(run) == scales(unbroken)
    if precision == "fp16":
        taken = int(optimizer_state(run)["layers.0.weight:step"])
        assert 0 < taken < 12, "an overflow skips a step, and the run goes on"
        assert state(run)["ema"]["updates"] == taken
        assert min(scales(run)) < 2**17


@pytest.mark.full
def test_a_checkpoint_fits_any_strategy_stage_and_number_of_ranks(pool, tmp_path):
    changes = {"ema": EMA, "options": OPTIONS, "precision": "fp32"}
    unbroken = train(pool, make_run(tmp_path / "unbroken", ranks=1, **changes), ranks=1)
    run = make_run(tmp_path / "moved", ranks=2, stop_after="2 steps", **changes)
    train(pool, run, ranks=2)
    moves = [
        (2, "deepspeed", {"stage": 2, "offload_optimizer": True}),
        (4, "deepspeed", {"stage": 3}),
        (2, "deepspeed", {"stage": 3}),
        (2, "ddp", {}),
        (2, "deepspeed", {"stage": 1}),
        (1, "auto", {}),
    ]
    for attempt, (ranks, strategy, settings) in enumerate(moves, 1):
        stop = "2 steps" if attempt < len(moves) else None
        change_run(run, ranks=ranks, strategy=strategy, deepspeed=settings, stop_after=stop)
        train(pool, run, ranks=ranks, attempt=attempt)
    assert losses(run) == pytest.approx(losses(unbroken), rel=0, abs=TOLERANCE)
    for read in (weights, averages, optimizer_state):
        assert read(run).keys() == read(unbroken).keys()
        for name, tensor in read(unbroken).items():
            assert read(run)[name].shape == tensor.shape
            torch.testing.assert_close(read(run)[name], tensor, rtol=0, atol=TOLERANCE)


def test_a_growing_loss_scale_does_not_change_the_updates(pool, tmp_path):
    # DeepSpeed alone divides by the new scale in a step that makes it grow. SGD shows that.
    changes = {"precision": "fp16", "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.0}}
    curves = []
    for name, settings in (
        ("grows", {"initial_scale_power": 5, "loss_scale_window": 2}),
        ("stays", {"loss_scale": 32}),
    ):
        run = zero(tmp_path / name, 2, ranks=1, config={"fp16": settings}, **changes)
        curves.append(losses(train(pool, run, ranks=1)))
        assert scales(run)[-1] == (32 if name == "stays" else 32 * 2**5)
    assert curves[0] == pytest.approx(curves[1], rel=0, abs=1e-3)


def test_bf16_begins_with_the_fp32_weights_of_every_strategy(pool, tmp_path):
    still = {"steps": 1, "optimizer": {"lr": 1e-9, "weight_decay": 0.0}}
    run = train(pool, zero(tmp_path, 2, ranks=2, precision="bf16", **still), ranks=2)
    expected = plain_loop(OPTIONS, dtype=torch.float32, steps=0).weights
    for name, tensor in expected.items():
        torch.testing.assert_close(weights(run)[name], tensor, rtol=0, atol=1e-7)


def test_bf16_keeps_fp32_weights_and_frozen_ones_in_bf16(pool, tmp_path):
    # Every norm layer has narrow weights here, BatchNorm among them.
    options = {"batchnorm": True, "blocks": 0, "frozen": True}
    run = zero(tmp_path, 3, ranks=2, precision="bf16", options=options)
    train(pool, run, ranks=2)
    expected_losses, expected, _ = plain_loop(OPTIONS | options, dtype=torch.float32)
    assert list(losses(run).values()) == pytest.approx(expected_losses, rel=0, abs=0.05)
    first = weights(run)["layers.0.weight"]
    assert first.dtype == torch.bfloat16
    assert torch.equal(first, expected["layers.0.weight"].bfloat16())
    learned = weights(run)["layers.4.weight"]
    assert learned.dtype == torch.float32
    assert not torch.equal(learned, learned.bfloat16().float())
    torch.testing.assert_close(learned, expected["layers.4.weight"], rtol=0, atol=0.03)
    assert findings(run) == ["deepspeed-frozen"]


@pytest.mark.parametrize(
    ("stage", "ranks", "changes"),
    [
        (1, 2, {"precision": "bf16"}),
        full(1, 4, {}),
        (2, 2, {"optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.0}}),
        full(2, 4, {"precision": "bf16"}),
        full(3, 2, {"precision": "bf16"}),
        (3, 4, {}),
    ],
)
def test_a_rank_holds_what_the_planner_says(pool, tmp_path, stage, ranks, changes):
    # Two optimizer groups: ZeRO pads each.
    run = zero(tmp_path, stage, ranks=ranks, options=ODD | {"groups": True}, **SHORT, **changes)
    assert_as_predicted(pool, run, ranks)


@pytest.mark.full
@pytest.mark.parametrize("stage", [2, 3])
def test_pretrained_weights_are_read_and_what_is_frozen_stays_where_it_is(pool, tmp_path, stage):
    write_base(tmp_path / "base")
    run = zero(
        tmp_path,
        stage,
        ranks=2,
        recipe=test_pretrained.RECIPE,
        options={"base": str(tmp_path / "base")},
        steps=6,
        stop_after="3 steps",
    )
    train(pool, run, ranks=2)
    assert weights(run).keys() == test_pretrained.SAVED
    train(pool, change_run(run, stop_after=None), ranks=2, attempt=1)
    test_pretrained.assert_close(run, tmp_path / "base", torch.float32, TOLERANCE)
