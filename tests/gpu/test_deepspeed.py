"""DeepSpeed on a real GPU: it learns alike in every precision, equals one rank without it, offloads
to host memory, and resumes bit for bit."""

import pytest
import torch

from tests.fixtures.event_lines import read_events
from tests.gpu.test_strategies import learn, mean_of_last
from tests.ranks.command import latest, phalanx
from tests.ranks.runs import RECIPE, assert_same_bits, losses, weights

pytest.importorskip("deepspeed", reason="needs: the extra deepspeed")

ZERO = ("strategy=deepspeed", "deepspeed.offload_optimizer=true")
CUT = (*ZERO, "deepspeed.stage=3", "deepspeed.offload_parameters=true")


@pytest.mark.parametrize("recipe", ["SequenceRecipe", "BarRecipe"])
def test_every_precision_and_stage_learns_alike(tmp_path, recipe):
    _, expected, _ = learn(tmp_path, recipe, "fp32")
    for precision, arguments in (("bf16", CUT), ("fp16", ZERO), ("bf16", ("strategy=deepspeed",))):
        accuracy, curve, _ = learn(tmp_path, recipe, precision, *arguments)
        assert accuracy > 0.97
        assert mean_of_last(curve) == pytest.approx(mean_of_last(expected), abs=0.05)


JOB = (
    f"recipe: {RECIPE}\nsteps: 12\nglobal_batch_size: 10\nmicro_batch_size: 3\nprecision: fp32\n"
    "seed: 7\noptimizer: {lr: 0.01, clip_norm: 1.0}\nema: {decay: 0.9}\ndeterminism: resume\n"
    "logging: {every: 1, tensorboard: false}\ncheckpoint: {every: null}\n"
    # No BatchNorm: over two samples it turns the last bits of fp32 into other signs.
    "options: {blocks: 2, gain: true, cast: true}\ndevices: {gpus: [0]}\n"
)


@pytest.mark.parametrize("arguments", [ZERO, CUT], ids=["stage-2", "stage-3"])
def test_it_equals_one_rank_without_it_and_resumes(tmp_path, arguments):
    (tmp_path / "job.yaml").write_text(JOB)
    assert phalanx("train", "job.yaml", cwd=tmp_path)[0] == 0
    one = latest(tmp_path)
    code, _, err = phalanx("train", "job.yaml", *arguments, cwd=tmp_path)
    assert code == 0, err
    run = latest(tmp_path)
    assert losses(run) == pytest.approx(losses(one), rel=0, abs=1e-4)
    for name, tensor in weights(one).items():
        torch.testing.assert_close(weights(run)[name], tensor, rtol=0, atol=1e-4)
    stop = ("--stop-after", "5", "steps")
    assert phalanx("train", "job.yaml", *arguments, *stop, cwd=tmp_path)[0] == 75
    assert phalanx("train", "--resume", cwd=tmp_path)[0] == 0
    assert losses(latest(tmp_path)) == losses(run)
    assert_same_bits(latest(tmp_path), run)


def test_offload_takes_less_of_the_gpu(tmp_path):
    # Without it the GPU holds 16 bytes of each weight: value, gradient, two moments.
    used = []
    for arguments in (("strategy=single",), CUT):
        job = JOB.replace("blocks: 2", "width: 1024, blocks: 3").replace("ema: {decay: 0.9}\n", "")
        (tmp_path / "job.yaml").write_text(job)
        code, _, err = phalanx("train", "job.yaml", *arguments, cwd=tmp_path)
        assert code == 0, err
        steps = [e.data for e in read_events(latest(tmp_path).events) if e.kind == "step"]
        used.append(steps[-1]["memory_bytes"])
    assert used[1] < used[0]
