"""A TensorRT engine from an ONNX file, built and run on the GPU at hand.

An engine belongs to one kind of GPU and one version of TensorRT; the ONNX file beside it is what
another machine builds its own from. The network is strongly typed: fp16 and int8 are what the ONNX
file says, chosen here and not by the builder.
"""

from __future__ import annotations

import json
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phalanx.errors import Finding, UserError
from phalanx.exporter.samples import Inputs
from phalanx.recipe.graphs import Exported
from phalanx.recipe.questions import ExportQuestion

ENGINE_FILE = "model.engine"
_LARGEST = 64  # times the example, for a dynamic axis that nobody has bounded


def missing_runtime(ready: Path) -> Finding | None:
    """What keeps this machine from building an engine of a file that is ready for it."""
    has_package, has_gpu = find_spec("tensorrt") is not None, torch.cuda.is_available()
    if has_package and has_gpu:
        return None
    missing = [] if has_gpu else ["no GPU that CUDA sees"]
    missing += [] if has_package else ["no package `tensorrt`"]
    return Finding(
        slug="tensorrt-missing",
        what=f"no TensorRT engine was built; the ONNX file for it is ready: `{ready}`",
        why=f"an engine is built on the GPU that runs it, and here is {' and '.join(missing)}",
        fix="on a machine with a GPU: `pip install tensorrt`, then the same command; or "
        f"trtexec --onnx={shlex.quote(str(ready))} --stronglyTyped --saveEngine={ENGINE_FILE}",
    )


def write_engine(
    request: ExportQuestion, exported: Exported, example: Inputs, source: Path, target: Path
) -> None:
    """Build an engine for the GPU at hand."""
    import tensorrt as trt

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(1 << int(flag) if flag is not None else 0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(source)):
        errors = [str(parser.get_error(n)) for n in range(parser.num_errors)]
        raise UserError(_not_built(trt, "; ".join(errors) or "the ONNX file was not understood"))
    config = builder.create_builder_config()
    if request.precision == "fp32" and hasattr(trt.BuilderFlag, "TF32"):
        config.clear_flag(trt.BuilderFlag.TF32)  # fp32 means fp32
    if request.is_dynamic:
        config.add_optimization_profile(_profile(builder, request, exported, example))
    made = builder.build_serialized_network(network, config)
    if made is None:
        raise UserError(_not_built(trt, "the builder found no way to run it on this GPU"))
    target.write_bytes(bytes(made))
    about = {**request.record, "tensorrt": trt.__version__, "gpu": torch.cuda.get_device_name()}
    target.with_suffix(".json").write_text(json.dumps(about, indent=2), encoding="utf-8")


def _profile(builder: Any, request: ExportQuestion, exported: Exported, example: Inputs) -> Any:
    profile = builder.create_optimization_profile()
    for name, tensor in example.items():
        axes = {0, *exported.dynamic.get(name, {})}
        shape = list(tensor.shape)
        least = [1 if n in axes else size for n, size in enumerate(shape)]
        most = [_LARGEST * size if n in axes else size for n, size in enumerate(shape)]
        profile.set_shape(name, least, shape, most)
    return profile


class EngineModel:
    """An engine that is called with tensors."""

    def __init__(self, path: Path) -> None:
        import tensorrt as trt

        self._runtime: Any = trt.Runtime(trt.Logger(trt.Logger.ERROR))
        self._engine: Any = self._runtime.deserialize_cuda_engine(path.read_bytes())
        self._context: Any = self._engine.create_execution_context()
        names = [self._engine.get_tensor_name(n) for n in range(self._engine.num_io_tensors)]
        kind = trt.TensorIOMode.INPUT
        self._inputs = [n for n in names if self._engine.get_tensor_mode(n) == kind]
        self._outputs = [n for n in names if self._engine.get_tensor_mode(n) != kind]
        self._dtypes = {
            trt.float32: torch.float32,
            trt.float16: torch.float16,
            trt.int32: torch.int32,
            trt.int64: torch.int64,
            trt.int8: torch.int8,
            trt.bool: torch.bool,
        }

    def __call__(self, *given: Tensor, **named: Tensor) -> tuple[Tensor, ...]:
        feed = {**dict(zip(self._inputs, given, strict=False)), **named}
        held = []  # until the engine is through with them
        for name in self._inputs:
            tensor = feed[name].to("cuda", self._dtype(name)).contiguous()
            held.append(tensor)
            self._context.set_input_shape(name, tuple(tensor.shape))
            self._context.set_tensor_address(name, tensor.data_ptr())
        made = []
        for name in self._outputs:
            shape = tuple(self._context.get_tensor_shape(name))
            made.append(torch.empty(shape, dtype=self._dtype(name), device="cuda"))
            self._context.set_tensor_address(name, made[-1].data_ptr())
        self._context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
        torch.cuda.current_stream().synchronize()
        return tuple(made)

    def _dtype(self, name: str) -> torch.dtype:
        return self._dtypes[self._engine.get_tensor_dtype(name)]


def _not_built(trt: Any, why: str) -> Finding:
    return Finding(
        slug="tensorrt-failed",
        what="TensorRT did not build an engine",
        why=f"TensorRT {trt.__version__}: {why[:600]}",
        fix="--to onnx, with onnxruntime on the GPU",
    )
