"""A job that is started again is planned from memory; ranks find out when that no longer holds."""

import json
from pathlib import Path

import pytest

from phalanx.planner.schema.plan import Decision, Plan
from phalanx.prepare.validated_before import keep_comparison, recall_comparison
from tests.fixtures.event_lines import read_events
from tests.ranks.command import latest, phalanx
from tests.ranks.runs import RECIPE, machine, make_run

JOB = """
recipe: mine.py:Hidden
steps: 2
global_batch_size: 10
precision: fp64
logging: {every: 1, tensorboard: false}
devices: {cpu: 1}
"""
# Its samples are counted in a file that nothing names: nobody can see that it has changed.
HIDDEN = """
class Hidden(Parity):
    def data(self, split):
        size = int(Path("{file}").read_text())
        return Rows(size, 1, augment=False, cast=self.options.cast)
"""


def plans_of(folder):
    """Every revision of the newest run's plan."""
    return [
        json.loads(path.read_text()) for path in sorted(latest(folder).path.glob("plan-?.json"))
    ]


@pytest.mark.full
def test_a_second_start_plans_from_memory_and_anew_for_other_data(tmp_path):
    file, folder = tmp_path / "elsewhere" / "size", tmp_path / "here"
    file.parent.mkdir()
    folder.mkdir()
    file.write_text("40")
    text = Path(RECIPE.rpartition(":")[0]).read_text() + HIDDEN.format(file=file)
    (folder / "mine.py").write_text(f"from pathlib import Path\n{text}")
    (folder / "job.yaml").write_text(JOB)
    for is_known in (False, True):
        code, _, err = phalanx("train", "job.yaml", cwd=folder)
        assert code == 0, err
        assert plans_of(folder)[0]["loading"]["is_from_memory"] is is_known
    file.write_text("30")
    code, out, err = phalanx("train", "job.yaml", cwd=folder)
    assert code == 0, err
    assert "the data has changed since the recipe was asked" in out + err
    plans = plans_of(folder)
    assert [plan["batch"]["num_samples"]["value"] for plan in plans] == [40, 30], (
        "in one run directory"
    )
    assert [plan["loading"]["is_from_memory"] for plan in plans] == [True, False]


@pytest.mark.full
def test_a_run_that_compared_is_not_compared_again(tmp_path):
    words = ["digits", "--cpu", "1", "channels_last=on", "--stop-after", "1", "steps"]
    for is_compared in (True, False):
        code, _, err = phalanx("train", *words, cwd=tmp_path)
        assert code == 75, err
        assert plans_of(tmp_path)[0]["execution"]["compared_with_eager"]["value"] is is_compared
        kinds = {event.kind for event in read_events(latest(tmp_path).events)}
        assert ("compared" in kinds) is is_compared


def test_a_comparison_counts_for_the_same_choices_only(tmp_path):
    run = make_run(tmp_path, ranks=1)
    plan = Plan.from_json(json.loads(run.plan_file.read_text()))
    plan = plan.replace(compared_with_eager=Decision(True, "compile"))
    assert recall_comparison(plan, machine()) == plan
    keep_comparison(plan, run)
    known = recall_comparison(plan, machine())
    assert not known.execution.compared_with_eager.value
    assert "no difference" in known.execution.compared_with_eager.reason
    assert known.execution.is_code_kept
    other = plan.replace(micro_batch_size=Decision(2, "another"))
    assert recall_comparison(other, machine()) == other
    other = plan.replace(identity={**plan.history.identity, "data_fingerprint": "another"})
    assert recall_comparison(other, machine()) == other
