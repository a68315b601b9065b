"""An ONNX file called with tensors: any number of samples, and what does not fit is said."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from phalanx.engine.model.onnx_model import OnnxModel
from phalanx.errors import UserError


def write(path, batch):
    """y = x W, and the sum of each row."""
    weight = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "w")
    axes = numpy_helper.from_array(np.array([1]), "axes")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["y"]),
            helper.make_node("ReduceSum", ["y", "axes"], ["s"], keepdims=0),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 2]),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [batch]),
        ],
        [weight, axes],
    )
    opset = helper.make_opsetid("", 18)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    return OnnxModel(path)


@pytest.mark.parametrize("batch", [1, 4, 5, 16, "batch"])
@pytest.mark.parametrize("samples", [1, 5, 9])
def test_any_number_of_samples_goes_through_a_fixed_batch(tmp_path, batch, samples):
    model = write(tmp_path / "m.onnx", batch)
    assert model.batch == (None if batch == "batch" else batch)
    x = torch.randn(samples, 3)
    wanted = x @ torch.arange(6.0).reshape(3, 2)
    for y, total in (model(x), model(x=x)):
        torch.testing.assert_close(y, wanted)
        torch.testing.assert_close(total, wanted.sum(1))


@pytest.mark.parametrize(
    ("feed", "said"),
    [
        ({"x": torch.randn(2, 4)}, "`x` is [2, 4] here"),
        ({"z": torch.randn(2, 3)}, "no `x`; `z` is unknown to the file"),
    ],
)
def test_inputs_that_do_not_fit_are_a_finding(tmp_path, feed, said):
    model = write(tmp_path / "m.onnx", "batch")
    with pytest.raises(UserError) as caught:
        model(**feed)
    (finding,) = caught.value.findings
    assert finding.slug == "onnx-inputs"
    assert said in finding.why


def test_a_file_that_is_no_onnx_is_a_finding(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"half of a file")
    with pytest.raises(UserError) as caught:
        OnnxModel(tmp_path / "m.onnx")
    assert caught.value.findings[0].slug == "onnx-unreadable"
