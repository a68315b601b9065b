"""A TensorRT engine is built on the GPU at hand and gives what PyTorch gives; evaluation on a GPU
finds what training found there. Where `onnx` or `tensorrt` was not brought along, that is said."""

import json
from importlib.util import find_spec

import pytest

from tests.ranks.command import phalanx


def need(*packages):
    absent = [name for name in packages if find_spec(name) is None]
    if absent:
        pytest.skip(f"needs: {', '.join(absent)}, which were not brought along")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    code, _, err = phalanx(
        "train", "digits", "--epochs", "4", "--gpus", "1", "--name", "first", cwd=folder,
        timeout_s=180,
    )  # fmt: skip
    assert code == 0, err
    return folder


def ask(folder, *words, timeout_s=240):
    code, out, err = phalanx(*words, "--json", cwd=folder, timeout_s=timeout_s)
    assert code == 0, err
    return json.loads(out)


def test_an_evaluation_finds_what_training_found(trained):
    told = ask(trained, "evaluate", "runs/first")
    assert told["where"].startswith("1 GPU")
    assert told["metrics"] == pytest.approx(told["recorded"], rel=1e-5)
    on_cpu = ask(trained, "evaluate", "runs/first", "--cpu", "1", "precision=fp32")
    assert on_cpu["metrics"]["accuracy"] == pytest.approx(told["metrics"]["accuracy"], abs=0.01)


@pytest.mark.parametrize("options", [(), ("--half",), ("--int8",), ("--dynamic", "--batch", "8")])
def test_an_engine_gives_what_pytorch_gives(trained, tmp_path, options):
    need("onnx", "onnxscript", "onnxruntime", "tensorrt")
    told = ask(
        trained, "export", "runs/first", "--to", "tensorrt", *options, "--out", str(tmp_path / "e")
    )
    assert {"model.onnx", "model.engine", "model.json"} <= set(told["files"])
    compared = told["compared"]
    assert compared["runtime"] == "TensorRT"
    for row in compared["differences"]:
        assert row["limit"] is None or row["largest"] <= row["limit"] or "--int8" in options
    about = json.loads((tmp_path / "e" / "model.json").read_text())
    assert json.loads(about["phalanx"])["recipe"] == "digits"


def test_without_tensorrt_the_onnx_file_is_left_ready(trained, tmp_path):
    need("onnx", "onnxscript", "onnxruntime")
    if find_spec("tensorrt") is not None:
        pytest.skip("needs: a machine without tensorrt, and it is here")
    code, _, err = phalanx(
        "export", "runs/first", "--to", "tensorrt", "--out", str(tmp_path / "e"),
        cwd=trained, timeout_s=240,
    )  # fmt: skip
    assert code == 3, err
    assert "no package `tensorrt`" in err
    assert "no GPU" not in err
    assert [path.name for path in (tmp_path / "e").iterdir()] == ["model.onnx"]


def test_torchscript_needs_nothing_else(trained, tmp_path):
    told = ask(trained, "export", "runs/first", "--to", "torchscript", "--out", str(tmp_path / "t"))
    assert list(told["files"]) == ["model.torchscript"]
