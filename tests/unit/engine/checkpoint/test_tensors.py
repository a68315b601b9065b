"""Weights and optimizer state through safetensors, bit for bit; no pickle is ever run."""

import json
import pickle
import zipfile

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from phalanx.engine.checkpoint.initial_weights import load_initial_weights
from phalanx.engine.checkpoint.tensors import collect, load_checkpoint, write_checkpoint
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.optimizers import make_optimizer
from phalanx.engine.strategies.precision import Precision
from phalanx.engine.strategies.single import Single
from phalanx.errors import UserError
from phalanx.job.schema import Optimizer
from phalanx.recipe import Options, Recipe
from phalanx.run.checkpoints import open_checkpoint, publish

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.embed = nn.Embedding(6, width)
        self.norm = nn.BatchNorm1d(width)
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.head = nn.Linear(width, 6, bias=False)

    def forward(self, ids):
        return self.head(self.frozen(self.norm(self.embed(ids))))


class TiedNet(Net):
    def __init__(self):
        super().__init__()
        self.head.weight = self.embed.weight


class Grouped(Recipe):
    def groups(self, model):
        # Against the order of the model, so that state is matched by name.
        learning = [p for p in model.parameters() if p.requires_grad]
        return [{"params": learning[1:], "lr_scale": 0.5}, {"params": learning[:1]}]


def train(model, optimizer, precision, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        ids = torch.randint(0, 6, (8,), generator=generator)
        loss = nn.functional.cross_entropy(model(ids), ids)
        precision.scaler.scale(loss).backward()
        precision.scaler.step(optimizer)
        precision.scaler.update()
        optimizer.zero_grad()


def hold(model):
    return Single(Recipe(Options()), model, Process(0, 1, CPU, "none"))


class Parts:
    """A model under training."""

    def __init__(self, kind=Net, *, name="adamw", precision="fp32", seed=0, grouped=False):
        torch.manual_seed(seed)
        self.precision = Precision(precision, CPU)
        self.model = self.precision.convert(kind())
        recipe = (Grouped if grouped else Recipe)(Options())
        self.optimizer = make_optimizer(recipe, self.model, Optimizer(name=name), 0.05)
        self.strategy = hold(self.model)
        self.strategy.adopt(self.optimizer, self.precision, None)

    def train(self, steps, seed):
        train(self.model, self.optimizer, self.precision, steps, seed)
        return self

    def save(self, folder, step=3):
        state = {"step": step, "extra": "kept"}
        return write_checkpoint(folder, collect(self.strategy, state))

    def load(self, path):
        saved, problem = open_checkpoint(path)
        assert problem is None
        load_checkpoint(saved, self.strategy)
        return saved


def assert_same_model(one, other):
    assert one.state_dict().keys() == other.state_dict().keys()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


@pytest.mark.parametrize("grouped", [False, True], ids=["one-group", "groups"])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_loaded_run_goes_on_bit_for_bit(tmp_path, name, precision, grouped):
    settings = {"name": name, "precision": precision, "grouped": grouped}
    unbroken = Parts(**settings).train(3, seed=1)
    path = unbroken.save(tmp_path)
    loaded = Parts(**settings, seed=99)
    loaded.load(path)
    assert_same_model(loaded.model, unbroken.model)
    before, after = unbroken.optimizer.state_dict(), loaded.optimizer.state_dict()
    assert before["state"].keys() == after["state"].keys()
    for index, state in before["state"].items():
        assert state.keys() == after["state"][index].keys()
        for key, value in state.items():
            assert torch.equal(value, after["state"][index][key]), key
            assert value.dtype == after["state"][index][key].dtype, key
    unbroken.train(3, seed=2)
    loaded.train(3, seed=2)
    assert_same_model(loaded.model, unbroken.model)


def test_a_checkpoint_from_before_the_first_step_loads(tmp_path):
    unbroken = Parts()
    loaded = Parts(seed=99)
    loaded.load(unbroken.save(tmp_path, step=0))
    unbroken.train(2, seed=2)
    loaded.train(2, seed=2)
    assert_same_model(loaded.model, unbroken.model)


def test_state_is_matched_by_name_when_the_groups_change(tmp_path):
    unbroken = Parts().train(3, seed=1)
    loaded = Parts(grouped=True, seed=99)
    loaded.load(unbroken.save(tmp_path))
    for name, parameter in unbroken.model.named_parameters():
        if parameter.requires_grad:
            other = dict(loaded.model.named_parameters())[name]
            expected = unbroken.optimizer.state[parameter]["exp_avg"]
            assert torch.equal(loaded.optimizer.state[other]["exp_avg"], expected), name


def test_the_state_given_is_kept(tmp_path):
    saved = Parts(seed=99).load(Parts().save(tmp_path, step=7))
    assert saved.step == 7
    assert saved.state["extra"] == "kept"


def test_files_are_safetensors_and_json_only(tmp_path):
    path = Parts().train(1, seed=1).save(tmp_path)
    assert path == tmp_path / "checkpoint-3"
    assert sorted(p.name for p in path.iterdir()) == [
        "manifest.json",
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]
    assert "embed.weight" in load_file(path / "model.safetensors")


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path):
    unbroken = Parts(TiedNet).train(3, seed=1)
    path = unbroken.save(tmp_path)
    names = set(load_file(path / "model.safetensors"))
    assert len(names & {"embed.weight", "head.weight"}) == 1
    loaded = Parts(TiedNet, seed=99)
    loaded.load(path)
    assert loaded.model.head.weight is loaded.model.embed.weight
    unbroken.train(2, seed=2)
    loaded.train(2, seed=2)
    assert_same_model(loaded.model, unbroken.model)


def test_tensors_that_are_not_contiguous_survive(tmp_path):
    unbroken = Parts()
    unbroken.model.frozen.weight = nn.Parameter(torch.rand(4, 4).t(), requires_grad=False)
    loaded = Parts(seed=99)
    loaded.load(unbroken.save(tmp_path))
    assert_same_model(loaded.model, unbroken.model)


def test_the_loss_scale_is_restored(tmp_path):
    unbroken = Parts(precision="fp16")
    unbroken.precision.scaler.load_state_dict(
        unbroken.precision.scaler.state_dict() | {"scale": 123.0, "_growth_tracker": 7}
    )
    loaded = Parts(precision="fp16", seed=99)
    loaded.load(unbroken.save(tmp_path))
    assert loaded.precision.loss_scale == 123.0
    assert loaded.precision.scaler.state_dict() == unbroken.precision.scaler.state_dict()


@pytest.mark.parametrize("kind", [Net, TiedNet])
def test_weights_start_from_a_run_or_a_checkpoint(tmp_path, kind):
    first = Parts(kind).train(1, seed=1)
    first.save(tmp_path / "checkpoints", step=1)
    publish(tmp_path / "checkpoints", 1, is_best=True, keep=2)
    second = Parts(kind, seed=5)
    second.save(tmp_path / "checkpoints", step=2)
    publish(tmp_path / "checkpoints", 2, is_best=False, keep=2)
    for source, expected in [
        (tmp_path, first),  # the best
        (tmp_path / "checkpoints" / "latest", second),
        (tmp_path / "checkpoints" / "checkpoint-1", first),
        (tmp_path / "checkpoints" / "checkpoint-1" / "model.safetensors", first),
    ]:
        model = kind()
        load_initial_weights(hold(model), source)
        assert_same_model(model, expected.model)


def test_weights_start_from_the_latest_of_a_run_without_a_best(tmp_path):
    parts = Parts()
    parts.save(tmp_path / "checkpoints", step=1)
    publish(tmp_path / "checkpoints", 1, is_best=False, keep=2)
    model = Net()
    load_initial_weights(hold(model), tmp_path)
    assert_same_model(model, parts.model)


@pytest.mark.parametrize("wrap", [None, "state_dict", "model"])
def test_weights_start_from_a_pt_file(tmp_path, wrap):
    parts = Parts()
    state = parts.model.state_dict()
    torch.save({wrap: state, "epoch": 3} if wrap else state, tmp_path / "weights.pt")
    model = Net()
    load_initial_weights(hold(model), tmp_path / "weights.pt")
    assert_same_model(model, parts.model)


def test_weights_start_from_a_bare_safetensors_file(tmp_path):
    parts = Parts()
    save_file(parts.model.state_dict(), tmp_path / "weights.safetensors")
    (tmp_path / "state.json").write_text(json.dumps({"of": "another tool"}))
    model = Net()
    load_initial_weights(hold(model), tmp_path / "weights.safetensors")
    assert_same_model(model, parts.model)


def test_tied_weights_start_from_a_file_that_holds_them_once(tmp_path):
    # As transformers writes them.
    parts = Parts(TiedNet)
    state = {k: v for k, v in parts.model.state_dict().items() if k != "head.weight"}
    save_file(state, tmp_path / "weights.safetensors")
    model = TiedNet()
    load_initial_weights(hold(model), tmp_path / "weights.safetensors")
    assert_same_model(model, parts.model)


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("kind", ["torch", "legacy", "plain"])
def test_a_malicious_pickle_is_not_run(tmp_path, kind):
    trap, path = tmp_path / "trap", tmp_path / "weights.pt"
    if kind == "plain":
        path.write_bytes(pickle.dumps(Malicious(trap)))
    else:
        is_zip = kind == "torch"
        torch.save({"w": Malicious(trap)}, path, _use_new_zipfile_serialization=is_zip)
        assert zipfile.is_zipfile(path) is is_zip
    with pytest.raises(UserError) as caught:
        load_initial_weights(hold(Net()), path)
    (finding,) = caught.value.findings
    assert not trap.exists()
    assert finding.slug == "init-unsafe"
    assert str(path) in finding.what
    assert finding.why
    assert "save_file" in finding.fix


def test_a_whole_pickled_model_is_not_opened(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "model.pt")
    with pytest.raises(UserError) as caught:
        load_initial_weights(hold(nn.Linear(2, 2)), tmp_path / "model.pt")
    assert caught.value.findings[0].slug == "init-unsafe"


def wrong_shapes(folder):
    save_file(Net(width=5).state_dict(), folder / "w.safetensors")
    return folder / "w.safetensors"


def wrong_names(folder):
    save_file(nn.Linear(2, 2).state_dict(), folder / "w.safetensors")
    return folder / "w.safetensors"


def wrong_shapes_pt(folder):
    torch.save(Net(width=5).state_dict(), folder / "w.pt")
    return folder / "w.pt"


def truncated(folder):
    path = wrong_shapes(folder)
    path.write_bytes(path.read_bytes()[:-10])
    return path


def truncated_pt(folder):
    path = wrong_shapes_pt(folder)
    path.write_bytes(path.read_bytes()[:-100])
    return path


def empty(folder):
    (folder / "w.safetensors").touch()
    return folder / "w.safetensors"


def empty_pt(folder):
    (folder / "w.pt").touch()
    return folder / "w.pt"


def one_tensor(folder):
    torch.save(torch.zeros(3), folder / "w.pt")
    return folder / "w.pt"


def no_weights(folder):
    torch.save({"model": 5}, folder / "w.pt")
    return folder / "w.pt"


def missing(folder):
    return folder / "nothing"


@pytest.mark.parametrize(
    "make",
    [
        wrong_shapes,
        wrong_names,
        wrong_shapes_pt,
        truncated,
        truncated_pt,
        empty,
        empty_pt,
        one_tensor,
        no_weights,
        missing,
    ],
)
def test_weights_that_do_not_fit_are_a_finding(tmp_path, make):
    source = make(tmp_path)
    with pytest.raises(UserError) as caught:
        load_initial_weights(hold(Net()), source)
    (finding,) = caught.value.findings
    assert finding.slug == "init-weights"
    assert str(source) in finding.what
    assert finding.why.strip()
    assert "init_from" in finding.fix


def test_the_finding_about_shapes_names_them(tmp_path):
    with pytest.raises(UserError) as caught:
        load_initial_weights(hold(Net()), wrong_shapes(tmp_path))
    why = caught.value.findings[0].why
    assert "embed.weight" in why
    assert "[6, 5]" in why
    assert "[6, 4]" in why
