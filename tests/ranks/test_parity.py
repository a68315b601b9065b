"""Training on N ranks is training on one: the same losses and weights as a plain torch loop."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

from phalanx.engine.data.order import INIT, dropout_seed, ids_at, keys_of
from phalanx.planner.schema.micro_batches import BatchPlan
from phalanx.recipe.keys import make_key
from phalanx.recipe.loading import load_recipe
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import BASE, RECIPE, full, losses, make_run, train, weights

TOLERANCE = 1e-10

WORLDS = [
    pytest.param(1, {}, id="single"),
    full(2, {}, id="ddp-2"),  # as the last
    pytest.param(3, {}, id="ddp-3"),
    pytest.param(4, {}, id="ddp-4"),
    pytest.param(2, {"loader": {"workers": 2}}, id="ddp-2-workers"),
]


def plain_loop(
    options,
    *,
    global_batch=10,
    micro=3,
    steps=12,
    seed=7,
    dtype=torch.float64,
    after_step=lambda model, step: None,
    together=lambda slots: [[slot] for slot in slots],
):
    """What a person would write for one device, with nothing of the engine but the order;
    `together` says which slots make up one forward."""
    recipe = load_recipe(RECIPE, options)
    torch.manual_seed(make_key(seed, INIT) & (1 << 62) - 1)
    model = recipe.model().to(dtype)
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=0.01, weight_decay=0.01)
    data = recipe.data("train")
    plan = BatchPlan(len(data), global_batch, micro)
    seen, norms = [], []
    for step in range(steps):
        factor = (step + 1) / 2 if step < 2 else (1 + math.cos(math.pi * (step - 2) / 10)) / 2
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * factor
        epoch = step // plan.steps_per_epoch
        sums, totals, gradients = {}, {}, {}
        for slots in together(plan.slots_of(step)):
            ids = np.concatenate(
                [ids_at(seed, epoch, slot.start, slot.stop, len(data)) for slot in slots]
            )
            sample_keys = keys_of(seed, epoch, ids)
            batch = data.__getitems__(ids, sample_keys)
            torch.manual_seed(dropout_seed(seed, step, slots[0].index))
            terms = recipe.loss(model, batch, torch.from_numpy(sample_keys))
            for name, term in terms.items():
                sums[name] = sums.get(name, 0.0) + term.sum
                totals[name] = totals.get(name, 0.0) + float(term.weight)
        loss = sum(sums[name] / totals[name] for name in sums)
        gradients = torch.autograd.grad(loss, learning, allow_unused=True)
        for parameter, gradient in zip(learning, gradients, strict=True):
            parameter.grad = gradient
        norm = torch.nn.utils.clip_grad_norm_(learning, 1.0)
        norms.append(norm.item())
        optimizer.step()
        after_step(model, step)
        seen.append(loss.item())
    return Expected(seen, model.state_dict(), norms)


class Expected(NamedTuple):
    losses: list[float]
    weights: dict[str, torch.Tensor]
    norms: list[float]
    """Of the gradients of each step: clipping and AdamW both hide gradients of a wrong size."""


def norms_of(run):
    return [e.data["grad_norm"] for e in read_events(run.events) if e.kind == "step"]


def assert_close(run, expected):
    expected_losses, expected_weights, expected_norms = expected
    got = losses(run)
    assert norms_of(run) == pytest.approx(expected_norms, rel=TOLERANCE, abs=TOLERANCE)
    assert list(got) == list(range(1, len(expected_losses) + 1))
    for step, loss in enumerate(expected_losses, 1):
        assert got[step] == pytest.approx(loss, rel=0, abs=TOLERANCE), f"loss of step {step}"
    got_weights = weights(run)
    assert got_weights.keys() == expected_weights.keys()
    for name, tensor in expected_weights.items():
        difference = (got_weights[name].double() - tensor.double()).abs().max().item()
        assert difference <= TOLERANCE, f"{name} is {difference} apart"


@pytest.mark.parametrize(("ranks", "changes"), WORLDS)
def test_every_world_size_equals_a_plain_loop(pool, tmp_path, ranks, changes):
    run = train(pool, make_run(tmp_path, ranks=ranks, **changes), ranks=ranks)
    assert_close(run, plain_loop({}))


@pytest.mark.parametrize("ranks", [full(1), 2, full(4)])
def test_accumulation_equals_a_plain_loop(pool, tmp_path, ranks):
    # 12 samples in micro-batches of 3: 2 ranks add up 2 each, 4 ranks run 1 each.
    changes = {"global_batch_size": 12}
    run = train(pool, make_run(tmp_path, ranks=ranks, **changes), ranks=ranks)
    assert_close(run, plain_loop({}, global_batch=12))


@pytest.mark.parametrize("ranks", [1, full(2), 3, full(4)])
def test_weight_that_depends_on_predictions_equals_a_plain_loop(pool, tmp_path, ranks):
    options = {"late_weight": True}
    run = train(pool, make_run(tmp_path, ranks=ranks, options=options), ranks=ranks)
    assert_close(run, plain_loop(options))


@pytest.mark.parametrize("ranks", [1, full(2), 3, full(4)])
def test_batchnorm_buffers_equal_a_plain_loop(pool, tmp_path, ranks):
    # DDP alone would keep rank 0's running statistics.
    options = {"batchnorm": True}
    run = train(pool, make_run(tmp_path, ranks=ranks, options=options), ranks=ranks)
    assert_close(run, plain_loop(options))


@pytest.mark.parametrize("ranks", [full(2), 3])
def test_unused_parameters_are_found_and_left_alone(pool, tmp_path, ranks):
    options = {"unused": True}
    run = train(pool, make_run(tmp_path, ranks=ranks, options=options), ranks=ranks)
    assert_close(run, plain_loop(options))


@pytest.mark.parametrize("ranks", [full(1), full(2), 4])
def test_ranks_without_a_micro_batch_take_part(pool, tmp_path, ranks):
    # 7 samples, batch 4: the second step of an epoch has 3 samples in 2 slots, for 4 ranks.
    changes = {"global_batch_size": 4, "micro_batch_size": 2, "options": {"samples": 7}}
    run = train(pool, make_run(tmp_path, ranks=ranks, **changes), ranks=ranks)
    assert_close(run, plain_loop({"samples": 7}, global_batch=4, micro=2))


def test_base_job_has_unequal_slots():
    sizes = {s.stop - s.start for s in BatchPlan(50, 10, BASE["micro_batch_size"]).slots_of(0)}
    assert len(sizes) > 1
