"""A line about a run, from the ends of its files."""

import json

import pytest

from phalanx.watch import summary as summary_module
from phalanx.watch.summary import Summaries, summarise
from tests.unit.watch.run_folder import Run, whole_run


def test_of_a_whole_run(tmp_path):
    made = whole_run(tmp_path)
    made.run.results_file.write_text("time,step,accuracy\n1,100,0.8\n2,200,0.9\n3,200,oops\n")
    found = summarise(made.run)
    assert (found.status, found.step, found.progress) == ("finished", 200, 1.0)
    assert (found.metric, found.best, found.recipe) == ("accuracy", 0.9, "digits")
    assert (found.restarts, found.findings, found.ranks) == (1, 1, 2)
    assert found.gpu_hours == pytest.approx(2 * 30 / 3600)


def test_running_gone_and_a_script(tmp_path):
    made = Run(tmp_path, "a")
    made.begin(device="cpu")
    made.step(10)
    summaries = Summaries()
    assert summaries.of(made.run).status == "gone"
    made.hold()
    assert summaries.of(made.run).status == "running", "its files have not changed, its command has"
    script = Run(tmp_path, "b", plan_record={})
    script.write("attempt", 0.0, ranks=3)
    found = summaries.of(script.run)
    assert (found.kind, found.recipe, found.ranks) == ("launch", "train.py", 3)


def test_unchanged_runs_are_not_read_again_in_this_process_or_the_next(tmp_path, monkeypatch):
    made = whole_run(tmp_path)
    first = Summaries()
    first.of(made.run)
    first.keep()
    monkeypatch.setattr(summary_module, "summarise", None)
    assert first.of(made.run).step == 200
    assert Summaries().of(made.run).step == 200
    monkeypatch.undo()
    made.step(210, attempt=1, time_s=31.0)
    assert Summaries().of(made.run).step == 200, "the outcome's"
    made.begin(attempt=2, time_s=40.0)
    assert Summaries().of(made.run).status == "gone"


@pytest.mark.parametrize("damage", ["plan.json", "job.yaml", "events", "results.csv", "cache"])
def test_damage_costs_a_figure_and_not_the_list(tmp_path, damage):
    made = whole_run(tmp_path)
    made.run.results_file.write_text("accuracy\n0.5\n")
    first = Summaries()
    first.of(made.run)
    first.keep()
    if damage == "events":
        for path in made.run.events.iterdir():
            path.write_bytes(b"\xff\x00{[\n" * 10)
    elif damage == "cache":
        for path in (tmp_path.parent, summary_module.cache_folder("watch")):
            if path.name == "watch":
                (path / "runs.json").write_text('{"format": 1, "runs": [3]}')
    else:
        (made.run.path / damage).write_bytes(b"\xff\xfe[{")
    assert Summaries().of(made.run).name == "first"


def test_ends_of_long_files_are_enough(tmp_path):
    made = whole_run(tmp_path)
    line = json.dumps({"v": 1, "t": 1.8e9 + 29, "kind": "usage", "writer": "supervisor"})
    path = made.run.events / "supervisor.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], *[line] * 8000, lines[-1]]) + "\n")
    assert path.stat().st_size > 2**18
    found = summarise(made.run)
    assert found.status == "finished"
    assert found.gpu_hours == pytest.approx(2 * 30 / 3600)
