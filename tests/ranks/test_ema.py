"""The average of the weights: the same on any number of ranks, kept through a resume, evaluated."""

import pytest
import torch

from phalanx.engine.data.order import INIT
from phalanx.recipe.keys import make_key
from phalanx.recipe.loading import load_recipe
from phalanx.run.checkpoints import verify_checkpoint
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import (
    RECIPE,
    assert_same_bits,
    averages,
    change_run,
    full,
    losses,
    make_run,
    train,
    unbroken_runs,
    weights,
)
from tests.ranks.test_parity import TOLERANCE, plain_loop

EMA = {"decay": 0.9, "warmup": True}
OPTIONS = {"batchnorm": True}
CHANGES = {"ema": EMA, "options": OPTIONS}


def findings(run):
    return [e.data["finding"] for e in read_events(run.events) if e.kind == "finding"]


def evaluations(run):
    return {
        e.data["step"]: e.data["metrics"] for e in read_events(run.events) if e.kind == "evaluate"
    }


def plain_average(*, decay, warmup):
    """The average as a person would write it, over a plain loop's weights."""
    average = {}

    def after_step(model, step):
        now = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        kept = min(decay, (1 + step) / (10 + step)) if warmup else decay
        learning = {name for name, _ in model.named_parameters()}
        for name, tensor in now.items():
            if name in learning:
                average[name] = kept * average[name] + (1 - kept) * tensor
            else:
                average[name] = tensor

    average.update(initial_weights())
    plain_loop(OPTIONS, after_step=after_step)
    return average


def initial_weights():
    torch.manual_seed(make_key(7, INIT) & (1 << 62) - 1)
    model = load_recipe(RECIPE, OPTIONS).model().double()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def metrics_of(tensors):
    """A plain evaluation of some weights."""
    recipe = load_recipe(RECIPE, OPTIONS)
    model = recipe.model().double()
    model.load_state_dict(tensors)
    model.eval()
    data = recipe.data("test")
    ids = torch.arange(len(data)).numpy()
    with torch.no_grad():
        sums = recipe.evaluate(model, data.__getitems__(ids, None))
    return recipe.metrics({name: float(value) for name, value in sums.items()})


@pytest.mark.parametrize(
    ("ranks", "warmup"),
    [(1, False), full(1, True), full(2, False), full(2, True), full(3, False), (3, True)],
)
def test_every_world_size_has_a_plain_loops_average(pool, tmp_path, ranks, warmup):
    ema = {"decay": 0.9, "warmup": warmup}
    run = make_run(tmp_path, ranks=ranks, ema=ema, options=OPTIONS)
    train(pool, run, ranks=ranks)
    expected, got = plain_average(**ema), averages(run)
    assert got.keys() == expected.keys() == weights(run).keys()
    for name, tensor in expected.items():
        difference = (got[name].double() - tensor.double()).abs().max().item()
        assert difference <= TOLERANCE, f"{name} is {difference} apart"


@pytest.mark.parametrize("ranks", [full(1), 2])
def test_training_itself_is_not_changed(pool, tmp_path, ranks):
    # Evaluations in the middle put the average into the model and take it out again.
    with_ema = train(pool, make_run(tmp_path / "a", ranks=ranks, **CHANGES), ranks=ranks)
    without = train(pool, make_run(tmp_path / "b", ranks=ranks, options=OPTIONS), ranks=ranks)
    assert losses(with_ema) == losses(without)
    assert_same_bits(with_ema, without)
    assert not (without.checkpoints / "latest" / "ema").exists()


@pytest.fixture(scope="module")
def unbroken(pool, tmp_path_factory):
    return unbroken_runs(pool, tmp_path_factory, **CHANGES)


@pytest.mark.parametrize("ranks", [full(1), 2])
@pytest.mark.parametrize("stop", [1, full(5), full(4), full(11)])
def test_a_resumed_average_equals_the_unbroken_one(pool, tmp_path, unbroken, ranks, stop):
    run = make_run(tmp_path, ranks=ranks, **CHANGES, stop_after=f"{stop} steps")
    train(pool, run, ranks=ranks)
    train(pool, change_run(run, stop_after=None), ranks=ranks, attempt=1)
    assert losses(run) == losses(unbroken(ranks))
    assert_same_bits(run, unbroken(ranks))
    for name, tensor in averages(unbroken(ranks)).items():
        assert torch.equal(averages(run)[name], tensor), name
    assert evaluations(run) == evaluations(unbroken(ranks))
    assert findings(run) == []


def test_an_average_goes_on_on_another_number_of_ranks(pool, tmp_path, unbroken):
    run = make_run(tmp_path, ranks=1, **CHANGES, stop_after="5 steps")
    train(pool, run, ranks=1)
    train(pool, change_run(run, ranks=3, stop_after=None), ranks=3, attempt=1)
    for name, tensor in averages(unbroken(1)).items():
        difference = (averages(run)[name].double() - tensor.double()).abs().max().item()
        assert difference <= TOLERANCE, name


@pytest.mark.parametrize("ranks", [full(1), 2])
def test_an_average_turned_on_at_resume_starts_from_the_loaded_weights(pool, tmp_path, ranks):
    run = make_run(tmp_path, ranks=ranks, options=OPTIONS, stop_after="11 steps")
    train(pool, run, ranks=ranks)
    start = weights(run)
    run = change_run(run, stop_after=None, ema={"decay": 0.75})
    train(pool, run, ranks=ranks, attempt=1)
    end, got = weights(run), averages(run)
    learning = {n for n, _ in load_recipe(RECIPE, OPTIONS).model().named_parameters()}
    for name in got:
        wanted = 0.75 * start[name] + 0.25 * end[name] if name in learning else end[name]
        assert torch.allclose(got[name], wanted, rtol=0, atol=1e-12), name
    (finding,) = findings(run)
    assert (finding["slug"], finding["severity"]) == ("ema-begins", "note")
    assert "step 11" in finding["what"]


@pytest.mark.parametrize(
    ("ema", "slug"), [({"decay": None}, "ema-ends"), ({"decay": 0.5}, "ema-changes")]
)
def test_a_changed_average_is_said(pool, tmp_path, ema, slug):
    run = make_run(tmp_path, ranks=1, **CHANGES, stop_after="2 steps")
    train(pool, run, ranks=1)
    run = train(pool, change_run(run, stop_after=None, ema=ema), ranks=1, attempt=1)
    (finding,) = findings(run)
    assert (finding["slug"], finding["severity"]) == (slug, "warning")
    assert "0.9" in finding["why"]
    assert (run.checkpoints / "latest" / "ema").exists() is (ema["decay"] is not None)


@pytest.mark.parametrize("ranks", [full(1), 2])
def test_evaluation_is_of_the_average_when_asked(pool, tmp_path, ranks):
    figures = {}
    for evaluate in (True, False):
        ema = {**EMA, "evaluate": evaluate}
        run = make_run(tmp_path / str(evaluate), ranks=ranks, ema=ema, options=OPTIONS)
        train(pool, run, ranks=ranks)
        figures[evaluate] = evaluations(run)[12]["loss"]
        saved = averages(run) if evaluate else weights(run)
        assert figures[evaluate] == pytest.approx(metrics_of(saved)["loss"], rel=0, abs=1e-12)
    assert figures[True] != pytest.approx(figures[False], rel=1e-6)


def test_a_damaged_average_makes_the_checkpoint_bad(pool, tmp_path):
    changes = {**CHANGES, "checkpoint": {"every": "2 steps"}, "stop_after": "4 steps"}
    run = train(pool, make_run(tmp_path, ranks=1, **changes), ranks=1)
    newest = run.checkpoints / "checkpoint-4"
    assert verify_checkpoint(newest) is None
    file = newest / "ema" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    assert "ema/model.safetensors" in verify_checkpoint(newest).why
    train(pool, change_run(run, stop_after=None), ranks=1, attempt=1)
    starts = [e.data for e in read_events(run.events) if e.kind == "start" and e.attempt == 1]
    assert [start["step"] for start in starts] == [2]


def test_a_run_starts_from_an_average_that_is_named(pool, tmp_path):
    first = train(pool, make_run(tmp_path / "a", ranks=1, **CHANGES), ranks=1)
    latest = first.checkpoints / "latest"
    still = {"steps": 1, "optimizer": {"lr": 1e-30, "weight_decay": 0.0}}
    for source, expected in [
        (latest, weights(first)),
        (latest / "ema/model.safetensors", averages(first)),
    ]:
        changes = {**still, "options": OPTIONS, "init_from": str(source)}
        run = make_run(tmp_path / source.name, ranks=1, **changes)
        got = weights(train(pool, run, ranks=1))
        for name, _ in load_recipe(RECIPE, OPTIONS).model().named_parameters():
            assert (got[name] - expected[name]).abs().max() < 1e-12, name
