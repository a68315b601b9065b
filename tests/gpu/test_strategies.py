"""Strategies and precisions on a real GPU: what learns on one rank in fp32 learns alike in every
precision, and on two ranks that share the GPU over gloo."""

import pytest

from tests.fixtures.event_lines import read_events
from tests.gpu.test_training import figures
from tests.ranks.command import latest, phalanx
from tests.ranks.runs import FIXTURES, RECIPE, losses, weights

LEARNERS = f"{FIXTURES / 'recipes' / 'learners.py'}"

LEARN = """
recipe: {recipe}
steps: 300
global_batch_size: 64
precision: {precision}
optimizer: {{lr: 0.003, clip_norm: 1.0}}
logging: {{every: 10, tensorboard: false}}
checkpoint: {{every: null}}
evaluate: {{every: null}}
devices: {{gpus: [0]}}
"""


def learn(folder, recipe, precision, *arguments):
    (folder / "job.yaml").write_text(
        LEARN.format(recipe=f"{LEARNERS}:{recipe}", precision=precision)
    )
    code, _, err = phalanx("train", "job.yaml", *arguments, cwd=folder, timeout_s=240)
    assert code == 0, err
    run = latest(folder)
    curve = losses(run)
    return figures(run)["accuracy"], curve, run


@pytest.fixture(scope="module", params=["SequenceRecipe", "BarRecipe"])
def reference(request, tmp_path_factory):
    accuracy, curve, _ = learn(tmp_path_factory.mktemp("fp32"), request.param, "fp32")
    assert accuracy > 0.97
    return request.param, curve


def mean_of_last(curve):
    return sum(list(curve.values())[-5:]) / 5


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_every_precision_learns_alike(tmp_path, reference, precision):
    recipe, expected = reference
    accuracy, curve, _ = learn(tmp_path, recipe, precision)
    assert accuracy > 0.97
    assert mean_of_last(curve) == pytest.approx(mean_of_last(expected), abs=0.05)


SHARED = ("devices.gpus=[0, 0]", "devices.backend=gloo")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((*SHARED, "strategy=ddp"), id="ddp"),
        pytest.param((*SHARED, "strategy=fsdp"), id="fsdp"),
        pytest.param((*SHARED, "strategy=fsdp", "fsdp.build=parts"), id="fsdp-in-parts"),
        pytest.param((*SHARED, "strategy=fsdp", "fsdp.offload=true"), id="fsdp-offload"),
        pytest.param(("strategy=fsdp", "fsdp.offload=true"), id="fsdp-offload-on-one-rank"),
    ],
)
def test_two_ranks_on_one_gpu_equal_one(tmp_path, arguments):
    job = (
        f"recipe: {RECIPE}\nsteps: 12\nglobal_batch_size: 10\nmicro_batch_size: 3\n"
        "precision: fp64\nseed: 7\noptimizer: {lr: 0.01, clip_norm: 1.0}\nema: {decay: 0.9}\n"
        "logging: {every: 1, tensorboard: false}\ncheckpoint: {every: null}\n"
        "options: {blocks: 2, gain: true, batchnorm: true}\n"
    )
    (tmp_path / "job.yaml").write_text(job)
    assert phalanx("train", "job.yaml", "--gpus", "0,", cwd=tmp_path)[0] == 0
    one = latest(tmp_path)
    code, _, err = phalanx("train", "job.yaml", *arguments, cwd=tmp_path)
    assert code == 0, err
    many = latest(tmp_path)
    assert many != one
    starts = [e.data for e in read_events(many.events) if e.kind == "start"]
    assert all("cuda:0" in start["device"] for start in starts)
    assert losses(many) == pytest.approx(losses(one), rel=0, abs=1e-9)
    for name, tensor in weights(one).items():
        assert (weights(many)[name] - tensor).abs().max() < 1e-9, name


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("recipe", ["SequenceRecipe", "BarRecipe"])
def test_fsdp_learns_in_narrow_types(tmp_path, recipe, precision):
    accuracy, _, _ = learn(tmp_path, recipe, precision, *SHARED, "strategy=fsdp")
    assert accuracy > 0.97
