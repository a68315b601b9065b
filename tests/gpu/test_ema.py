"""The average of the weights on a real GPU: without waiting for it, and kept through a resume."""

import pytest
import torch
from torch import nn

from phalanx.engine.process.group import Process
from phalanx.engine.strategies.single import Single
from phalanx.engine.training.ema import WeightAverage
from phalanx.recipe import Options, Recipe
from tests.gpu.test_training import JOB
from tests.ranks.command import latest, phalanx
from tests.ranks.runs import RECIPE, assert_same_bits, averages


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_waits_for_the_device(dtype):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).to("cuda", dtype)
    strategy = Single(Recipe(Options()), model, Process(0, 1, torch.device("cuda"), "none"))
    average = WeightAverage(strategy, decay=0.9, warmup=True)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    optimizer.register_step_post_hook(average.after_step)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float32)
    x = torch.ones(8, 64, device="cuda", dtype=dtype)
    raw = None
    for step in range(3):
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        try:
            scaler.scale(model(x).float().square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            raw = [p.detach().clone() for p in model.parameters()]
            with average.swapped_in():
                model(x)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert all(torch.equal(p, r) for p, r in zip(model.parameters(), raw, strict=True))
    assert average.record()["updates"] == 3


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_resumed_average_equals_the_unbroken_one(tmp_path, precision):
    text = JOB.format(recipe=RECIPE, precision=precision) + "ema: {decay: 0.9, warmup: true}\n"
    (tmp_path / "job.yaml").write_text(text)
    assert phalanx("train", "job.yaml", "cast=true", cwd=tmp_path)[0] == 0
    unbroken = latest(tmp_path)
    stop = ("--stop-after", "13", "steps")
    assert phalanx("train", "job.yaml", "cast=true", *stop, cwd=tmp_path)[0] == 75
    assert phalanx("train", "--resume", cwd=tmp_path)[0] == 0
    run = latest(tmp_path)
    assert run != unbroken
    assert_same_bits(run, unbroken)
    for name, tensor in averages(unbroken).items():
        assert torch.equal(averages(run)[name], tensor), name
