"""When a run evaluates, saves, keeps and ends."""

import json

import pytest

from phalanx.run.checkpoints import list_checkpoints
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import change_run, make_run, outcomes, train, weights


def steps_of(run, kind):
    return [event.data["step"] for event in read_events(run.events) if event.kind == kind]


def saved_steps(run):
    return sorted(step for step, _ in list_checkpoints(run.checkpoints))


@pytest.mark.parametrize("ranks", [1, 2])
def test_evaluates_and_saves_when_asked_and_at_the_end(pool, tmp_path, ranks):
    changes = {"evaluate": {"every": "5 steps"}, "checkpoint": {"every": "3 steps", "keep": 9}}
    run = train(pool, make_run(tmp_path, ranks=ranks, **changes), ranks=ranks)
    assert steps_of(run, "evaluate") == [5, 10, 12]
    best = [
        e.data["step"]
        for e in read_events(run.events)
        if e.kind == "evaluate" and e.data["is_best"]
    ]
    assert saved_steps(run) == sorted({3, 6, 9, 12, *best})


def test_keeps_the_newest_and_the_best(pool, tmp_path):
    changes = {"evaluate": {"every": "1 steps"}, "checkpoint": {"every": "1 steps", "keep": 2}}
    run = train(pool, make_run(tmp_path, ranks=1, **changes), ranks=1)
    evaluations = [e.data for e in read_events(run.events) if e.kind == "evaluate"]
    best = min(evaluations, key=lambda data: data["metrics"]["loss"])["step"]
    assert (run.checkpoints / "best").resolve().name == f"checkpoint-{best}"
    assert (run.checkpoints / "latest").resolve().name == "checkpoint-12"
    assert saved_steps(run) == sorted({best, 11, 12})


def test_keeps_the_three_best_across_a_resume(pool, tmp_path):
    changes = {
        "optimizer": {"lr": 0.3},  # large enough to go up and down
        "evaluate": {"every": "1 steps"},
        "checkpoint": {"every": None, "keep_best": 3},
    }
    run = make_run(tmp_path, ranks=1, **changes, stop_after="7 steps")
    train(pool, run, ranks=1)
    train(pool, change_run(run, stop_after=None), ranks=1, attempt=1)
    evaluations = [e.data for e in read_events(run.events) if e.kind == "evaluate"]
    ranked = sorted(evaluations, key=lambda data: data["metrics"]["loss"])
    best = [data["step"] for data in ranked[:3]]
    assert best != sorted(best), "a metric that only falls would show nothing"
    assert (run.checkpoints / "best").resolve().name == f"checkpoint-{best[0]}"
    assert set(best) <= set(saved_steps(run))
    newest = sorted(saved_steps(run))[-2:]
    assert set(saved_steps(run)) == {*best, *newest}
    assert newest[-1] == 12


def test_saves_by_the_clock(pool, tmp_path):
    changes = {"checkpoint": {"every": "0.0001 minutes", "keep": 50}, "evaluate": {"every": None}}
    run = train(pool, make_run(tmp_path, ranks=2, **changes), ranks=2)
    assert len(saved_steps(run)) > 3


@pytest.mark.parametrize("ranks", [1, 2])
def test_early_stopping_ends_in_order(pool, tmp_path, ranks):
    # A rate of almost nothing: no evaluation after the first few is better by chance for long.
    changes = {
        "steps": 200,
        "optimizer": {"lr": 0.5},
        "evaluate": {"every": "1 steps", "early_stopping": 3},
    }
    run = train(pool, make_run(tmp_path, ranks=ranks, **changes), ranks=ranks)
    evaluations = [e.data["is_best"] for e in read_events(run.events) if e.kind == "evaluate"]
    assert evaluations[-3:] == [False] * 3
    assert len(evaluations) < 200
    assert {o["status"] for o in outcomes(run)} == {"finished"}
    assert "no better loss in 3 evaluations" in outcomes(run)[0]["reason"]
    assert max(saved_steps(run)) == len(evaluations)


def test_early_stopping_counts_across_a_resume(pool, tmp_path):
    changes = {
        "steps": 200,
        "optimizer": {"lr": 0.5},
        "evaluate": {"every": "1 steps", "early_stopping": 3},
    }
    unbroken = train(pool, make_run(tmp_path / "a", ranks=1, **changes), ranks=1)
    end = max(saved_steps(unbroken))
    run = make_run(tmp_path / "b", ranks=1, **changes, stop_after=f"{end - 1} steps")
    train(pool, run, ranks=1)
    train(pool, change_run(run, stop_after=None), ranks=1, attempt=1)
    assert max(saved_steps(run)) == end


@pytest.mark.parametrize("source", ["run", "checkpoint", "file"])
def test_init_from_takes_the_weights_alone(pool, tmp_path, source):
    first = train(pool, make_run(tmp_path / "a", ranks=1), ranks=1)
    path = {
        "run": first.path,
        "checkpoint": first.checkpoints / "latest",
        "file": first.checkpoints / "latest" / "model.safetensors",
    }[source]
    changes = {"init_from": str(path), "steps": 1, "optimizer": {"lr": 1e-30, "weight_decay": 0.0}}
    run = train(pool, make_run(tmp_path / "b", ranks=1, **changes), ranks=1)
    expected = weights(first, "best" if source == "run" else "latest")
    got = weights(run)
    assert all((got[name] - expected[name]).abs().max() < 1e-12 for name in expected)
    state = json.loads((run.checkpoints / "latest" / "state.json").read_text())
    assert state["step"] == 1


def test_damaged_newest_checkpoint_is_passed_over_with_a_finding(pool, tmp_path):
    run = make_run(tmp_path, ranks=2, checkpoint={"every": "2 steps"}, stop_after="6 steps")
    train(pool, run, ranks=2)
    newest = run.checkpoints / "checkpoint-6" / "model.safetensors"
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    train(pool, change_run(run, stop_after=None), ranks=2, attempt=1)
    starts = [e.data for e in read_events(run.events) if e.kind == "start" and e.attempt == 1]
    assert {start["step"] for start in starts} == {4}
    findings = [e.data["finding"] for e in read_events(run.events) if e.kind == "finding"]
    assert [f["slug"] for f in findings] == ["checkpoint-damaged"]
    assert "checkpoint-6" in findings[0]["what"]
