"""The fast path on a real GPU: nothing is dropped, and it trains what `--fast off` trains."""

import json

import pytest

from tests.fixtures.event_lines import read_events
from tests.ranks.command import latest, phalanx
from tests.ranks.runs import RECIPE, assert_same_bits, losses

JOB = """
recipe: {recipe}
steps: 20
global_batch_size: 12
micro_batch_size: 6
seed: 3
logging: {{every: 1, tensorboard: false}}
checkpoint: {{every: null}}
evaluate: {{every: null}}
optimizer: {{name: sgd, lr: 0.01, clip_norm: 1.0}}
options: {{cast: true, blocks: 3, dropout: {dropout}}}
"""
ALL = ("compile=on", "channels_last=on", "cuda_graph=on")


def train(folder, *words):
    code, _, err = phalanx("train", "job.yaml", "--gpus", "1", *words, cwd=folder, timeout_s=600)
    assert code in (0, 75), err
    run = latest(folder)
    assert not [e for e in read_events(run.events) if e.kind == "dropped"], err
    return run


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_fast_path_trains_the_same(tmp_path, precision):
    (tmp_path / "job.yaml").write_text(JOB.format(recipe=RECIPE, dropout=0.0))
    fast = train(tmp_path, *ALL, f"precision={precision}")
    plan = json.loads(fast.plan_file.read_text())
    assert [plan["execution"][word.partition("=")[0]]["value"] for word in ALL] == ["on"] * 3
    slow = train(tmp_path, "--fast", "off", f"precision={precision}")
    tolerance = {"fp32": 1e-4, "bf16": 3e-2, "fp16": 5e-3}[precision]
    assert losses(fast) == pytest.approx(losses(slow), rel=tolerance)


def test_exact_resume_holds_on_the_fast_path(tmp_path):
    """With dropout, whose masks compiled code draws again."""
    (tmp_path / "job.yaml").write_text(JOB.format(recipe=RECIPE, dropout=0.2))
    whole = train(tmp_path, *ALL, "determinism=resume")
    halved = train(tmp_path, *ALL, "determinism=resume", "--stop-after", "7", "steps")
    code, _, err = phalanx("train", "--resume", cwd=tmp_path, timeout_s=600)
    assert code == 0, err
    assert losses(halved) == losses(whole)
    assert_same_bits(halved, whole)
