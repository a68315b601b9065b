"""Every command of README and docs for the bev recipe, with few episodes and short runs."""

import pytest

from tests.cli.documented import asked, assert_runs
from tests.cli.kept_launcher import answers_in
from tests.recipes.bev.recorded_routes import write_routes

pytestmark = [pytest.mark.ranks, pytest.mark.full]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("docs")
    write_routes(path / "pdm_lite")
    with answers_in(path):
        yield path


@pytest.mark.parametrize("question", asked("bev"), ids=str)
def test_a_planner(question, folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    assert_runs(question)
