"""What a model found in test images, held against their labels, and the figures of all of it: by
Ultralytics' own suppression, matching, average precision and confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phalanx.recipe import Rows
from phalanx.recipes.detection.library import ultralytics
from phalanx.recipes.detection.options import DetectionOptions

LEVELS = 10  # overlaps of 0.5, 0.55, ... 0.95 that a detection must reach
_CONFUSED_FROM = 0.25  # confidence of what counts in the confusion matrix, as Ultralytics has it


def suppress(predictions: Tensor, options: DetectionOptions) -> list[Tensor]:
    """Detections of each image: left, top, right, bottom in pixels, confidence, class."""
    package = ultralytics()
    found: list[Tensor] = package.utils.nms.non_max_suppression(
        predictions.float(),
        options.conf,
        options.iou,
        multi_label=True,
        agnostic=options.single_class,
        max_det=options.max_det,
        max_time_img=1e6,  # what is found must not depend on how busy a machine is
    )
    return found


def score(
    found: list[Tensor], batch: Mapping[str, Tensor], names: dict[int, str]
) -> dict[str, Any]:
    """Rows of one micro-batch: `detections` (image, confidence, class, whether it is right at each
    level), `targets` (image, class) and `confusion` (one matrix)."""
    from ultralytics.utils.metrics import ConfusionMatrix, box_iou

    matcher, matrix = _matcher(), ConfusionMatrix(names=names)
    height, width = batch["image"].shape[2:]
    scale = torch.tensor([width, height, width, height])
    ids, classes, boxes = batch["id"].cpu(), batch["classes"].cpu(), batch["boxes"].cpu() * scale
    detections, targets = [torch.zeros(0, 3 + LEVELS)], [torch.zeros(0, 2)]
    for index, raw in enumerate(found):
        own = raw.float().cpu()
        there = classes[index] >= 0
        kinds, places = classes[index][there].float(), boxes[index][there].float()
        right = torch.zeros(len(own), LEVELS)
        if len(own) and len(kinds):
            overlaps = box_iou(places, own[:, :4])
            right = matcher.match_predictions(own[:, 5], kinds, overlaps).float()
        image = ids[index].float()
        detections.append(torch.cat([image.expand(len(own), 1), own[:, 4:6], right], 1))
        targets.append(torch.stack([image.expand(len(kinds)), kinds], 1))
        matrix.process_batch(
            {"bboxes": own[:, :4], "conf": own[:, 4], "cls": own[:, 5]},
            {"bboxes": places, "cls": kinds},
            conf=_CONFUSED_FROM,
        )
    counts = torch.from_numpy(np.asarray(matrix.matrix, dtype=np.float32)).reshape(1, -1)
    return {
        "detections": Rows(torch.cat(detections)),
        "targets": Rows(torch.cat(targets)),
        "confusion": Rows(counts),
    }


def _matcher() -> Any:
    """Ultralytics' validator, for its matching alone."""
    from ultralytics.engine.validator import BaseValidator

    matcher = BaseValidator.__new__(BaseValidator)
    matcher.iouv = torch.linspace(0.5, 0.95, LEVELS)
    return matcher


def average_precision(sums: Mapping[str, Any], names: dict[int, str], **drawing: Any) -> Any:
    """Ultralytics' `Metric` of a whole test split."""
    from ultralytics.utils.metrics import Metric, ap_per_class

    detections, targets = sums["detections"].numpy(), sums["targets"].numpy()
    metric = Metric()
    metric.nc = len(names)
    if len(targets):
        figures = ap_per_class(
            detections[:, 3:] > 0.5,
            detections[:, 1],
            detections[:, 2],
            targets[:, 1],
            names=names,
            **drawing,
        )
        metric.update(figures[2:])
    return metric


def summarise(sums: Mapping[str, Any], names: dict[int, str]) -> dict[str, float]:
    """The figures of an evaluation."""
    metric = average_precision(sums, names)
    weight = max(sums.get("weight", 0.0), 1.0)
    return {
        "precision": float(metric.mp),
        "recall": float(metric.mr),
        "mAP50": float(metric.map50),
        "mAP50-95": float(metric.map),
        "fitness": float(metric.fitness()) if len(sums["targets"]) else 0.0,
        **{f"{name}_loss": sums[name] / weight for name in ("box", "cls", "dfl") if name in sums},
    }
