"""Ultralytics' detection loss (v8DetectionLoss with its task-aligned assigner), for tensors of
fixed sizes: nothing waits for the device and nothing depends on how many boxes were found, so that
steps can be compiled and recorded. The same numbers; a test holds it against theirs.

Which anchors answer for which object: those inside it, the ten best by score^0.5 x overlap^6.
The three terms share a weight, the sum of the wanted scores, which depends on the predictions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

TOP, ALPHA, BETA = 10, 0.5, 6.0
_EPS, _TINY = 1e-7, 1e-9


class Sums(NamedTuple):
    """Sums over a micro-batch, and what they are divided by."""

    box: Tensor
    cls: Tensor
    dfl: Tensor
    weight: Tensor


class Targets(NamedTuple):
    """What each anchor should have said; (images, anchors, ...)."""

    boxes: Tensor
    scores: Tensor
    is_object: Tensor


def sum_losses(
    predictions: Mapping[str, Tensor | Sequence[Tensor]],
    classes: Tensor,
    boxes: Tensor,
    *,
    strides: Sequence[int],
) -> Sums:
    """`predictions` are those of Ultralytics' head in training: `boxes` (B, 4 x bins, A), `scores`
    (B, C, A) and `feats`; `classes` (B, N), -1 for none, and `boxes` (B, N, 4), left, top, right,
    bottom as shares."""
    sides, scores, grids = predictions["boxes"], predictions["scores"], predictions["feats"]
    assert isinstance(sides, Tensor) and isinstance(scores, Tensor)
    wide = torch.promote_types(sides.dtype, torch.float32)
    sides, scores = sides.to(wide).transpose(1, 2), scores.to(wide).transpose(1, 2)
    bins = sides.shape[-1] // 4
    sides = sides.reshape(*sides.shape[:2], 4, bins)
    shapes = [(int(grid.shape[2]), int(grid.shape[3])) for grid in grids]
    points, step = _anchors(shapes, strides, sides)
    height, width = (side * strides[0] for side in shapes[0])
    left, top, right, bottom = boxes.to(wide).unbind(-1)
    pixels = torch.stack([left * width, top * height, right * width, bottom * height], -1)
    found = _boxes_of(sides, points)
    with torch.no_grad():
        targets = _assign(scores.sigmoid(), found * step, points * step, classes, pixels, strides)
    weight = targets.scores.sum()
    share = targets.scores.sum(-1)
    wanted = targets.boxes / step
    overlap = complete_iou(found, wanted)
    box = torch.where(targets.is_object, (1 - overlap) * share, 0.0).sum()
    cls = F.binary_cross_entropy_with_logits(scores, targets.scores, reduction="sum")
    spread = _spread(sides, points, wanted)
    dfl = torch.where(targets.is_object, spread * share, 0.0).sum()
    return Sums(box, cls, dfl, weight)


def _anchors(
    shapes: Sequence[tuple[int, int]], strides: Sequence[int], like: Tensor
) -> tuple[Tensor, Tensor]:
    """Centres of all cells in cells, and the pixels of a cell."""
    points, steps = [], []
    for (height, width), stride in zip(shapes, strides, strict=True):
        x = torch.arange(width, device=like.device, dtype=like.dtype) + 0.5
        y = torch.arange(height, device=like.device, dtype=like.dtype) + 0.5
        yy, xx = torch.meshgrid(y, x, indexing="ij")
        points.append(torch.stack([xx, yy], -1).reshape(-1, 2))
        steps.append(like.new_full((height * width, 1), float(stride)))
    return torch.cat(points), torch.cat(steps)


def _boxes_of(sides: Tensor, points: Tensor) -> Tensor:
    """Boxes from the mean of each side's distribution, in cells."""
    values = torch.arange(sides.shape[-1], device=sides.device, dtype=sides.dtype)
    left_top, right_bottom = (sides.softmax(-1) * values).sum(-1).chunk(2, -1)
    return torch.cat([points - left_top, points + right_bottom], -1)


def complete_iou(one: Tensor, other: Tensor) -> Tensor:
    """Overlap less distance of the centres and difference of the shapes: CIoU (Zheng et al. 2020),
    with Ultralytics' small numbers."""
    l1, t1, r1, b1 = one.unbind(-1)
    l2, t2, r2, b2 = other.unbind(-1)
    w1, h1, w2, h2 = r1 - l1, b1 - t1 + _EPS, r2 - l2, b2 - t2 + _EPS
    width = (torch.minimum(r1, r2) - torch.maximum(l1, l2)).clamp(min=0)
    height = (torch.minimum(b1, b2) - torch.maximum(t1, t2)).clamp(min=0)
    shared = width * height
    iou = shared / (w1 * h1 + w2 * h2 - shared + _EPS)
    wide = torch.maximum(r1, r2) - torch.minimum(l1, l2)
    high = torch.maximum(b1, b2) - torch.minimum(t1, t2)
    diagonal = wide.square() + high.square() + _EPS
    distance = ((l2 + r2 - l1 - r1).square() + (t2 + b2 - t1 - b1).square()) / 4
    shape = (4 / math.pi**2) * (torch.atan(w2 / h2) - torch.atan(w1 / h1)).square()
    with torch.no_grad():
        alpha = shape / (1 - iou + shape + _EPS)
    return iou - (distance / diagonal + shape * alpha)


def _assign(
    scores: Tensor,
    found: Tensor,
    centres: Tensor,
    classes: Tensor,
    wanted: Tensor,
    strides: Sequence[int],
) -> Targets:
    """The task-aligned assignment (Feng et al. 2021). Tables are (images, objects, anchors)."""
    is_there = classes >= 0
    labels = classes.clamp(min=0)
    inside = _inside(centres, wanted, is_there, strides) & is_there[..., None]
    overlaps = complete_iou(wanted[:, :, None], found[:, None]).clamp(min=0) * inside
    own = scores.transpose(1, 2).gather(1, labels[..., None].expand(-1, -1, len(centres)))
    aligned = (own.pow(ALPHA) * overlaps.pow(BETA)) * inside
    best = torch.zeros_like(inside).scatter_(-1, aligned.topk(TOP, -1).indices, True)
    positive = best & inside
    # An anchor of several objects keeps the one that it overlaps most.
    is_shared = positive.sum(1, keepdim=True) > 1
    most = torch.zeros_like(inside).scatter_(1, overlaps.argmax(1, keepdim=True), True)
    positive = torch.where(is_shared, most, positive)
    is_object, owner = positive.any(1), positive.int().argmax(1)
    aligned = aligned * positive
    largest = aligned.amax(-1, keepdim=True)
    reached = (overlaps * positive).amax(-1, keepdim=True)
    strength = (aligned * reached / (largest + _TINY)).amax(1)
    kinds = labels.gather(1, owner)
    target_scores = torch.zeros_like(scores).scatter_(-1, kinds[..., None], strength[..., None])
    target_scores = target_scores * is_object[..., None]
    boxes = wanted.gather(1, owner[..., None].expand(-1, -1, 4))
    return Targets(boxes, target_scores, is_object)


def _inside(centres: Tensor, boxes: Tensor, is_there: Tensor, strides: Sequence[int]) -> Tensor:
    """Which centres are in which boxes; sides below the middle stride count as that long."""
    least = float(strides[1] if len(strides) > 1 else strides[0])
    middle, half = (boxes[..., :2] + boxes[..., 2:]) / 2, (boxes[..., 2:] - boxes[..., :2]) / 2
    half = torch.where((2 * half < least) & is_there[..., None], least / 2, half)
    low, high = (middle - half)[:, :, None], (middle + half)[:, :, None]
    return ((centres - low > _TINY) & (high - centres > _TINY)).all(-1)


def _spread(sides: Tensor, points: Tensor, wanted: Tensor) -> Tensor:
    """How far the distribution of each side is from the two bins around its length: distribution
    focal loss (Li et al. 2020), the mean of the four sides."""
    most = sides.shape[-1] - 1 - 0.01
    length = torch.cat([points - wanted[..., :2], wanted[..., 2:] - points], -1).clamp(0, most)
    below = length.long()
    near = below + 1 - length
    logs = sides.log_softmax(-1)
    lower = logs.gather(-1, below[..., None])[..., 0]
    upper = logs.gather(-1, below[..., None] + 1)[..., 0]
    return -(lower * near + upper * (1 - near)).mean(-1)
