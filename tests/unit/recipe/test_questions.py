"""Questions to a child process and its answers survive the way there and back."""

import json
from pathlib import Path

import pytest

from phalanx.codec import from_json, to_json
from phalanx.errors import Finding
from phalanx.recipe.benchmarking import BenchmarkSettings, TaskResult
from phalanx.recipe.questions import (
    BenchmarkAnswer,
    BenchmarkQuestion,
    CollectAnswer,
    CollectQuestion,
    Difference,
    ExportAnswer,
    ExportQuestion,
    Film,
)

FINDING = Finding(slug="a", what="b", why="c", fix="d", severity="note")
RESULT = TaskResult("near", 3, 4, {"gap": 0.5})


@pytest.mark.parametrize(
    "value",
    [
        CollectQuestion(recipe="policy", settings={"tasks": ["reach"]}, out=Path("new")),
        CollectAnswer(path=Path("new"), said=["5 carts"], findings=[FINDING]),
        BenchmarkQuestion(
            recipe="bev",
            options={"width": 8},
            file=Path("model.safetensors"),
            benchmark=None,
            flags="--episodes",
            settings=BenchmarkSettings(None, 5, None, None, True, 0, 2),
            video=Path("films"),
            device="cuda:1",
        ),
        BenchmarkAnswer(
            benchmark="marks",
            tasks=[RESULT],
            baselines={"resting": [RESULT]},
            media=[Film("near", Path("films/near.mp4"), "3 of 4")],
            seconds=1.5,
            device="CPU",
        ),
        ExportQuestion(
            recipe="digits", options={}, file=Path("a.pt"), form="onnx", folder=Path("out")
        ),
        ExportAnswer(differences=[Difference("logits", [2, 10], float("inf"), 1e-4)], samples=2),
    ],
)
def test_it_comes_back_equal(value):
    assert from_json(type(value), json.loads(json.dumps(to_json(value)))) == value
