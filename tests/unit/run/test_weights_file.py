"""What a file of weights says of itself is read without torch and without running anything."""

import json
import subprocess
import sys

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import save_file

from phalanx.run.weights_file import read_record

RECORD = {"recipe": "digits", "options": {"width": 8}, "step": 7, "name": "grün"}


def write_onnx(path, metadata):
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value], [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    ])  # fmt: skip
    model = helper.make_model(graph, producer_name="a test", doc_string="x" * 300)
    helper.set_model_props(model, metadata)
    onnx.save(model, path)


@pytest.fixture(params=["a.safetensors", "a.onnx"])
def write(request, tmp_path):
    path = tmp_path / request.param

    def write(metadata):
        if path.suffix == ".onnx":
            write_onnx(path, metadata)
        else:
            save_file({"w": torch.ones(2)}, path, metadata=metadata)
        return path

    return write


def test_the_record_is_read_among_others(write):
    metadata = {"classes": "[1]", "phalanx": json.dumps(RECORD), "z": "\n"}
    assert read_record(write(metadata)) == RECORD


@pytest.mark.parametrize("text", [None, "no json", "[1, 2]", "null"])
def test_a_file_without_a_record_has_none(write, text):
    assert read_record(write({} if text is None else {"phalanx": text})) is None


@pytest.mark.parametrize("name", ["a.safetensors", "a.onnx", "a.pt", "gone.onnx"])
def test_what_is_no_such_file_has_none(tmp_path, name):
    if name != "gone.onnx":
        for content in (b"", b"\x00", b"\xff" * 40, b"\x08" + b"\xff" * 30, b"PK\x03\x04 archive"):
            (tmp_path / name).write_bytes(content)
            assert read_record(tmp_path / name) is None
    assert read_record(tmp_path / name) is None


def test_reading_needs_neither_torch_nor_onnx(tmp_path):
    write_onnx(tmp_path / "a.onnx", {"phalanx": json.dumps(RECORD)})
    code = (
        "import sys; from pathlib import Path; from phalanx.run.weights_file import read_record;"
        "found = read_record(Path(sys.argv[1]));"
        "assert found['step'] == 7 and not {'torch', 'onnx'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.onnx")], check=True)
