"""Every command of README and docs for the bev recipe, with few episodes and short runs."""

import pytest

from tests.cli.command import run_cli
from tests.cli.documented import asked, assert_as_shown
from tests.cli.kept_launcher import answers_here
from tests.recipes.bev.recorded_routes import write_routes

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("docs")
    write_routes(path / "pdm_lite")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("XDG_CACHE_HOME", str(path / "cache"))
        with answers_here(patch):
            yield path


@pytest.mark.parametrize("question", asked("bev"), ids=str)
def test_a_planner(question, folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    command, words = question
    code, out, err = run_cli(*words)
    assert code == 0, f"{command}\n{out}{err}"
    assert_as_shown(command, out + err)
