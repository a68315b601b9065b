"""Peak memory on a real GPU is what the plan predicted, with and without recomputation."""

import json

import pytest

from tests.fixtures.event_lines import read_events
from tests.gpu.test_strategies import LEARNERS
from tests.ranks.command import latest, phalanx

MODEL = ("width=512", "heads=8", "depth=8", "length=512", "symbols=8192", "samples=64")


def train(folder, word, precision):
    code, _, err = phalanx(
        *("train", f"{LEARNERS}:SequenceRecipe", "--gpus", "0,", "--steps", "4"),
        *("--batch-size", "16", "--precision", precision, "--activation-checkpointing", word),
        *(*MODEL, "evaluate.every=null", "evaluate.batch_size=1", "logging.every=1"),
        cwd=folder,
        timeout_s=240,
    )
    assert code == 0, err
    run = latest(folder)
    steps = [e.data for e in read_events(run.events) if e.kind == "step"]
    predicted = json.loads(run.plan_file.read_text())["predicted"]["memory_bytes"]["value"]
    return predicted, max(step["memory_bytes"] for step in steps)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_memory_is_as_predicted(tmp_path, precision):
    measured = {}
    for word in ("off", "on"):
        folder = tmp_path / word
        folder.mkdir()
        predicted, measured[word] = train(folder, word, precision)
        assert predicted == pytest.approx(measured[word], rel=0.1), word
    assert measured["on"] < 0.6 * measured["off"]
