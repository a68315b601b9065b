"""Plans may be made of what a recipe answered before, as long as nothing that can be seen changed;
ranks look whether the data is as it was."""

import os
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from phalanx.errors import Finding
from phalanx.planner.schema.footprint import Line
from phalanx.planner.schema.operators import Operator
from phalanx.planner.schema.trace import Trace
from phalanx.prepare import plan as preparing
from phalanx.prepare import trace as tracing
from phalanx.prepare import trace_cache
from phalanx.prepare.launcher import Launcher
from phalanx.prepare.trace_cache import remembering
from tests.cli.command import fixture_machine

OPERATOR = Operator("memory", "forward", "fp32", 3, Line(0, 0), Line(4, 8), None, "add")
TRACE = Trace(
    recipe_fingerprint="a",
    options={},
    num_samples=1000,
    num_test_samples=10,
    data_fingerprint="first",
    parameters=10,
    trainable_parameters=10,
    parameter_bytes=40,
    has_batchnorm=False,
    metric="accuracy",
    metric_mode="max",
    operators={"fp32": [OPERATOR]},
)
CODE = ("fp32", "bf16+compiled")


class Asked:
    """Counts how often the recipe itself is asked; its data differ each time."""

    def __init__(self, trace=TRACE, findings=()):
        self.times, self.trace, self.findings = 0, trace, list(findings)

    def __call__(self, spec, options, precisions=(), launcher=None, say=None):
        self.times += 1
        trace = self.trace and replace(
            self.trace,
            options={"data": "data", **options},
            data_fingerprint=f"look {self.times}",
        )
        return trace, self.findings


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.bin").write_bytes(b"rows")
    path = tmp_path / "mine.py"
    path.write_text("from layers import Net\n")
    (tmp_path / "layers.py").write_text("width = 3\n")
    return f"{path}:Mine"


def entries():
    return list(Path(os.environ["XDG_CACHE_HOME"], "phalanx", "traces").iterdir())


def test_an_answer_is_remembered_whole_and_says_so(recipe):
    asked = Asked()
    recall = remembering(asked, is_fresh=False)
    first, no_findings = recall(recipe, {"width": 3})
    again, (finding,) = recall(recipe, {"width": 3})
    assert (asked.times, no_findings) == (1, [])
    assert again == first
    assert (finding.slug, finding.severity) == ("trace-remembered", "note")
    assert "less than a minute" in finding.what
    assert recall(recipe, {"width": 4})[0].options["width"] == 4, "other options"
    assert asked.times == 2
    recall(recipe, {"width": 4}, CODE)
    assert asked.times == 3, "what is compiled is more than was asked before"


def test_weights_that_were_missing_are_looked_for_again(recipe):
    missing = Finding(slug="no-base", what="a", why="b", fix="c")
    asked = Asked(replace(TRACE, weights_findings=[missing]))
    recall = remembering(asked, is_fresh=False)
    recall(recipe, {})
    asked.trace = TRACE
    assert recall(recipe, {})[0].weights_findings == [] and asked.times == 2


def test_training_asks_anew_but_not_about_compiled_code(recipe):
    """Which takes seconds; as long as the recipe itself computes the same."""

    class Compiling(Asked):
        def __call__(self, spec, options, precisions=(), launcher=None, say=None):
            self.precisions = precisions
            trace, findings = super().__call__(spec, options)
            code = {name: [OPERATOR] for name in precisions if name.endswith("+compiled")}
            return replace(trace, operators={**trace.operators, **code}), findings

    asked = Compiling()
    fresh = remembering(asked, is_fresh=True)
    first, _ = fresh(recipe, {}, CODE)
    assert asked.precisions == CODE
    second, _ = fresh(recipe, {}, CODE)
    assert asked.precisions == ("fp32",) and second.operators == first.operators
    assert second.data_fingerprint == "look 2", "the data are looked at"
    asked.trace = replace(TRACE, operators={"fp32": [OPERATOR._replace(times=9)]})
    third, _ = fresh(recipe, {}, CODE)
    assert asked.precisions == CODE and third.operators["fp32"][0].times == 9


def edit_recipe(folder, monkeypatch):
    (folder / "mine.py").write_text("from layers import Net, Other\n")


def edit_layers(folder, monkeypatch):
    (folder / "layers.py").write_text("width = 4\n")


def change_data(folder, monkeypatch):
    (folder / "data" / "rows.bin").write_bytes(b"other rows")


def add_data(folder, monkeypatch):
    (folder / "data" / "more.bin").write_bytes(b"")


def let_time_pass(folder, monkeypatch):
    late = time.time() + trace_cache.LIFE_S
    monkeypatch.setattr(trace_cache.time, "time", lambda: late)


def turn_the_clock_back(folder, monkeypatch):
    monkeypatch.setattr(trace_cache.time, "time", lambda: 0.0)


def cut_off(folder, monkeypatch):
    (entry,) = entries()
    entry.write_text(entry.read_text()[:-20])


def write_other_fields(folder, monkeypatch):
    (entry,) = entries()
    entry.write_text(entry.read_text().replace('"num_samples"', '"count"'))


def write_nonsense(folder, monkeypatch):
    (entry,) = entries()
    entry.write_text("[1, 2]")


def move(folder, monkeypatch):
    monkeypatch.chdir(folder / "data")


def exchange_torch(folder, monkeypatch):
    monkeypatch.setattr(trace_cache, "version", lambda name: "0.0")


@pytest.mark.parametrize(
    "change",
    [
        edit_recipe,
        edit_layers,
        change_data,
        add_data,
        let_time_pass,
        turn_the_clock_back,
        cut_off,
        write_other_fields,
        write_nonsense,
        move,
        exchange_torch,
    ],
)
def test_the_recipe_is_asked_again_after(change, recipe, tmp_path, monkeypatch):
    asked = Asked()
    recall = remembering(asked, is_fresh=False)
    recall(recipe, {})
    change(tmp_path, monkeypatch)
    answer, findings = recall(recipe, {})
    assert (asked.times, findings) == (2, [])
    assert answer.data_fingerprint == "look 2"


def test_a_recipe_that_is_wrong_or_missing_is_asked_each_time(recipe):
    broken = Asked(trace=None)
    for spec in (recipe, "nowhere.py:Mine"):
        for _ in range(2):
            assert remembering(broken, is_fresh=False)(spec, {}) == (None, [])
    assert broken.times == 4


def test_the_oldest_answers_go(recipe, monkeypatch):
    monkeypatch.setattr(trace_cache, "_KEPT", 3)
    recall = remembering(Asked(), is_fresh=False)
    for width in range(5):
        recall(recipe, {"width": width})
    assert len(entries()) == 3


def test_a_folder_that_cannot_be_written_costs_the_memory_only(recipe, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    asked = Asked()
    for _ in range(2):
        assert remembering(asked, is_fresh=False)(recipe, {})[0] is not None
    assert asked.times == 2


def test_training_from_memory_is_checked_by_the_ranks(tmp_path, monkeypatch):
    # Data in a place that nobody can see: only the recipe knows that they have changed.
    monkeypatch.chdir(tmp_path)
    asked = Asked()
    monkeypatch.setattr(preparing, "trace_recipe", asked)

    def prepared(**settings):
        machine = fixture_machine("8xa100")
        return preparing.prepare("digits", machine=machine, is_elsewhere=True, **settings)

    def fingerprint(done):
        return done.trace.data_fingerprint

    launcher = Mock(spec=Launcher)
    first = prepared(is_fresh=False, launcher=launcher)
    assert (fingerprint(first), first.plan.loading.is_from_memory, first.prepare_anew) == (
        "look 1",
        False,
        None,
    )
    again = prepared(is_fresh=False, launcher=launcher)
    assert (fingerprint(again), again.plan.loading.is_from_memory) == ("look 1", True)
    assert fingerprint(prepared(is_fresh=True, launcher=launcher)) == "look 2"
    assert fingerprint(prepared(is_fresh=False)) == "look 2", "that answer is remembered too"


def test_a_recipe_that_takes_too_long_is_a_finding_and_not_remembered(recipe, monkeypatch):
    monkeypatch.setattr(tracing, "_TIMEOUT_S", 0.01)
    found, (finding,) = remembering(tracing.trace_recipe, is_fresh=False)(recipe, {})
    assert (found, finding.slug) == (None, "trace-failed")
    assert "within 0.01 s" in finding.why
    assert not Path(os.environ["XDG_CACHE_HOME"]).exists()
