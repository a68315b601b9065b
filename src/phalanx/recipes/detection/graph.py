"""The model as a file that runs without its recipe: images in, boxes and scores out, under the
names and with the metadata that `ultralytics.YOLO("model.onnx")` looks for. Suppression is not part
of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.recipe import Exported
from phalanx.recipes.detection.library import ultralytics
from phalanx.recipes.detection.options import STRIDE, DetectionOptions

INPUT, OUTPUT = "images", "output0"  # as Ultralytics names them
_COMPARED = 50  # the most confident detections of an image that must have a partner
_SAME_BOX, _ROUNDED_BOX = 0.98, 0.9  # overlap of a detection and its partner, in fp32 and below
_SAME_SCORE = 1e-3  # what their confidences may differ by, at least


class Decoder(nn.Module):
    """Boxes (x, y, w, h in pixels) and scores of all cells in one table. What comes after the
    learned layers is fp32 whatever those compute in: a place of 640 pixels has a grain of half a
    pixel in fp16, and weights in int8 would bend the mean of a distribution."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        from ultralytics.utils.tal import dist2bbox, make_anchors

        raw, head = self._raw(images)
        sides, grids = raw["boxes"].float(), raw["feats"]
        bins = head.reg_max
        shares = sides.reshape(sides.shape[0], 4, bins, -1).softmax(2)
        places = torch.arange(bins, dtype=torch.float32, device=sides.device)
        distances = (shares * places[None, None, :, None]).sum(2)
        points, steps = (t.float().transpose(0, 1) for t in make_anchors(grids, head.stride, 0.5))
        boxes = dist2bbox(distances, points.unsqueeze(0), xywh=True, dim=1) * steps
        return torch.cat([boxes, raw["scores"].float().sigmoid()], 1)

    def _raw(self, images: Tensor) -> tuple[dict[str, Any], Any]:
        """What the head says before it is decoded: the layers in their order, as Ultralytics' model
        runs them, since that decodes in the type it computes in."""
        layers: Any = self.network.model
        saved: set[int] = set(self.network.save)  # type: ignore[arg-type]
        kept: list[Any] = []
        given: Any = images
        for layer in layers[:-1]:
            given = layer(_inputs(layer, given, kept))
            kept.append(given if layer.i in saved else None)
        head: Any = layers[-1]
        raw: dict[str, Any] = head.forward_head(_inputs(head, given, kept), **head.one2many)
        return raw, head


def _inputs(layer: Any, last: Any, kept: list[Any]) -> Any:
    if layer.f == -1:
        return last
    if isinstance(layer.f, int):
        return kept[layer.f]
    return [last if place == -1 else kept[place] for place in layer.f]


class _File(nn.Module):
    """What `evaluate` is given in the place of a model when a file is evaluated."""

    def __init__(self, run: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self._run_file = run
        # Inputs are made in the type of a model's weights.
        self.like = nn.Parameter(torch.zeros(()), requires_grad=False)

    def forward(self, images: Tensor) -> tuple[Tensor, None]:
        (found,) = self._run_file(images)
        return found, None


def describe_graph(model: nn.Module, options: DetectionOptions) -> Exported:
    """What is exported of a detection model, and how a file is held against it."""
    ultralytics()
    return Exported(
        Decoder(model),
        lambda batch: {INPUT: batch["image"].float() / 255},
        (OUTPUT,),
        dynamic={INPUT: {2: f"{STRIDE}*height", 3: f"{STRIDE}*width"}},
        match=lambda wanted, made, tolerance: match_detections(
            wanted[OUTPUT], made[OUTPUT], options, tolerance
        ),
        stand_in=_File,
    )


def match_detections(
    wanted: Tensor, made: Tensor, options: DetectionOptions, tolerance: float = 1e-4
) -> tuple[int, int]:
    """After the same suppression: how many detections there are on both sides together, and how
    many of them have no partner of the same class, place and confidence on the other side. Looked
    at are the most confident of each image; those at the edge of what counts may be on one side
    alone."""
    from phalanx.recipes.detection.scoring import suppress

    # Suppression changes what it is given.
    pairs = (suppress(table.clone(), options) for table in (wanted, made))
    score = max(_SAME_SCORE, tolerance)
    overlap = _SAME_BOX if tolerance <= _SAME_SCORE else _ROUNDED_BOX
    count = alone = 0
    for one, other in zip(*pairs, strict=True):
        for here, there in ((one, other), (other, one)):
            looked = here[: min(_COMPARED, len(here))]
            looked = looked[looked[:, 4] > options.conf + score]
            count += len(looked)
            alone += _without_partner(looked, there, overlap, score)
    return count, alone


def _without_partner(looked: Tensor, others: Tensor, overlap: float, score: float) -> int:
    """One to one: a detection that is somebody's partner is nobody else's."""
    from ultralytics.utils.metrics import box_iou

    if not len(looked) or not len(others):
        return len(looked)
    overlaps = box_iou(looked[:, :4], others[:, :4])
    fits = (
        (overlaps >= overlap)
        & (looked[:, None, 5] == others[None, :, 5])
        & ((looked[:, None, 4] - others[None, :, 4]).abs() <= score)
    )
    taken: set[int] = set()
    alone = 0
    for row, shares in zip(fits, overlaps, strict=True):
        free = [n for n in row.nonzero()[:, 0].tolist() if n not in taken]
        if free:
            taken.add(max(free, key=lambda n: float(shares[n])))
        else:
            alone += 1
    return alone


def graph_metadata(options: DetectionOptions, names: dict[int, str]) -> Mapping[str, Any]:
    """What the file says to who runs it: ours, and what Ultralytics reads."""
    return {
        "classes": list(names.values()),
        "preprocessing": {
            "layout": "NCHW",
            "colours": "RGB",
            "divide_by": 255,
            "size": [options.size, options.size],
            "resize": "keep the ratio, fill up with grey",
            "fill": 114,
            "output": "x, y, w, h in pixels, then a score for each class; suppress with "
            f"iou {options.iou}",
        },
        "description": f"{options.model}, trained by Phalanx",
        "task": "detect",
        "stride": str(STRIDE),
        "imgsz": str([options.size, options.size]),
        "channels": "3",
        "names": str(names),
        "license": "AGPL-3.0 (https://ultralytics.com/license)",
    }
