"""Every wrong job file through the real command line: Findings, exit code 2, nothing created."""

import pytest

from phalanx.errors import ExitCode
from tests.cli.command import pretend_machine, run_cli
from tests.unit.job.wrong_jobs import WRONG_JOBS

WARNINGS = {"ignored-key", "more-problems"}
REFUSED = [wrong for wrong in WRONG_JOBS if set(wrong.slugs) - WARNINGS]


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("wrong", REFUSED, ids=lambda wrong: wrong.name)
def test_wrong_job_gives_its_findings_and_creates_nothing(tmp_path, monkeypatch, wrong):
    monkeypatch.chdir(tmp_path)
    if wrong.stage == "gpus":
        pretend_machine(monkeypatch, "2x4090")
    path = wrong.prepare(tmp_path)
    before = tree(tmp_path)
    answer = run_cli("train", str(path))
    assert answer.code == ExitCode.USAGE, answer.err
    for slug in wrong.slugs:
        assert f"[{slug}]: " in answer.err
    for text in wrong.says:
        assert text in answer.err
    assert answer.err.count("  why: ") == answer.err.count("  fix: ") >= len(wrong.slugs)
    assert "Traceback" not in answer.err
    assert tree(tmp_path) == before


GOOD = "recipe: digits\nepochs: 1\nglobal_batch_size: 64\n"

OPTIONS = {
    "missing data folder": ("options: {data: nowhere}\n", "wrong-option", "nowhere"),
    "unknown option": ("options: {widthh: 3}\n", "unknown-option", "did you mean `width`?"),
    "wrong option": ("options: {width: wide}\n", "wrong-option", "'wide'"),
    "option out of range": ("options: {dropout: 1.5}\n", "wrong-option", "1.5"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_wrong_recipe_option_is_a_finding(tmp_path, monkeypatch, name):
    text, slug, says = OPTIONS[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(GOOD + text)
    answer = run_cli("train", "job.yaml")
    assert answer.code == ExitCode.USAGE
    assert f"error[{slug}]: " in answer.err
    assert says in answer.err
    assert tree(tmp_path) == ["job.yaml"]


def test_two_wrong_options_are_reported_together(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = run_cli("train", "digits", "widthh=3", "dropout=2")
    assert answer.code == ExitCode.USAGE
    assert "[unknown-option]" in answer.err
    assert "[wrong-option]" in answer.err


def test_data_folder_without_its_files_names_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    answer = run_cli("train", "digits", "data=data")
    assert answer.code == ExitCode.USAGE
    assert answer.err.count("error[digits-data]") == 2
    assert "train.npz" in answer.err
    assert "test.npz" in answer.err


def test_misspelt_job_key_on_the_command_line_is_offered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = run_cli("train", "digits", "epochss=3")
    assert answer.code == ExitCode.USAGE
    assert "did you mean `epochs`?" in answer.err
