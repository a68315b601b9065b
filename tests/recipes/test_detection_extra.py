"""Without its extra the detection recipe says what it needs, and under which licence."""

from phalanx.recipe.loading import load_recipe
from phalanx.recipes.detection import library
from tests.cli.command import run_cli


def test_the_extra_and_its_licence_are_named(monkeypatch):
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    (finding,) = load_recipe("detection", {}).check()
    assert finding.slug == "missing-extra"
    assert "ultralytics, torchvision, opencv-python" in finding.what
    assert "AGPL-3.0" in finding.why
    assert finding.fix == "pip install 'phalanx[detection]'"


def test_show_needs_no_extra():
    answer = run_cli("recipes", "show", "detection")
    assert answer.code == 0, answer.err
    for text in ("AGPL-3.0", "close_mosaic", "preset=large_batch", "preset=sgd", "best.pt"):
        assert text in answer.out, text
