"""What events become: figures, marks, findings; whatever order and damage they come in."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.codec import from_json, to_json
from phalanx.run.event_kinds import KINDS
from phalanx.run.event_kinds.fields import field_names
from phalanx.run.events import EVALUATOR, parse
from phalanx.watch.ranks import Rank
from phalanx.watch.state import RunState
from phalanx.watch.watched_run import WatchedRun
from tests.fixtures.event_lines import make_event
from tests.fixtures.recorded import recorded
from tests.unit.watch.run_folder import BEGAN, Run, plan, whole_run


def read(made):
    watched = WatchedRun(made.run, is_kept=False, clock=lambda: BEGAN + 30)
    watched.reader.read_all()
    return watched


def test_a_whole_run(tmp_path):
    watched = read(whole_run(tmp_path))
    state = watched.state
    assert (watched.status(), state.step, watched.progress()) == ("finished", 200, 1.0)
    assert (state.num_restarts, state.saved_step, state.num_damaged) == (1, 200, 0)
    assert watched.best_metric == ("accuracy", 0.9, 200)
    assert watched.device_hours() == pytest.approx(2 * 30 / 3600)
    assert watched.speed().mfu == pytest.approx(2e9 * 600 / (1e13 * 2))
    kinds = [note.kind for note in sorted(state.notes, key=lambda n: n.time_s)]
    assert kinds == ["death", "revision", "restart", "finding", "checkpoint", "outcome"]


def test_steps_that_were_done_again_are_drawn_once(tmp_path):
    points = read(whole_run(tmp_path)).state.series["train/loss"].points()
    assert [point.step for point in points] == [float(step) for step in range(10, 201, 10)]


def test_the_slow_rank_is_marked_and_shares_are_of_a_step(tmp_path):
    ranks = read(whole_run(tmp_path)).state.ranks.by_number
    assert [rank.is_straggler for _, rank in sorted(ranks.items())] == [False, True]
    shares = ranks[1].shares
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["data"] == pytest.approx(0.05 / 0.145)
    assert ranks[0].usage["gpu_temperature_c"] == 60


@pytest.mark.parametrize(
    ("device", "is_alone", "waiting"),
    [("cuda:0 NVIDIA H200", True, 0), ("cuda:0", False, 1), ("cpu", False, 3), ("cpu", True, 0)],
)
def test_waiting_for_the_device_is_no_communication(device, is_alone, waiting):
    parts = {"data": 1.0, "agree": 1.0, "forward": 4.0, "backward": 1.0, "update": 1.0, "read": 2.0}
    rank = Rank(device, parts=parts, is_alone=is_alone)
    assert rank.shares["communication"] == pytest.approx(waiting / 10)
    assert rank.shares["compute"] == pytest.approx((9 - waiting) / 10)


def test_a_run_without_its_command_is_gone_and_with_it_is_running(tmp_path):
    made = Run(tmp_path)
    made.begin()
    made.step(10)
    assert read(made).status() == "gone"
    made.hold()
    watched = read(made)
    assert watched.status() == "running"
    assert watched.elapsed_s() == 30.0


def test_a_resumed_run_has_no_outcome_until_it_ends_again(tmp_path):
    made = Run(tmp_path)
    made.begin()
    made.step(10)
    made.end("stopped", step=10)
    made.begin(attempt=1, time_s=40.0, step=10)
    made.hold()
    assert read(made).status() == "running"


def test_a_launched_script_has_no_plan(tmp_path):
    made = Run(tmp_path, plan_record={})
    made.write("attempt", 0.0, ranks=1)
    made.write(
        "start",
        0.1,
        rank=0,
        world=1,
        pid=1,
        device="cuda:0",
        backend="nccl",
        step=None,
        resumed_from=None,
        source="launch",
    )
    made.write(
        "step",
        1.0,
        step=5,
        epoch=None,
        loss=1.5,
        terms={},
        lr=None,
        grad_norm=None,
        total_steps=50,
        source="output",
    )
    made.write(
        "step",
        2.0,
        step=None,
        epoch=None,
        loss=None,
        terms={},
        lr=None,
        grad_norm=None,
        total_steps=None,
        source="output",
    )
    made.write(
        "evaluate", 3.0, step=5, epoch=None, metrics={"acc": 0.5}, is_best=False, source="output"
    )
    watched = read(made)
    assert watched.is_script
    assert (watched.progress(), watched.best_metric) == (0.1, ("acc", 0.5, None))
    assert watched.speed().mfu is None


def test_without_flops_there_is_no_mfu(tmp_path):
    made = Run(tmp_path, plan_record=plan() | {"forecast": {"peak_flops": 0.0}})
    made.begin()
    made.step(10)
    assert read(made).speed().mfu is None


def test_reads_back_from_json(tmp_path):
    state = read(whole_run(tmp_path)).state
    again = from_json(RunState, json.loads(json.dumps(to_json(state))))
    assert to_json(again) == to_json(state)
    later = make_event(
        "step", BEGAN + 99, "rank-0", 1, {"step": 300, "loss": 1.0, "terms": {}, "lr": 1}
    )
    for one in (state, again):
        one.take(later)
    assert to_json(again) == to_json(state)


def test_memory_is_bounded_by_hostile_numbers_of_names():
    state = RunState()
    for number in range(4000):
        metrics = {f"m{number}": 1.0}
        data = {"step": 1, "metrics": metrics, "is_best": False}
        state.take(make_event("evaluate", 1.0, "rank-0", 0, data))
        finding = {"slug": f"f{number}", "what": "x", "why": "y", "fix": "z"}
        state.take(make_event("finding", 1.0, "s", 0, {"finding": finding}))
        state.take(make_event("media", 1.0, "rank-0", 0, {"step": 1, "name": "n", "file": "f"}))
        state.take(make_event("usage", 1.0, "s", 0, {"rank": number * 7, "memory_bytes": 1}))
    assert len(state.series) <= 1500
    assert len(state.findings) <= 100
    assert len(state.media) <= 400
    assert len(state.notes) <= 600


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.sampled_from(sorted({*KINDS, "media"})),
    st.dictionaries(st.sampled_from(sorted(set().union(*map(field_names, KINDS.values())))), _JSON),
    _JSON,
)
def test_no_event_that_parses_breaks_the_reading(kind, data, odd):
    state = RunState()
    for time_s, attempt in ((1.0, 0), (odd, 0), (1.0, odd)):
        line = {"v": 1, "t": time_s, "kind": kind, "writer": "supervisor", "attempt": attempt}
        event = parse(json.dumps({**line, **data}).encode())
        if event is not None:
            state.take(event)
    json.dumps(to_json(state))


def test_an_evaluation_after_the_run_is_shown_and_is_no_point_of_its_curves(tmp_path):
    made = whole_run(tmp_path)
    before = read(made).state
    made.evaluated(9000.0)
    made.evaluated(9100.0, 0.5, benchmark="marks", samples=None)
    watched = read(made)
    state = watched.state
    assert (state.best, state.metrics) == (before.best, before.metrics)
    assert (state.last_s, watched.elapsed_s()) == (before.last_s, 30.0)
    assert state.series["test/accuracy"].points() == before.series["test/accuracy"].points()
    assert state.num_damaged == 0
    texts = [note.text for note in state.notes if note.kind == "evaluate"]
    assert texts == [
        "evaluated raw weights of step 100 on test split: accuracy 0.99",
        "evaluated raw weights of step 100 on marks: accuracy 0.5",
    ]
    assert [(one.benchmark, one.metrics) for one in state.evaluations] == [
        (None, {"accuracy": 0.99}),
        ("marks", {"accuracy": 0.5}),
    ]


def test_films_and_samples_of_an_evaluation_are_shown_whatever_file_is_read_first(tmp_path):
    made = whole_run(tmp_path)
    first = made.film(100)
    second = made.film(100, EVALUATOR, 9000.0)
    for writer, time_s, text in ((EVALUATOR, 9000.0, "new"), ("rank-0", 20.0, "old")):
        samples = [{"given": "1", "made": text, "wanted": "2"}]
        made.write("samples", time_s, writer, step=100, samples=samples)
    state = read(made).state
    assert first != second, "the film of training is not replaced"
    assert {media.file for media in state.media} == {first, second}
    assert [sample["made"] for sample in state.samples] == ["new"]


def test_every_kind_that_is_recorded_is_read_without_damage(tmp_path):
    made = Run(tmp_path)
    for kind, role in recorded():
        for data in recorded()[kind, role]:
            writer = "rank-0" if role == "rank" else role
            made.write(kind, 1.0, writer, **data)
    state = read(made).state
    assert state.num_damaged == 0
    shown = {note.kind for note in state.notes}
    assert {"nodes", "evaluate", "export", "hang", "stop", "death", "revision"} <= shown
    assert state.evaluations and state.media and state.samples and state.doing == ""
