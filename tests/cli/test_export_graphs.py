"""`phalanx export --to onnx|torchscript|tensorrt`: the file gives what PyTorch gives, and says what
it is."""

import json
import os
import shutil
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file, save_file

from phalanx.errors import UserError
from phalanx.recipes.digits.data import open_digits
from phalanx.recipes.digits.model import ConvNet
from phalanx.run.weights_file import read_record
from phalanx.verbs.export import Settings, export_trained
from tests.cli.command import run_cli
from tests.fixtures.export_here import answer_here
from tests.fixtures.trained_digits import train_digits
from tests.ranks.runs import averages

IMAGES = 50


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_digits(tmp_path_factory.mktemp("runs"))


@pytest.fixture(autouse=True)
def _ask_here(monkeypatch):
    answer_here(monkeypatch)


@pytest.fixture(scope="module")
def wanted(trained):
    """What the averaged weights give in PyTorch, built without any of our loading."""
    model = ConvNet(8, 0.1).eval()
    model.load_state_dict(averages(trained, "best"))
    images = open_digits("test", folder=None, augment=False).arrays["image"][:IMAGES]
    images = torch.as_tensor(np.asarray(images))
    with torch.no_grad():
        return images, model(images)


def export(run, out, form="onnx", **settings):
    return export_trained(str(run.path), form=form, settings=Settings(**settings), out=out)


def run_onnx(path, images):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["logits"], {"image": images.numpy()})[0])


def test_onnx_is_pytorch_on_fifty_real_images(trained, wanted, tmp_path):
    done = export(trained, tmp_path / "onnx", batch=IMAGES)
    images, logits = wanted
    made = run_onnx(tmp_path / "onnx" / "model.onnx", images)
    assert (made - logits).abs().max() <= 1e-4
    assert torch.equal(made.argmax(1), logits.argmax(1))
    assert done.weights == "average"
    assert done.compared["samples"] == IMAGES
    rows = {row["output"]: row for row in done.compared["differences"]}
    assert set(rows) == {"logits", "digit"}
    # What is told is what is found here: the same weights, the same images.
    assert rows["logits"]["largest"] == pytest.approx(float((made - logits).abs().max()), abs=1e-6)
    assert (rows["digit"]["largest"], rows["digit"]["limit"]) == (0, 0)
    assert done.compared["torch_ms"] > 0
    assert done.compared["exported_ms"] > 0


def test_dynamic_takes_any_batch_and_a_fixed_one_only_its_own(trained, wanted, tmp_path):
    images, logits = wanted
    export(trained, tmp_path / "any", dynamic=True)
    for size in (1, 2, 17):
        made = run_onnx(tmp_path / "any" / "model.onnx", images[:size])
        assert (made - logits[:size]).abs().max() <= 1e-4
    graph = onnx.load(tmp_path / "any" / "model.onnx").graph
    axes = list(graph.input[0].type.tensor_type.shape.dim)
    assert axes[0].dim_param == "batch"
    assert [axis.dim_value for axis in axes[1:]] == [1, 8, 8]


def test_half_is_half_as_large_and_takes_fp32(trained, wanted, tmp_path):
    images, logits = wanted
    whole = export(trained, tmp_path / "whole", dynamic=True, opset=20)
    half = export(trained, tmp_path / "half", dynamic=True, half=True)
    made = run_onnx(tmp_path / "half" / "model.onnx", images)
    assert made.dtype == torch.float32
    assert 1e-6 < (made - logits).abs().max() <= 1e-2 * logits.abs().max()
    kinds = {t.data_type for t in onnx.load(tmp_path / "half" / "model.onnx").graph.initializer}
    assert onnx.TensorProto.FLOAT16 in kinds
    weights = 4 * sum(t.numel() for t in ConvNet(8, 0.1).parameters())
    assert whole.files["model.onnx"] - half.files["model.onnx"] > 0.4 * weights
    assert onnx.load(tmp_path / "whole" / "model.onnx").opset_import[0].version == 20


def test_int8_is_small_and_its_cost_is_told(trained, wanted, tmp_path, monkeypatch):
    # What it costs is measured by `evaluate`, whose tests are elsewhere.
    from phalanx.verbs.evaluate import Evaluated

    asked = []

    def evaluate(reference, overrides=(), **others):
        asked.append(reference)
        figures = {"accuracy": 0.9, "loss": 0.4}
        return Evaluated("", tmp_path, "digits", 1, "raw", figures, 360, 1.0, "here")

    monkeypatch.setattr("phalanx.verbs.export.evaluate_trained", evaluate)
    done = export(trained, tmp_path / "int8", int8=True, batch=IMAGES)
    path = tmp_path / "int8" / "model.onnx"
    assert asked == [str(path)]
    recorded = json.loads((trained.checkpoints / "best" / "state.json").read_text())["metrics"]
    assert done.metrics == {"before": recorded, "after": {"accuracy": 0.9, "loss": 0.4}}
    images, logits = wanted
    made = run_onnx(path, images)
    assert 1e-5 < (made - logits).abs().max() < 0.1 * logits.abs().max()
    assert (made.argmax(1) == logits.argmax(1)).float().mean() >= 0.9
    model = onnx.load(path)
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    weights = [t for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT8]
    # Four layers of weights, none of which is kept in fp32 beside it.
    assert sum(len(t.dims) > 1 for t in weights) == 4, kinds
    wide = [t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    assert all(len(t.dims) <= 1 for t in wide)
    assert "int8-calibrated" in [finding.slug for finding in done.findings]
    assert read_record(path)["precision"] == "int8"


def test_torchscript_runs_without_the_recipe(trained, wanted, tmp_path):
    export(trained, tmp_path / "ts", form="torchscript", dynamic=True)
    images, logits = wanted
    about = {"phalanx": "", "classes": ""}
    loaded = torch.jit.load(tmp_path / "ts" / "model.torchscript", _extra_files=about)
    (made,) = loaded(images)
    assert (made - logits).abs().max() <= 1e-4
    assert json.loads(about["phalanx"])["recipe"] == "digits"
    assert json.loads(about["classes"]) == [str(n) for n in range(10)]


def test_every_file_says_what_it_is(trained, tmp_path):
    export(trained, tmp_path / "onnx", batch=3)
    export(trained, tmp_path / "weights", form="safetensors", half=True)
    found = onnx.load(tmp_path / "onnx" / "model.onnx").metadata_props
    metadata = {entry.key: entry.value for entry in found}
    preprocessing = json.loads(metadata["preprocessing"])
    assert (preprocessing["size"], preprocessing["divide_by"]) == ([8, 8], 16.0)
    assert json.loads(metadata["classes"])[3] == "3"
    records = [read_record(tmp_path / "onnx" / "model.onnx")]
    records.append(read_record(tmp_path / "weights" / "model.safetensors"))
    assert json.loads(metadata["phalanx"]) == records[0]
    state = json.loads((trained.checkpoints / "best" / "state.json").read_text())
    for record in records:
        assert record["recipe"] == "digits"
        assert record["options"]["width"] == 8
        assert (record["step"], record["weights"]) == (state["step"], "average")
        assert record["metrics"] == state["metrics"]
        assert len(record["job_hash"]) == 16
        assert record["phalanx_version"]
    halves = load_file(tmp_path / "weights" / "model.safetensors")
    for name, tensor in averages(trained, "best").items():
        assert torch.equal(halves[name], tensor.half())


def test_without_tensorrt_the_onnx_file_is_left_ready(trained, tmp_path):
    answer = run_cli(
        "export", str(trained.path), "--to", "tensorrt", "--out", str(tmp_path / "trt"), "--json"
    )
    assert answer.code == 3
    told = json.loads(answer.out)
    assert list(told["files"]) == ["model.onnx"]
    (finding,) = told["findings"]
    assert finding["slug"] == "tensorrt-missing"
    assert "no GPU" in finding["why"]
    assert "trtexec --onnx=" in finding["fix"]
    onnx.checker.check_model(onnx.load(tmp_path / "trt" / "model.onnx"))


def test_a_checkpoint_copied_alone_and_its_files_are_exported(trained, wanted, tmp_path):
    alone = tmp_path / "elsewhere"
    shutil.copytree(trained.checkpoints / "best", alone)
    images, logits = wanted
    for source in (alone, alone / "ema" / "model.safetensors"):
        done = export_trained(str(source), form="onnx", settings=Settings(batch=IMAGES))
        assert done.folder == tmp_path / "elsewhere-onnx-batch50"
        assert done.weights == "average"
        made = run_onnx(done.folder / "model.onnx", images)
        assert (made - logits).abs().max() <= 1e-4
        shutil.rmtree(done.folder)
    raw = export_trained(str(alone / "model.safetensors"), out=tmp_path / "raw")
    assert raw.weights == "raw"
    exported = load_file(tmp_path / "raw" / "model.safetensors")
    for name, tensor in load_file(alone / "model.safetensors").items():
        assert torch.equal(exported[name], tensor)


def slugs_of(call):
    with pytest.raises(UserError) as caught:
        call()
    return [finding.slug for finding in caught.value.findings], caught.value.findings[0]


def test_pt_files_are_read_and_never_executed(trained, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    torch.save({"weights": Evil()}, tmp_path / "evil.pt")
    torch.save(averages(trained, "best"), tmp_path / "good.pt")
    for form in ("onnx", "safetensors"):
        out = tmp_path / f"evil-{form}"
        slugs, _ = slugs_of(
            lambda form=form, out=out: export_trained(
                str(tmp_path / "evil.pt"), recipe="digits", form=form, out=out
            )
        )
        assert slugs == ["init-unsafe"]
        assert not (tmp_path / "executed").exists()
        assert not out.exists()
    done = export_trained(
        str(tmp_path / "good.pt"), ["width=8"], recipe="digits", form="torchscript"
    )
    assert done.folder == tmp_path / "good-torchscript"
    assert done.is_complete


def test_weights_of_another_model_are_named(trained, tmp_path):
    wider = {name: torch.zeros(*t.shape) for name, t in ConvNet(16, 0.1).state_dict().items()}
    save_file(wider, tmp_path / "wider.safetensors")
    save_file(
        {**averages(trained, "best"), "head.bias": torch.ones(1)}, tmp_path / "more.safetensors"
    )
    for name, said in (("wider", "`classifier.0.bias` is [32]"), ("more", "head.bias")):
        slugs, finding = slugs_of(
            lambda name=name: export_trained(
                str(tmp_path / f"{name}.safetensors"), ["width=8"], recipe="digits", form="onnx"
            )
        )
        assert slugs == ["init-weights"]
        assert said in finding.why
    assert not list(tmp_path.glob("*-onnx"))


def test_what_cannot_be_meant_is_said_before_anything_runs(trained, tmp_path, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("nothing should have been asked")

    monkeypatch.setattr("phalanx.prepare.engine_child.ask_engine", never)
    save_file({"a": torch.ones(1)}, tmp_path / "nobody.safetensors")
    (tmp_path / "notes.txt").write_text("no weights")
    run, nobody = str(trained.path), str(tmp_path / "nobody.safetensors")
    average = str(trained.checkpoints / "best" / "ema" / "model.safetensors")
    both = Settings(half=True, int8=True, opset=18)
    cases = {
        "recipe-unknown": lambda: export_trained(nobody),
        "weights-form": lambda: export_trained(str(tmp_path / "notes.txt")),
        "no-weights-file": lambda: export_trained(str(tmp_path / "gone.onnx")),
        "other-weights": lambda: export_trained(average, weights="raw"),
        "no-run": lambda: export_trained(str(tmp_path / "gone")),
        "export-option": lambda: export_trained(run, form="merged", settings=both),
    }
    for slug, call in cases.items():
        assert slugs_of(call)[0][0] == slug
    found = slugs_of(cases["export-option"])[0]
    assert found == ["export-option", "export-two-precisions"]
    assert "--recipe" in slugs_of(cases["recipe-unknown"])[1].fix


def test_a_missing_extra_is_a_finding(trained, tmp_path, monkeypatch):
    from phalanx.engine.model import onnx_model

    monkeypatch.setattr(onnx_model, "find_spec", lambda name: None if "onnx" in name else sys)
    slugs, finding = slugs_of(lambda: export(trained, tmp_path / "out"))
    assert slugs == ["missing-extra"]
    assert finding.fix == "pip install 'phalanx[export]'"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_differs_is_not_left(trained, tmp_path, monkeypatch):
    from phalanx.engine.model.onnx_model import OnnxModel

    run = OnnxModel._run
    monkeypatch.setattr(OnnxModel, "_run", lambda *given: tuple(t + 0.01 for t in run(*given)))
    slugs, finding = slugs_of(lambda: export(trained, tmp_path / "out"))
    assert slugs == ["export-differs"]
    assert "`logits` is off by 0.01" in finding.why
    assert list(tmp_path.iterdir()) == []
