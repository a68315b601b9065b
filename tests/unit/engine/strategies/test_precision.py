"""Which arithmetic a step uses."""

import pytest
import torch
from torch import nn

from phalanx.engine.strategies.precision import Precision

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _torchs_switches_as_they_were():
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = cudnn


@pytest.mark.parametrize(
    ("name", "weights"),
    [("fp64", torch.float64), ("fp32", torch.float32), ("bf16", torch.float32)],
)
def test_weights_are_fp64_under_fp64_and_fp32_otherwise(name, weights):
    model = Precision(name, CPU).convert(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    assert {t.dtype for t in model.state_dict().values() if t.is_floating_point()} == {weights}


def test_fp64_converts_floating_inputs_and_nothing_else():
    batch = {"x": torch.zeros(2), "ids": torch.zeros(2, dtype=torch.int64), "name": "a"}
    converted = Precision("fp64", CPU).convert_batch([batch])[0]
    assert converted["x"].dtype == torch.float64
    assert converted["ids"].dtype == torch.int64
    assert converted["name"] == "a"


@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16", "fp16"])
def test_other_precisions_leave_inputs_alone(name):
    batch = {"x": torch.zeros(2)}
    assert Precision(name, CPU).convert_batch(batch) is batch


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        ("fp32", torch.float32),
        ("tf32", torch.float32),
    ],
)
def test_products_run_in_the_dtype_of_the_precision(name, dtype):
    layer, x = nn.Linear(2, 2), torch.zeros(3, 2)
    with Precision(name, CPU).autocast():
        assert layer(x).dtype == dtype
    assert layer(x).dtype == torch.float32


@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16", "fp64"])
def test_only_fp16_scales_the_loss(name):
    precision = Precision(name, CPU)
    assert precision.loss_scale is None
    assert precision.scaler.scale(torch.tensor(3.0)).item() == 3.0


def test_fp16_scales_the_loss_and_halves_the_scale_on_overflow():
    precision = Precision("fp16", CPU)
    before = precision.loss_scale
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    precision.scaler.scale((parameter * float("inf")).sum()).backward()
    precision.scaler.step(optimizer)
    precision.scaler.update()
    assert before > 1
    assert precision.loss_scale == before / 2
    assert parameter.item() == 1.0  # the step was left out


@pytest.mark.parametrize(
    ("name", "matmul"),
    [("fp32", "highest"), ("fp64", "highest"), ("tf32", "high"), ("bf16", "high")],
)
def test_tf32_is_on_only_where_it_is_asked_for(name, matmul):
    Precision(name, CPU).configure()
    assert torch.get_float32_matmul_precision() == matmul
    assert torch.backends.cudnn.allow_tf32 is (matmul == "high")


def test_images_and_weights_get_their_channels_last_and_nothing_else():
    precision = Precision("fp32", torch.device("cpu"), is_channels_last=True)
    model = precision.lay_out(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 2)))
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    batch = {
        "image": torch.zeros(2, 3, 5, 5),
        "bytes": torch.zeros(2, 3, 5, 5, dtype=torch.uint8),
        "boxes": torch.zeros(2, 3, 5, 5, dtype=torch.int64),
        "row": torch.zeros(2, 3),
    }
    moved = precision.convert_batch(batch)
    last = {
        name: value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last)
        for name, value in moved.items()
    }
    assert last == {"image": True, "bytes": True, "boxes": False, "row": False}
