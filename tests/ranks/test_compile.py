"""`compile: on` trains what `off` trains: losses, names, and bits after a resume."""

import json

import pytest
import torch

from tests.fixtures.event_lines import read_events
from tests.ranks.command import latest, phalanx
from tests.ranks.runs import (
    FIXTURES,
    assert_same_bits,
    change_run,
    full,
    losses,
    make_run,
    train,
    weights,
)

OPTIONS = {"batchnorm": True, "blocks": 3, "dropout": 0.0}
RECOMPUTED = {"activation_checkpointing": "on"}
FSDP = {"strategy": "fsdp", "ema": {"decay": 0.9}}
ONE_SIZE = {"micro_batch_size": 5}  # of slots: code is made for each, most of the time it takes
SGD = {"optimizer": {"name": "sgd", "lr": 0.01, "clip_norm": 1.0}}


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        full(2, {**RECOMPUTED, **ONE_SIZE}, id="ddp-recomputed"),
        pytest.param(2, {**FSDP, **ONE_SIZE}, id="fsdp"),
        full(2, RECOMPUTED, id="ddp-recomputed-two-sizes"),
        full(2, FSDP, id="fsdp-two-sizes"),
    ],
)
def test_compiled_training_is_eager_training(pool, tmp_path, ranks, changes):
    """In fp64, but for the recipe's noise in fp32, and with SGD: AdamW divides what is only
    rounding by its own size."""
    runs = {}
    for word in ("off", "on"):
        changes = {**changes, "compile": word, "options": OPTIONS, "steps": 6, **SGD}
        run = make_run(tmp_path / word, ranks=ranks, **changes)
        runs[word] = train(pool, run, ranks=ranks, timeout_s=300)
    assert not [e for e in read_events(runs["on"].events) if e.kind == "finding"]
    assert losses(runs["on"]) == pytest.approx(losses(runs["off"]), rel=1e-8)
    on, off = weights(runs["on"]), weights(runs["off"])
    assert list(on) == list(off)
    for name in off:
        torch.testing.assert_close(on[name], off[name], rtol=1e-7, atol=1e-9)


@pytest.mark.full
def test_a_compiled_run_resumes_to_the_bit(pool, tmp_path):
    """With dropout: compiled code draws the masks of a step again. And slots of 2 and 3 samples:
    each size has code of its own, whichever was seen first."""
    keys = {"compile": "on", "options": {**OPTIONS, "dropout": 0.2}, "steps": 6, **SGD}
    whole = train(pool, make_run(tmp_path / "whole", ranks=1, **keys), ranks=1, timeout_s=300)
    halved = make_run(tmp_path / "halved", ranks=1, stop_after="3 steps", **keys)
    train(pool, halved, ranks=1, timeout_s=300)
    train(pool, change_run(halved, stop_after=None), ranks=1, timeout_s=300)
    assert losses(halved) == losses(whole)
    assert_same_bits(halved, whole)


@pytest.mark.full
def test_code_that_differs_is_dropped_for_good(tmp_path):
    """The Finding says why, and the plan is revised while the ranks go on: what a resumed run keeps
    (test_rungs.py)."""
    recipe = f"{FIXTURES / 'recipes' / 'differs.py'}:Differs"
    keys = ["compile=on", "precision=fp32", "steps=4", "global_batch_size=8"]
    argv = ["train", recipe, "--cpu", "1", "--stop-after", "2", "steps", *keys]
    code, _, err = phalanx(*argv, cwd=tmp_path, timeout_s=300)
    assert code == 75, err
    assert err.index("compiling: compile = on") < err.index("comparing compile with the recipe")
    assert "fast-path-differs" in err
    run = latest(tmp_path)
    plans = [json.loads((run.path / f"plan-{n}.json").read_text()) for n in range(2)]
    assert [plan["execution"]["compile"]["value"] for plan in plans] == ["on", "off"]
    assert "away from that of the recipe" in plans[1]["execution"]["compile"]["reason"]
