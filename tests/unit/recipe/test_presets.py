"""The presets that ship are complete job files: every option of their recipe stands in them."""

import pytest

from phalanx.job import check_job, load_job
from phalanx.job.presets import describe_preset, list_presets
from phalanx.planner.solve import solve_plan
from phalanx.recipe.loading import builtin_recipes
from phalanx.recipes.lora.options import LoraOptions
from tests.ranks.runs import RECIPE, machine, trace_recipe

LORA = builtin_recipes()["lora"]


@pytest.mark.parametrize("name", [None, *list_presets(LORA)])
def test_every_value_of_lora_is_visible(name):
    loaded = load_job(LORA / "job.yaml", [f"preset={name}"] if name else [])
    assert loaded.job.recipe == "lora"
    assert not check_job(loaded, known_recipes=builtin_recipes())
    assert set(loaded.job.options) == set(LoraOptions.model_fields)
    LoraOptions.model_validate(loaded.job.options)
    assert name is None or describe_preset(list_presets(LORA)[name])


def test_the_paper_preset_keeps_checkpoints_40_80_and_120_of_2500_rows():
    job = load_job(LORA / "job.yaml", ["preset=paper_r64"]).job
    assert job.options["test_share"] == 0  # nothing of the 2,500 is held out
    options = {"samples": 2500, "cast": True}
    job = job.model_copy(update={"recipe": RECIPE, "options": options})
    trace, findings = trace_recipe(RECIPE, options)
    assert trace is not None, findings
    plan, _ = solve_plan(job, machine(), trace)
    every, total = plan.saving.save_every_steps.value, plan.batch.total_steps.value
    assert list(range(every, total + 1, every)) == [40, 80, 120]
    assert job.checkpoint.keep >= 3
