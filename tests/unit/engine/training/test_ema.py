"""The average of the weights: its arithmetic, what it averages, and that it leaves no trace."""

import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from phalanx.engine.checkpoint.tensors import (
    collect,
    load_average,
    load_checkpoint,
    write_checkpoint,
)
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.precision import Precision
from phalanx.engine.strategies.single import Single
from phalanx.engine.training.ema import WeightAverage, begin_average, ema_findings
from phalanx.job.schema import Ema
from phalanx.recipe import Options, Recipe
from phalanx.run.checkpoints import open_checkpoint

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(4, 6, bias=False)

    def forward(self, ids):
        return self.head(self.frozen(self.norm(self.embed(ids))))


class TiedNet(Net):
    def __init__(self):
        super().__init__()
        self.head.weight = self.embed.weight


def make(kind=Net, dtype=torch.float32, **settings):
    torch.manual_seed(0)
    model = kind().to(dtype)
    return model, WeightAverage(hold(model), **{"decay": 0.9, **settings})


def hold(model):
    return Single(Recipe(Options()), model, Process(0, 1, CPU, "none"))


def tensors_of(average):
    return {name: shard.tensor for name, shard in average.shards().items()}


def fill(model, value):
    """Give every parameter and buffer the same value."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(value)


def copy_of(tensors):
    return {name: tensor.clone() for name, tensor in tensors.items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        assert torch.equal(one[name], other[name]), name


def train(model, optimizer, steps, *, seed=0, precision=None):
    precision = precision or Precision("fp32", CPU)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        ids = torch.randint(0, 6, (8,), generator=generator)
        loss = nn.functional.cross_entropy(model(ids).float(), ids)
        precision.scaler.scale(loss).backward()
        precision.scaler.step(optimizer)
        precision.scaler.update()
        optimizer.zero_grad()


@pytest.mark.parametrize("decay", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_the_closed_form_after_n_steps(decay, steps):
    model = nn.Linear(3, 2).double()
    fill(model, 2.0)
    average = WeightAverage(hold(model), decay=decay)
    fill(model, 5.0)
    for _ in range(steps):
        average.update()
    # From 2 towards 5: what is left of the start is decay^n.
    expected = 5.0 - 3.0 * decay**steps
    for tensor in tensors_of(average).values():
        assert torch.allclose(tensor, torch.full_like(tensor, expected), rtol=0, atol=1e-14)
    assert average.record()["updates"] == steps


def test_weights_that_move_are_averaged_step_by_step():
    model, average = make(dtype=torch.float64)
    expected = model.head.weight.detach().clone()
    for value in (1.0, -3.0, 0.25):
        fill(model, value)
        average.update()
        expected = 0.9 * expected + 0.1 * value
    assert torch.allclose(tensors_of(average)["head.weight"], expected, rtol=0, atol=1e-15)


def test_warm_up_raises_the_decay():
    _, average = make(decay=0.9, warmup=True)
    seen = []
    for _ in range(100):
        seen.append(average.next_decay)
        average.update()
    assert seen[:3] == [1 / 10, 2 / 11, 3 / 12]
    assert seen == sorted(seen)
    assert seen[79] == pytest.approx(80 / 89)
    assert seen[80:] == [0.9] * 20
    assert make(decay=0.9)[1].next_decay == 0.9


def test_a_ramp_lets_the_decay_rise_towards_its_value():
    _, average = make(decay=0.9, ramp=20)
    for n in range(1, 6):
        assert average.next_decay == pytest.approx(0.9 * (1 - math.exp(-n / 20)))
        average.update()


def test_buffers_are_averaged_where_that_is_asked_for():
    model, average = make(decay=0.5, buffers=True)
    fill(model, 0.0)
    average.update()
    mean = tensors_of(average)["norm.running_var"]  # 1 before
    assert mean.tolist() == [0.5] * 4
    with average.swapped_in():
        assert model.norm.running_var.tolist() == [0.5] * 4
    assert model.norm.running_var.tolist() == [0.0] * 4
    assert tensors_of(average)["norm.num_batches_tracked"].item() == 0


def test_it_starts_as_the_model():
    model, average = make()
    assert_same(tensors_of(average), model.state_dict())


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_the_average_is_fp32_or_wider(dtype, kept):
    model, average = make(dtype=dtype)
    fill(model, 1.0)
    average.update()
    tensors = tensors_of(average)
    assert tensors["head.weight"].dtype == kept
    assert tensors["frozen.weight"].dtype == dtype  # the model's own


def test_small_changes_are_not_lost_in_a_narrow_type():
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    fill(model, 1.0)
    average = WeightAverage(hold(model), decay=0.999)
    fill(model, 1.0078125)  # the next number in bfloat16
    for _ in range(100):
        average.update()
    expected = 1.0078125 - 0.0078125 * 0.999**100
    assert tensors_of(average)["weight"].item() == pytest.approx(expected, abs=1e-6)


def test_frozen_parameters_and_buffers_are_the_models_own():
    model, average = make()
    fill(model, 3.0)
    average.update()
    tensors = tensors_of(average)
    for name in ("frozen.weight", "frozen.bias", "norm.running_mean", "norm.running_var"):
        assert (tensors[name] == 3.0).all(), name
    assert (tensors["head.weight"] != 3.0).all()
    fill(model, 4.0)  # copied when asked for, not when averaged
    assert (tensors_of(average)["norm.running_mean"] == 4.0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [Net, TiedNet])
def test_the_swap_puts_the_average_in_and_the_weights_back(kind, dtype):
    model, average = make(kind, dtype=dtype)
    fill(model, 0.3)
    average.update()
    raw, averaged = copy_of(model.state_dict()), copy_of(tensors_of(average))
    places = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    for _ in range(2):
        with average.swapped_in():
            inside = copy_of(model.state_dict())
        assert_same(model.state_dict(), raw)
        assert_same(tensors_of(average), averaged)
    assert_same(
        inside,
        {name: tensor.to(dtype) for name, tensor in averaged.items()}
        | {"norm.num_batches_tracked": averaged["norm.num_batches_tracked"]},
    )
    assert not torch.equal(inside["head.weight"], raw["head.weight"])
    assert {name: t.data_ptr() for name, t in model.state_dict().items()} == places


def test_the_weights_come_back_after_an_error():
    model, average = make()
    fill(model, 0.3)
    raw = copy_of(model.state_dict())
    with pytest.raises(ValueError, match="in the middle"), average.swapped_in():
        raise ValueError("in the middle")
    assert_same(model.state_dict(), raw)


@pytest.mark.parametrize("fused", [False, True])
def test_it_follows_the_optimizer(fused):
    model, average = make()
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=0.1, fused=fused
    )
    optimizer.register_step_post_hook(average.after_step)
    expected = tensors_of(average)["head.weight"].clone()
    for step in range(3):
        train(model, optimizer, 1, seed=step)
        expected.lerp_(model.head.weight.detach(), 0.1)
    assert average.record()["updates"] == 3
    assert torch.allclose(tensors_of(average)["head.weight"], expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_overflowed_does_not_count_on_the_cpu(fused):
    model, average = make()
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=0.1, fused=fused)
    optimizer.register_step_post_hook(average.after_step)
    precision = Precision("fp16", CPU)
    precision.scaler.scale(sum(p.sum() for p in learning) * 1.0).backward()
    learning[0].grad.fill_(torch.inf)
    before = copy_of(model.state_dict())
    precision.scaler.step(optimizer)
    precision.scaler.update()
    optimizer.zero_grad()
    assert_same(model.state_dict(), before)
    assert average.record()["updates"] == 0
    train(model, optimizer, 2, precision=precision)
    assert average.record()["updates"] == 2


def save(folder, model, optimizer, average):
    strategy = adopted(model, optimizer)
    return write_checkpoint(folder, collect(strategy, {"step": 3}, average=average))


def adopted(model, optimizer):
    strategy = hold(model)
    strategy.adopt(optimizer, Precision("fp32", CPU), None)
    return strategy


def begin(kind, dtype=torch.float32):
    model, average = make(kind, dtype, warmup=True)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    optimizer.register_step_post_hook(average.after_step)
    return model, optimizer, average


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [Net, TiedNet])
def test_a_loaded_average_goes_on_bit_for_bit(tmp_path, kind, dtype):
    model, optimizer, average = begin(kind, dtype)
    train(model, optimizer, 3)
    path = save(tmp_path, model, optimizer, average)
    other, other_optimizer, loaded = begin(kind, dtype)
    saved, problem = open_checkpoint(path)
    assert problem is None
    fill(other, 0.0)
    load_checkpoint(saved, adopted(other, other_optimizer))
    load_average(saved, loaded)
    assert_same(tensors_of(loaded), tensors_of(average))
    train(model, optimizer, 2, seed=1)
    train(other, other_optimizer, 2, seed=1)
    assert_same(tensors_of(loaded), tensors_of(average))
    assert loaded.record() == average.record()


@pytest.mark.parametrize("kind", [Net, TiedNet])
def test_the_file_has_the_names_of_the_models_file(tmp_path, kind):
    model, optimizer, average = begin(kind)
    train(model, optimizer, 2)
    path = save(tmp_path, model, optimizer, average)
    plain = load_file(path / "model.safetensors")
    averaged = load_file(path / "ema" / "model.safetensors")
    assert plain.keys() == averaged.keys()
    assert "frozen.weight" in averaged
    for name in plain:
        is_averaged = name.startswith(("embed", "head", "norm.weight", "norm.bias"))
        assert torch.equal(plain[name], averaged[name]) is not is_averaged, name


def test_a_checkpoint_without_an_average_has_no_such_file(tmp_path):
    model, optimizer, _ = begin(Net)
    path = save(tmp_path, model, optimizer, None)
    assert not (path / "ema").exists()
    assert open_checkpoint(path)[0].state["ema"] is None


def test_a_job_without_a_decay_has_no_average():
    assert begin_average(Ema(), hold(Net())) is None
    strategy = hold(net := Net())
    strategy.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    assert begin_average(Ema(decay=0.5, warmup=True), strategy).record() == {
        "decay": 0.5,
        "warmup": True,
        "ramp": None,
        "buffers": False,
        "updates": 0,
    }


RECORD = {"decay": 0.9, "warmup": False, "updates": 4}


@pytest.mark.parametrize(
    ("job", "record", "slugs"),
    [
        (Ema(), None, []),
        (Ema(decay=0.9), RECORD, []),
        (Ema(decay=0.9, evaluate=False), RECORD, []),
        (Ema(decay=0.9), None, ["ema-begins"]),
        (Ema(), RECORD, ["ema-ends"]),
        (Ema(decay=0.8), RECORD, ["ema-changes"]),
        (Ema(decay=0.9, warmup=True), RECORD, ["ema-changes"]),
        (Ema(decay=0.9, ramp=5), RECORD, ["ema-changes"]),  # a record from before there were ramps
        (Ema(decay=0.9, buffers=True), RECORD | {"ramp": None, "buffers": True}, []),
    ],
)
def test_what_a_resume_says(job, record, slugs):
    assert [finding.slug for finding in ema_findings(job, record, 4)] == slugs
