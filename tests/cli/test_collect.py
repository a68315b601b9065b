"""`phalanx recipes collect`: a recipe makes its own data."""

import json

import numpy as np
import pytest

from phalanx.engine.rank.collect import run_collect
from phalanx.verbs.collect import collect_data
from tests.cli.command import run_cli
from tests.ranks.runs import FIXTURES

RECIPE = f"{FIXTURES / 'recipes' / 'steering.py'}:Steering"


@pytest.fixture
def ask_here(monkeypatch, tmp_path):
    """The child process costs an import of torch; one test has it."""

    def ask(verb, question, **how):
        assert verb == "collect"
        request, result = tmp_path / "request", tmp_path / "result"
        request.write_text(json.dumps(question))
        run_collect(request, result)
        return json.loads(result.read_text()), ""

    monkeypatch.setattr("phalanx.prepare.engine_child.ask_engine", ask)


def test_a_recipe_collects_into_a_new_folder_and_says_how_far_it_is(tmp_path):
    told = []
    done = collect_data(RECIPE, ["episodes=5"], out=tmp_path / "carts", say=told.append)
    assert told == ["5 carts"]
    assert done.said == ["5 carts"]
    with np.load(done.path / "carts.npz") as arrays:
        assert len(arrays["seen"]) == 5


@pytest.mark.usefixtures("ask_here")
def test_the_command_says_what_was_written_and_what_to_do_with_it(tmp_path):
    out = tmp_path / "carts"
    answer = run_cli("recipes", "collect", RECIPE, "episodes=3", "--out", str(out))
    assert answer.code == 0, answer.err
    assert "3 carts" in answer.out
    assert f"data={out}" in answer.out
    again = run_cli("recipes", "collect", RECIPE, "--out", str(out))
    assert again.code == 2
    assert "folder-exists" in again.err


@pytest.mark.usefixtures("ask_here")
@pytest.mark.parametrize(
    ("argv", "slug", "said"),
    [
        ((RECIPE, "episode=3"), "unknown-option", "did you mean `episodes`"),
        ((RECIPE, "episodes=few"), "wrong-option", "Carts that the expert pushes"),
        (("digits",), "collects-nothing", "digits"),
        ((RECIPE, "broken=true"), "collect-failed", "the expert is asleep"),
        (("digit",), "unknown-recipe", "did you mean `digits`"),
    ],
)
def test_what_is_wrong_is_a_finding(argv, slug, said):
    answer = run_cli("recipes", "collect", *argv)
    assert answer.code in (1, 2)
    assert slug in answer.err
    assert said in " ".join(answer.err.split())


def test_show_lists_what_can_be_collected():
    answer = run_cli("recipes", "show", RECIPE)
    assert "phalanx recipes collect" in answer.out
    assert "Carts that the expert pushes." in answer.out
