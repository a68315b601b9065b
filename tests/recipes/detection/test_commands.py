"""The command line of guide G1's team, word for word."""

import json

import pytest

from tests.cli.command import run_cli

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize(
    ("words", "cache"),
    [(["--cache"], "ram"), (["--cache", "disk"], "disk"), (["cache=disk"], "disk")],
)
def test_the_words_that_ultralytics_has_are_understood(
    shapes, small, tmp_path, monkeypatch, words, cache
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    answer = run_cli(
        "plan", "detection", f"data={shapes}", f"model={small}", "--imgsz", "64", "--epochs", "2",
        "--batch", "8", "--amp", *words, "--json",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    plan = json.loads(answer.out)["plan"]
    assert plan["loading"]["cache"]["value"] == cache
    assert plan["batch"]["global_batch_size"]["value"] == 8
    assert plan["batch"]["total_steps"]["value"] == 6  # 24 images, 2 epochs
