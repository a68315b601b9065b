"""Pictures of an evaluation: detections in test images, curves and the confusion matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import cv2
import numpy as np
import torch
from torch import nn

from phalanx.recipe import Media
from phalanx.recipes.detection.charts import COLOURS, Line, draw_lines, draw_matrix
from phalanx.recipes.detection.data import NO_CLASS, as_input
from phalanx.recipes.detection.options import DetectionOptions
from phalanx.recipes.detection.scoring import average_precision, suppress

_SHOWN_FROM = 0.25  # confidence
_LARGEST = 320  # pixels of a shown image's longer side


def show_detections(
    model: nn.Module, data: Any, options: DetectionOptions, names: dict[int, str]
) -> list[Media]:
    """Test images from all over the split, their labels thin and what was found thick."""
    count = min(options.pictures, len(data))
    if not count:
        return []
    ids = np.unique(np.linspace(0, len(data) - 1, count).astype(np.int64))
    device = next(model.parameters()).device
    shown = []
    for index in ids:
        batch = data.__getitems__(np.array([index]), np.array([0]))
        boxes, _ = model(as_input(batch["image"].to(device), model))
        found = suppress(boxes, options)[0].float().cpu()
        shown.append(_draw(batch, found[found[:, 4] >= _SHOWN_FROM], names))
    content = _encode(_grid(shown))
    caption = f"{len(ids)} test images: labels thin, detections of {_SHOWN_FROM:.0%} and more thick"
    return [Media("detections", ".jpg", content, caption)]


def _draw(batch: Mapping[str, Any], found: torch.Tensor, names: dict[int, str]) -> np.ndarray:
    image = np.ascontiguousarray(batch["image"][0].permute(1, 2, 0).numpy()[..., ::-1])
    height, width = image.shape[:2]
    zoom = _LARGEST / max(height, width)
    image = np.asarray(cv2.resize(image, (round(width * zoom), round(height * zoom))))
    for kind, box in zip(batch["classes"][0].tolist(), batch["boxes"][0].tolist(), strict=True):
        if kind != NO_CLASS:
            left, top, right, bottom = box
            places = [left * width, top * height, right * width, bottom * height]
            _frame(image, places, zoom, kind, thickness=1)
    for *box, confidence, number in found.tolist():
        kind = int(number)
        _frame(image, box, zoom, kind, thickness=2)
        text = f"{names.get(kind, kind)} {confidence:.2f}"
        place = (max(0, round(box[0] * zoom)), max(10, round(box[1] * zoom) - 3))
        for colour, width_ in (((0, 0, 0), 3), ((255, 255, 255), 1)):
            cv2.putText(image, text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.4, colour, width_)
    return image


def _frame(
    image: np.ndarray, box: Sequence[float], zoom: float, kind: int, *, thickness: int
) -> None:
    left, top, right, bottom = (round(v * zoom) for v in box)
    cv2.rectangle(image, (left, top), (right, bottom), COLOURS[kind % len(COLOURS)], thickness)


def _grid(images: list[np.ndarray]) -> np.ndarray:
    columns = math.ceil(math.sqrt(len(images)))
    height = max(image.shape[0] for image in images)
    width = max(image.shape[1] for image in images)
    rows = math.ceil(len(images) / columns)
    grid = np.full((rows * height, columns * width, 3), 255, np.uint8)
    for index, image in enumerate(images):
        top, left = index // columns * height, index % columns * width
        grid[top : top + image.shape[0], left : left + image.shape[1]] = image
    return grid


def _encode(image: np.ndarray) -> bytes:
    done, content = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])
    assert done
    return bytes(content.tobytes())


def draw_charts(sums: Mapping[str, Any], names: dict[int, str]) -> Iterator[Media]:
    """Precision over recall, figures over confidence, and which classes are taken for which."""
    metric = average_precision(sums, names)
    if len(sums["targets"]):
        lines = [
            Line(metric.px, metric.prec_values[row], f"{names[int(kind)]} {metric.ap50[row]:.3f}")
            for row, kind in enumerate(metric.ap_class_index)
        ]
        mean = Line(metric.px, metric.prec_values.mean(0), f"all: mAP50 {metric.map50:.3f}")
        content = draw_lines([*lines, mean], across="recall", up="precision")
        yield Media("precision-recall", ".png", content, f"mAP50-95 {metric.map:.3f}")
        curves = {"precision": metric.p_curve, "recall": metric.r_curve, "F1": metric.f1_curve}
        lines = [Line(metric.px, values.mean(0), name) for name, values in curves.items()]
        content = draw_lines(lines, across="confidence", up="mean over the classes")
        yield Media("confidence", ".png", content, "means over the classes")
    labels = [*names.values(), "nothing"]
    counts = sums["confusion"].sum(0).reshape(len(labels), len(labels)).numpy()
    about = "objects, at a confidence of 25% and more: columns are there, rows were found"
    yield Media("confusion", ".png", draw_matrix(counts, labels), about)
