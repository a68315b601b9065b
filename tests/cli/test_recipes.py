"""`phalanx recipes` and `phalanx explain`."""

import pytest

from phalanx.job.keys import job_keys
from tests.cli.command import run_cli


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_list_names_every_recipe():
    answer = run_cli("recipes")
    assert answer.code == 0
    assert "digits" in answer.out


def test_show_prints_job_and_options():
    answer = run_cli("recipes", "show", "digits")
    assert answer.code == 0
    assert "recipe: digits" in answer.out
    assert "Dropout before the classifier." in answer.out


def test_unknown_recipe_is_a_finding():
    for verb in ("show", "copy"):
        answer = run_cli("recipes", verb, "digit")
        assert answer.code == 2
        assert "did you mean `digits`?" in answer.err


def test_copy_makes_a_recipe_that_plans(tmp_path):
    answer = run_cli("recipes", "copy", "digits", "mine")
    assert answer.code == 0, answer.err
    assert (tmp_path / "mine" / "recipe.py").is_file()
    planned = run_cli("plan", "mine/job.yaml", "width=8")
    assert planned.code == 0, planned.err
    assert "mine/recipe.py:DigitsRecipe" in planned.out


def test_copy_never_overwrites(tmp_path):
    (tmp_path / "mine").mkdir()
    answer = run_cli("recipes", "copy", "digits", "mine")
    assert answer.code == 2
    assert "[folder-exists]" in answer.err
    assert list((tmp_path / "mine").iterdir()) == []


def test_explain_knows_every_key():
    answer = run_cli("explain")
    assert answer.code == 0
    for key in job_keys():
        assert key in answer.out


def test_explain_one_key_and_a_section():
    assert "stated for a global batch" in run_cli("explain", "optimizer.lr").out
    section = run_cli("explain", "schedule").out
    assert "schedule.warmup" in section
    assert "optimizer" not in section


def test_explain_offers_the_nearest_key():
    answer = run_cli("explain", "optimizer.lrr")
    assert answer.code == 2
    assert "did you mean `optimizer.lr`?" in answer.err


@pytest.mark.parametrize(
    "argv", [["traim"], ["train", "--epochss", "3"], ["train", "--epochs", "x"]]
)
def test_wrong_usage_is_a_finding_with_exit_code_2(argv):
    answer = run_cli(*argv)
    assert answer.code == 2
    assert "error[usage]: " in answer.err
    assert "fix: phalanx" in answer.err


def test_wrong_usage_points_at_the_help_that_exists():
    assert "fix: phalanx --help" in run_cli("traim").err
    assert "fix: phalanx train --help" in run_cli("train", "--epochss", "3").err


def test_a_recipe_file_without_a_job_gets_options_to_add(tmp_path):
    (tmp_path / "mine.py").write_text("class Mine: ...\n")
    answer = run_cli("train", "mine.py:Mine")
    assert answer.code == 2
    assert "fix: --epochs 10" in answer.err
    assert "fix: --batch-size 64" in answer.err
