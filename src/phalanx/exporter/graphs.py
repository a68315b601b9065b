"""A model as a graph that runs without its recipe: ONNX, TorchScript, TensorRT.

build the model -> run it on real samples -> write the file -> run the file on the same samples ->
compare. In half precision the file computes in fp16 and takes and gives fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.engine.checkpoint.trained_model import build_model
from phalanx.engine.model.exported_forward import Forward, Run, find_exported
from phalanx.engine.model.onnx_model import OnnxModel, require_onnx
from phalanx.errors import Finding
from phalanx.exporter.compare import Comparison, judge, time_ms, tolerance_of
from phalanx.exporter.int8 import Calibrated, quantize
from phalanx.exporter.onnx import ONNX_FILE, describe, write_onnx
from phalanx.exporter.samples import COMPARED, Inputs, RealSamples
from phalanx.exporter.tensorrt import ENGINE_FILE, EngineModel, missing_runtime, write_engine
from phalanx.exporter.torchscript import TORCHSCRIPT_FILE, open_torchscript, write_torchscript
from phalanx.recipe.graphs import Exported, ExportingGraphs
from phalanx.recipe.interface import Recipe
from phalanx.recipe.questions import ExportAnswer, ExportQuestion
from phalanx.run.weights_file import RECORD

GRAPH_FORMS = ("onnx", "torchscript", "tensorrt")


def write_graph(
    request: ExportQuestion, recipe: Recipe, folder: Path, report: ExportAnswer
) -> None:
    """Write the form that is asked for, and compare it with PyTorch."""
    if request.form != "torchscript":
        require_onnx()
    model, findings = build_model(recipe, request.file)
    report.findings += findings
    samples = RealSamples(recipe)
    exported = find_exported(recipe, model, samples.batch(0, max(2, request.batch)))
    request = replace(request, record=_record(request, recipe, exported))
    compared = Comparison(exported, _batches(request, exported, samples), _runner(exported.module))
    report.samples, report.torch_ms = compared.samples, compared.torch_ms
    report.batch = len(next(iter(compared.batches[0].values())))
    _say_left_out(request, compared, samples, report)
    module = Forward(
        exported.module.half() if request.is_half else exported.module, is_half=request.is_half
    ).eval()
    example = compared.batches[0]
    if request.form == "torchscript":
        path = folder / TORCHSCRIPT_FILE
        write_torchscript(request, module, example, path)
        _compare(request, compared, open_torchscript(path), report, f"torch {torch.__version__}")
        return
    path = folder / ONNX_FILE
    plain = folder / ".plain.onnx" if request.is_int8 else path
    write_onnx(request, module, exported, example, plain)
    if request.is_int8:
        is_engine = request.form == "tensorrt"
        used = quantize(plain, path, recipe, exported, batch=request.batch, for_tensorrt=is_engine)
        report.findings.append(_calibrated(used))
        for left in folder.glob(".plain.onnx*"):
            left.unlink()
    file = OnnxModel(path)
    _compare(request, compared, file, report, "onnxruntime")
    if request.form == "tensorrt":
        _build_engine(request, exported, example, folder, compared, report)


def _build_engine(
    request: ExportQuestion,
    exported: Exported,
    example: Inputs,
    folder: Path,
    compared: Comparison,
    report: ExportAnswer,
) -> None:
    if (missing := missing_runtime(request.folder / ONNX_FILE)) is not None:
        report.findings.append(missing)
        return
    path = folder / ENGINE_FILE
    write_engine(request, exported, example, folder / ONNX_FILE, path)
    # PyTorch beside it on the same GPU.
    exported.module.float().cuda()
    on_gpu = {name: tensor.cuda() for name, tensor in compared.batches[0].items()}
    report.torch_ms = time_ms(_runner(exported.module), on_gpu, torch.cuda.synchronize)
    _compare(request, compared, EngineModel(path), report, "TensorRT")
    report.device = torch.cuda.get_device_name()


def _compare(
    request: ExportQuestion, compared: Comparison, run: Run, report: ExportAnswer, runtime: str
) -> None:
    on_tensorrt = runtime == "TensorRT"
    report.differences = compared.differences(
        run,
        tolerance_of(request, on_tensorrt=on_tensorrt),
        is_exact=request.precision == "fp32" and not on_tensorrt,
    )
    judge(report, request)
    report.exported_ms = time_ms(run, compared.batches[0])
    report.runtime = runtime


def _runner(module: nn.Module) -> Run:
    plain = Forward(module).eval()

    def run(*given: Tensor, **named: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            made: tuple[Tensor, ...] = plain(*given, *named.values())
        return made

    return run


def _batches(request: ExportQuestion, exported: Exported, samples: RealSamples) -> Iterator[Inputs]:
    """Batches of the size that the file is for; the first is also what it is traced with. A fixed
    shape is that of the first; a dynamic file is run on other numbers of samples too, and traced
    with at least two: torch.export takes an axis of length 1 for a constant."""
    size = max(2, request.batch) if request.is_dynamic else request.batch
    shapes: list[Any] = []
    for inputs in samples.inputs(exported, size):
        shape = [tuple(tensor.shape) for tensor in inputs.values()]
        if request.is_dynamic or not shapes or shape == shapes[0]:
            shapes.append(shape)
            yield inputs
    if request.is_dynamic:
        for other in (1, size + 1):
            yield dict(exported.inputs(samples.batch(0, other)))


def _record(request: ExportQuestion, recipe: Recipe, exported: Exported) -> dict[str, str]:
    """What the file says of itself: what the recipe wants to be known, and our own record."""
    record = {
        **request.record,
        "form": request.form,
        "precision": request.precision,
        "is_dynamic": request.is_dynamic,
        "outputs": list(exported.outputs),
    }
    about = recipe.export_metadata() if isinstance(recipe, ExportingGraphs) else {}
    return describe({"batch": request.batch, **about, RECORD: record})


def _say_left_out(
    request: ExportQuestion, compared: Comparison, samples: RealSamples, report: ExportAnswer
) -> None:
    wanted = min(COMPARED, samples.count)
    if request.is_dynamic or compared.samples + request.batch > wanted:
        return
    shape = {name: list(tensor.shape) for name, tensor in compared.batches[0].items()}
    report.findings.append(
        Finding(
            slug="export-one-shape",
            what=f"the file takes inputs of one shape; {wanted - compared.samples} of {wanted} "
            "samples have another and were left out",
            why=f"its shape is that of the first: {shape}",
            fix="--dynamic",
            severity="warning",
        )
    )


def _calibrated(used: Calibrated) -> Finding:
    is_train = used.split == "train"
    is_data = used.split != "example"
    where = f"of the {used.split} split" if is_data else "that the recipe has as its example"
    return Finding(
        slug="int8-calibrated",
        what=f"the ranges of int8 are those of {used.samples} samples {where}",
        why="static quantization of onnxruntime: int8 weights per channel, int8 activations, the "
        "least and the largest value seen"
        + ("" if is_train else "; the train split cannot be read here"),
        fix="nothing to do" if is_data else "bring the data, or name it: key=value",
        severity="note" if is_data else "warning",
    )
