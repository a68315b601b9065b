"""Pretrained weights and frozen ones: read by parts into any strategy, not saved again, and held in
the precision of the run."""

import json
import math
from functools import cache

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from phalanx.engine.data.order import INIT, ids_at
from phalanx.planner.schema.micro_batches import BatchPlan
from phalanx.planner.schema.plan import Plan
from phalanx.recipe.keys import make_key
from phalanx.recipe.loading import load_recipe
from phalanx.tracing.trace import trace_recipe
from tests.fixtures.event_lines import read_events
from tests.fixtures.recipes.adapted import write_base
from tests.ranks.runs import (
    FIXTURES,
    assert_same_bits,
    averages,
    change_run,
    full,
    losses,
    make_run,
    optimizer_state,
    outcomes,
    train,
    weights,
)
from tests.ranks.test_bytes import SHORT, assert_as_predicted
from tests.ranks.test_parity import TOLERANCE

RECIPE = f"{FIXTURES / 'recipes' / 'adapted.py'}:Adapted"
LEARNING = [f"blocks.{i}.{part}.weight" for i in range(3) for part in ("down", "up")]
SAVED = {*LEARNING, "head.bias", "scale"}
"""What learns, and a buffer."""
BF16 = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    write_base(folder)
    return folder


def adapted(folder, base, *, ranks, **changes):
    settings = {"recipe": RECIPE, "options": {"base": str(base)}, "steps": 6, **changes}
    return make_run(folder, ranks=ranks, **settings)


@cache
def plain_loop(base, dtype=torch.float64, steps=6, seed=7):
    """What a person would write for one device: losses, and the weights that learn."""
    recipe = load_recipe(RECIPE, {"base": str(base)})
    torch.manual_seed(make_key(seed, INIT) & (1 << 62) - 1)
    model = recipe.model().to(dtype)
    stored = {n: load_file(s.file)[s.name] for n, s in recipe.weights().items()}
    model.load_state_dict(stored, strict=False)
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=0.01, weight_decay=0.01)
    data = recipe.data("train")
    plan = BatchPlan(len(data), 10, 3)
    seen = []
    for step in range(steps):
        factor = (step + 1) / 2 if step < 2 else (1 + math.cos(math.pi * (step - 2) / 4)) / 2
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * factor
        epoch = step // plan.steps_per_epoch
        slots = plan.slots_of(step)
        ids = np.concatenate([ids_at(seed, epoch, s.start, s.stop, len(data)) for s in slots])
        loss = recipe.loss(model, data.__getitems__(ids, ids), None)["loss"].sum / len(ids)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        seen.append(loss.item())
    return seen, {name: model.state_dict()[name] for name in SAVED}


def assert_close(run, base, dtype=torch.float64, tolerance=TOLERANCE):
    expected, expected_weights = plain_loop(base, dtype)
    assert list(losses(run).values()) == pytest.approx(expected, rel=0, abs=tolerance)
    found = weights(run)
    assert found.keys() == SAVED
    for name, tensor in expected_weights.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=tolerance, msg=name)


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        pytest.param(1, {}, id="single"),
        pytest.param(2, {}, id="ddp"),
        pytest.param(2, {"determinism": "exact"}, id="exact"),
        full(2, {"strategy": "fsdp"}, id="fsdp"),
        pytest.param(3, {"strategy": "fsdp", "fsdp": {"build": "parts"}}, id="parts"),
        pytest.param(
            2, {"strategy": "fsdp", "fsdp": {"offload": True, "build": "parts"}}, id="offload"
        ),
    ],
)
def test_every_strategy_trains_what_a_plain_loop_trains(pool, tmp_path, base, ranks, changes):
    run = train(pool, adapted(tmp_path, base, ranks=ranks, **changes), ranks=ranks)
    assert_close(run, base)


def test_a_checkpoint_leaves_out_what_lies_elsewhere_and_goes_on_anywhere(pool, tmp_path, base):
    changes = {"ema": {"decay": 0.9}}
    unbroken = train(pool, adapted(tmp_path / "unbroken", base, ranks=2, **changes), ranks=2)
    assert averages(unbroken).keys() == weights(unbroken).keys() == SAVED
    run = adapted(tmp_path / "broken", base, ranks=2, stop_after="3 steps", **changes)
    train(pool, run, ranks=2)
    train(pool, change_run(run, stop_after=None), ranks=2, attempt=1)
    assert losses(run) == losses(unbroken)
    assert_same_bits(run, unbroken)
    moved = adapted(tmp_path / "moved", base, ranks=2, stop_after="2 steps", **changes)
    train(pool, moved, ranks=2)
    for attempt, (ranks, strategy, stop) in enumerate(
        [(3, "fsdp", "2 steps"), (1, "auto", None)], 1
    ):
        change_run(moved, ranks=ranks, strategy=strategy, stop_after=stop)
        train(pool, moved, ranks=ranks, attempt=attempt)
    for read in (weights, averages, optimizer_state):
        for name, tensor in read(unbroken).items():
            torch.testing.assert_close(read(moved)[name], tensor, rtol=0, atol=TOLERANCE)


def test_other_frozen_weights_are_refused_on_resume_and_noticed_by_init_from(pool, tmp_path):
    write_base(tmp_path / "base")
    run = adapted(tmp_path, tmp_path / "base", ranks=1, stop_after="2 steps")
    train(pool, run, ranks=1)
    (tmp_path / "base").rename(tmp_path / "moved")
    options = {"base": str(tmp_path / "moved")}
    train(pool, change_run(run, stop_after="1 steps", options=options), ranks=1, attempt=1)
    write_base(tmp_path / "moved", seed=1)
    change_run(run, stop_after=None)
    assert pool.run("tests.ranks.runs:worker", ranks=1, path=str(run.path), attempt=2) == [False]
    (finding,) = outcomes(run)[-1]["findings"]
    then, now = finding["why"].split("; now: ")
    assert finding["slug"] == "weights-changed"
    assert "2.safetensors" in then and "2.safetensors" in now
    assert then.partition("then: ")[2] != now
    new = adapted(tmp_path / "new", tmp_path / "moved", ranks=1, steps=1, init_from=str(run.path))
    train(pool, new, ranks=1)
    found = [e.data["finding"]["slug"] for e in read_events(new.events) if e.kind == "finding"]
    assert found == ["init-base"]


@pytest.mark.parametrize(
    ("ranks", "strategy", "changes"),
    [
        pytest.param(1, "single", {}, id="single"),
        pytest.param(1, "single", {"frozen_precision": "full"}, id="full"),
        pytest.param(2, "fsdp", {}, id="fsdp"),
        full(2, "fsdp", {"fsdp": {"build": "parts"}}, id="parts"),
        pytest.param(2, "ddp", {"precision": "fp16"}, id="fp16-ddp"),
    ],
)
def test_frozen_weights_are_held_in_the_precision_of_the_run(
    pool, tmp_path, base, ranks, strategy, changes
):
    settings = {**SHORT, "precision": "bf16", "global_batch_size": 12, **changes}
    run = adapted(tmp_path, base, ranks=ranks, strategy=strategy, **settings)
    shares = assert_as_predicted(pool, run, ranks, env=BF16)
    plan = Plan.from_json(json.loads(run.plan_file.read_text()))
    is_full = changes.get("frozen_precision") == "full"
    assert plan.numerics.frozen_precision.value == ("full" if is_full else "compute")
    if strategy == "single":
        norms, embedding, linear, learning = 3 * 2 * 16, 40 * 16, 3 * (16 * 16 + 16), 3 * 64 + 40
        size = 4 if is_full else 2
        assert shares[0].weights == 4 * (norms + learning) + size * (embedding + linear)
    assert all(tensor.dtype == torch.float32 for tensor in weights(run).values())


@pytest.mark.full
def test_narrow_frozen_weights_train_as_wide_ones_do(pool, tmp_path, base):
    runs = [
        train(
            pool,
            adapted(tmp_path / name, base, ranks=ranks, precision="bf16", **changes),
            ranks=ranks,
            env=BF16,
        )
        for name, ranks, changes in [
            ("full", 1, {"frozen_precision": "full"}),
            ("narrow", 1, {}),
            ("fsdp", 2, {"strategy": "fsdp"}),
            ("compiled", 1, {"compile": "on"}),
        ]
    ]
    for run in runs:
        assert not [e for e in read_events(run.events) if e.kind == "dropped"]
        # The weights in the files are bf16: rounding them changes nothing.
        assert list(losses(run).values()) == pytest.approx(plain_loop(base)[0], rel=0.01)


def test_a_model_that_wants_wide_weights_gets_them(base):
    trace, _ = trace_recipe(RECIPE, {"base": str(base), "stubborn": True})
    assert trace.activations_unknown is None
    assert "dtype" in trace.frozen_unknown
    assert trace.operators["bf16"]
    assert not any(weight.held for weight in trace.weights)
