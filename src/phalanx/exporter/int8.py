"""An ONNX file in int8: ranges of all activations from real samples of the train split.

Weights and activations get scales without offsets, in pairs of Quantize and Dequantize around each
operator, and biases stay as they are: onnxruntime runs that, and TensorRT takes it as it is
(docs.nvidia.com/deeplearning/tensorrt, "Working with Quantized Types").
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from phalanx.engine.model.onnx_model import OnnxModel
from phalanx.errors import Finding, UserError
from phalanx.exporter.samples import CALIBRATED, RealSamples
from phalanx.recipe.graphs import Exported
from phalanx.recipe.interface import Recipe

_LEARNED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_EXTERNAL_BYTES = 1_500_000_000  # protobuf ends at 2 GB


class Calibrated(NamedTuple):
    """What the ranges were taken from."""

    samples: int
    split: str
    """`train`, `test`, or `example`."""


def quantize(
    source: Path,
    target: Path,
    recipe: Recipe,
    exported: Exported,
    *,
    batch: int,
    for_tensorrt: bool,
) -> Calibrated:
    """Write the int8 form of an ONNX file; returns what it was calibrated with."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    samples = RealSamples(recipe, "train")
    if samples.split != "train":
        samples = RealSamples(recipe, "test")
    size = OnnxModel(source).batch or batch
    feeds = [
        {name: tensor.numpy() for name, tensor in inputs.items()}
        for inputs in samples.inputs(exported, size, CALIBRATED)
    ]

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._feeds = iter(feeds)

        def get_next(self) -> object:
            return next(self._feeds, None)

    prepared = target.with_name(".prepared.onnx")
    is_large = source.stat().st_size > _EXTERNAL_BYTES
    logging.disable(logging.WARNING)  # it advises on what is done here
    try:
        quant_pre_process(
            str(source), str(prepared), skip_symbolic_shape=True, save_as_external_data=is_large
        )
        quantize_static(
            str(prepared),
            str(target),
            Reader(),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            use_external_data_format=is_large,
            nodes_to_exclude=_after_last_weights(prepared),
            extra_options={
                "ActivationSymmetric": True,
                "WeightSymmetric": True,
                # TensorRT wants to quantize the weights itself: they stay wide in its file.
                "AddQDQPairToWeight": for_tensorrt,
                "QuantizeBias": False,
            },
        )
    except Exception as error:  # whatever onnxruntime stumbles over in a graph
        raise UserError(
            Finding(
                slug="int8-not-offered",
                what="this model cannot be quantized to int8",
                why=f"onnxruntime: {type(error).__name__}: {' '.join(str(error).split())[:500]}",
                fix="--half instead of --int8",
            )
        ) from error
    finally:
        logging.disable(logging.NOTSET)
        for left in target.parent.glob(".prepared.onnx*"):
            left.unlink()
    return Calibrated(sum(len(next(iter(feed.values()))) for feed in feeds), samples.split)


def _after_last_weights(file: Path) -> list[str]:
    """The nodes from which no learned layer follows: what turns the model's last numbers into
    places and scores. It costs next to nothing, and one scale for both would leave nothing of the
    scores."""
    import onnx

    graph = onnx.load(str(file), load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    needed: set[str] = set()
    tail = []
    for node in reversed(graph.node):
        is_learned = node.op_type in _LEARNED and any(name in weights for name in node.input)
        if is_learned or any(name in needed for name in node.output):
            needed.update(node.input)
        else:
            tail.append(node.name)
    return tail
