"""Every command of README and docs for the lora recipe, with a small model and few rows."""

import shutil

import pytest

from tests.cli.documented import asked, assert_runs
from tests.cli.kept_launcher import answers_in

pytestmark = [pytest.mark.ranks, pytest.mark.full]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model, rows):
    path = tmp_path_factory.mktemp("docs")
    shutil.copytree(model, path / "model")
    shutil.copy(rows, path / "rows.jsonl")
    with answers_in(path):
        yield path


@pytest.mark.parametrize("question", asked("lora"), ids=str)
def test_fine_tuning(question, folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    assert_runs(question)
