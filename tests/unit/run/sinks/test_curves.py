"""Curves for other tools, read back with those tools."""

import csv
import errno

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from phalanx.run.events import EVALUATOR
from phalanx.run.sinks.curves import CsvSink, TensorBoardSink, scalars
from tests.fixtures.event_lines import make_event
from tests.fixtures.recorded import as_written, recorded


def event(kind, time_s, writer="rank-0", **data):
    return make_event(kind, time_s, writer, data=as_written(kind, writer, **data))


def step_event(step, *, time_s=1.0, **changes):
    figures = {"step": step, "loss": 1 / step, "terms": {"fit": 1 / step}, "lr": 0.1}
    figures |= {"grad_norm": 2.0, "samples_per_s": 100.0, "memory_bytes": 2**30}
    return event("step", time_s, **figures | changes)


def evaluate_event(step, *, time_s=2.0, **metrics):
    metrics = metrics or {"accuracy": step / 100}
    return event("evaluate", time_s, step=step, epoch=step / 10, metrics=metrics)


def test_scalars_of_a_step_are_named_as_curves():
    assert scalars(step_event(4)) == {
        "train/loss": 0.25,
        "train/lr": 0.1,
        "train/grad_norm": 2.0,
        "speed/samples_per_s": 100.0,
        "system/memory_gib": 1.0,
    }


def test_several_terms_are_a_curve_each_and_one_is_not():
    curves = scalars(step_event(4, terms={"box": 0.1, "class": 0.15}))
    assert (curves["train/box"], curves["train/class"]) == (0.1, 0.15)
    assert "train/fit" not in scalars(step_event(4))


def test_what_was_evaluated_later_has_curves_of_its_own():
    found = {"step": 7, "metrics": {"accuracy": 0.5}}
    assert scalars(event("evaluated", 1.0, EVALUATOR, **found)) == {"evaluated/accuracy": 0.5}
    acted = event("evaluated", 1.0, EVALUATOR, benchmark="marks", **found)
    assert scalars(acted) == {"evaluated/marks/accuracy": 0.5}


def test_every_recorded_event_is_taken(tmp_path):
    sinks = TensorBoardSink(tmp_path / "board"), CsvSink(tmp_path / "results.csv")
    for (kind, role), variants in recorded().items():
        for data in variants:
            for sink in sinks:
                sink.take(make_event(kind, 1.0, "rank-0" if role == "rank" else role, data=data))
    for sink in sinks:
        sink.close()
    reader = EventAccumulator(str(tmp_path / "board"))
    reader.Reload()
    assert {"train/loss", "test/loss", "evaluated/loss"} <= set(reader.Tags()["scalars"])


def test_other_events_have_no_curves():
    assert scalars(event("stop", 1.0, "supervisor")) == {}


def test_tensorboard_reads_back_what_was_written(tmp_path):
    sink = TensorBoardSink(tmp_path)
    for step in (10, 20, 30):
        sink.take(step_event(step, time_s=float(step)))
    sink.take(evaluate_event(30, accuracy=0.5, loss=1.25))
    sink.take(event("stop", 1.0, "supervisor"))
    sink.close()
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    losses = accumulator.Scalars("train/loss")
    assert [(s.step, s.wall_time) for s in losses] == [(10, 10.0), (20, 20.0), (30, 30.0)]
    assert [s.value for s in losses] == pytest.approx([1 / 10, 1 / 20, 1 / 30])
    assert [s.value for s in accumulator.Scalars("test/accuracy")] == [0.5]
    assert [(s.step, s.value) for s in accumulator.Scalars("test/loss")] == [(30, 1.25)]


def test_a_second_writer_continues_the_curve(tmp_path):
    for step in (1, 2):
        sink = TensorBoardSink(tmp_path)
        sink.take(step_event(step))
        sink.close()
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    assert [s.step for s in accumulator.Scalars("train/loss")] == [1, 2]


def read_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_results_have_one_row_per_evaluation(tmp_path):
    path = tmp_path / "results.csv"
    sink = CsvSink(path)
    sink.take(evaluate_event(5))
    sink.take(step_event(10))
    assert len(read_rows(path)) == 1
    sink.take(evaluate_event(10, accuracy=0.5, time_s=3.5))
    sink.close()
    first, second = read_rows(path)
    assert first["train_loss"] == ""
    assert second == {
        "time": "3.5",
        "epoch": "1.0",
        "step": "10",
        "train_loss": "0.1",
        "accuracy": "0.5",
    }


def test_a_resumed_run_adds_rows_under_one_header(tmp_path):
    path = tmp_path / "results.csv"
    for step in (5, 10):
        CsvSink(path).take(evaluate_event(step))
    assert [row["step"] for row in read_rows(path)] == ["5", "10"]


def test_rows_keep_to_the_header_when_the_metrics_change(tmp_path):
    path = tmp_path / "results.csv"
    CsvSink(path).take(evaluate_event(5, accuracy=0.5, loss=1.5))
    CsvSink(path).take(evaluate_event(10, loss=1.0, accuracy=0.75))  # another order
    CsvSink(path).take(evaluate_event(15, loss=0.5))  # one less
    rows = read_rows(path)
    assert [row["loss"] for row in rows] == ["1.5", "1.0", "0.5"]
    assert [row["accuracy"] for row in rows] == ["0.5", "0.75", ""]


def test_tensorboard_shows_samples_as_a_table_of_text(tmp_path):
    sink = TensorBoardSink(tmp_path)
    samples = [{"given": "2 + 2", "made": "f\u00fcnf", "wanted": "4"}]
    sink.take(event("samples", 2.0, step=7, samples=samples))
    sink.close()
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    assert reader.SummaryMetadata("test/samples").plugin_data.plugin_name == "text"
    (shown,) = reader.Tensors("test/samples")
    assert shown.step == 7
    assert [dim.size for dim in shown.tensor_proto.tensor_shape.dim] == [2, 3]
    cells = [cell.decode() for cell in shown.tensor_proto.string_val]
    assert cells == ["given", "made", "wanted", "2 + 2", "f\u00fcnf", "4"]


@pytest.mark.parametrize(("number", "is_borne"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_a_full_disk_costs_rows_and_no_run(tmp_path, monkeypatch, number, is_borne):
    def fail(*_, **__):
        raise OSError(number, "planted")

    sink = CsvSink(tmp_path / "results.csv")
    monkeypatch.setattr("phalanx.run.sinks.curves.csv.DictWriter", fail)
    if is_borne:
        sink.take(evaluate_event(5))
        return
    with pytest.raises(OSError, match="planted"):
        sink.take(evaluate_event(5))
