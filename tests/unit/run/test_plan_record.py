"""The plan of a run for those who need a name and a value: of every schema, damaged or missing."""

import json
from pathlib import Path

from phalanx.planner.schema.plan import Plan
from phalanx.run.directory import RunDirectory
from phalanx.run.plan_record import choice_in, read_plan_record

GOLDEN = Path(__file__).parents[2] / "golden" / "run-schema-1"


def test_names_are_the_same_with_and_without_sections(tmp_path):
    before = read_plan_record(RunDirectory(GOLDEN))
    run = RunDirectory(tmp_path)
    run.plan_file.write_text(json.dumps(Plan.from_json(before).to_json()))
    now = read_plan_record(run)
    assert choice_in(now, "micro_batch_size") == choice_in(before, "micro_batch_size") == 32
    assert now["forecast"] == before["forecast"]
    assert now["revision"] == before["revision"] == 1


def test_what_is_not_there_or_damaged_is_nothing(tmp_path):
    run = RunDirectory(tmp_path)
    assert read_plan_record(run) == {}
    for text in ("{", "[]", "7"):
        run.plan_file.write_text(text)
        assert read_plan_record(run) == {}
    assert choice_in({"lr": 3}, "lr") is None
