"""Training on a real GPU: every precision learns, exact resume holds, CPU and GPU agree."""

import pytest

from tests.fixtures.event_lines import read_events
from tests.ranks.command import latest, phalanx
from tests.ranks.runs import RECIPE, assert_same_bits, losses

JOB = """
recipe: {recipe}
steps: 30
global_batch_size: 10
micro_batch_size: 3
precision: {precision}
determinism: resume
seed: 3
logging: {{every: 1, tensorboard: false}}
checkpoint: {{every: null}}
evaluate: {{every: 10 steps}}
loader: {{workers: 2}}
options: {{batchnorm: true}}
optimizer: {{clip_norm: 1.0}}
"""


def figures(run):
    return [e.data for e in read_events(run.events) if e.kind == "evaluate"][-1]["metrics"]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_digits_learns_in_every_precision(tmp_path, precision):
    code, _, err = phalanx(
        "train", "digits", "--gpus", "1", "--precision", precision, cwd=tmp_path, timeout_s=180
    )
    assert code == 0, err
    assert "cuda:0" in err
    assert figures(latest(tmp_path))["accuracy"] >= 0.97


def test_fp16_reports_its_loss_scale(tmp_path):
    phalanx("train", "digits", "--epochs", "1", "--precision", "fp16", cwd=tmp_path)
    steps = [e.data for e in read_events(latest(tmp_path).events) if e.kind == "step"]
    assert all(step["loss_scale"] > 0 for step in steps)


def test_gpu_and_cpu_agree(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB.format(recipe=RECIPE, precision="fp64"))
    curves = []
    for device in ("--gpus", "--cpu"):
        # Dropout is off: torch draws other numbers on CUDA than on the CPU from the same seed.
        code, _, err = phalanx("train", "job.yaml", device, "1", "dropout=0.0", cwd=tmp_path)
        assert code == 0, err
        curves.append(losses(latest(tmp_path)))
    on_gpu, on_cpu = curves
    # The noise in the loss is float32 from log and cos, whose last bits differ by device.
    assert on_gpu == pytest.approx(on_cpu, rel=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_resume_equals_the_unbroken_run(tmp_path, precision):
    (tmp_path / "job.yaml").write_text(JOB.format(recipe=RECIPE, precision=precision))
    assert phalanx("train", "job.yaml", "cast=true", cwd=tmp_path)[0] == 0
    unbroken = latest(tmp_path)
    code, _, err = phalanx(
        "train", "job.yaml", "cast=true", "--stop-after", "13", "steps", cwd=tmp_path
    )
    assert code == 75, err
    assert phalanx("train", "--resume", cwd=tmp_path)[0] == 0
    run = latest(tmp_path)
    assert run != unbroken
    assert losses(run) == losses(unbroken)
    assert_same_bits(run, unbroken)
