"""Images and boxes as micro-batches: `image` (uint8, RGB, channels last in memory), `classes` and
`boxes` of each image (shares of its sides), filled up with class -1 to one of a few lengths."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from phalanx.recipe import Epoch, Split, keys
from phalanx.recipes.detection.augment import GREY, Augmenter, Loaded
from phalanx.recipes.detection.labels import Labels
from phalanx.recipes.detection.options import STRIDE, DetectionOptions

NO_CLASS = -1
_FEWEST_BOXES = 32  # lengths are this and its doubles: few sizes, so that graphs can be used again
_RECT_PAD = 0.5  # of a stride around evaluated images, as Ultralytics has it


class DetectionData:
    """A split of a data set. What `load` returns is what `loader.cache` keeps."""

    def __init__(self, labels: Labels, options: DetectionOptions) -> None:
        self._labels = labels
        self._options = options
        self._size = options.size
        cv2.setNumThreads(0)  # loader processes share the cores already

    def __len__(self) -> int:
        return len(self._labels.images)

    def origin(self, index: int) -> str:
        """What `load` makes an image of."""
        path = self._labels.images[index]
        about = path.stat()
        return f"detection {self._size} {path} {about.st_size} {about.st_mtime_ns}"

    def load(self, index: int) -> np.ndarray:
        """The image in BGR with its longer side at the training size."""
        path = self._labels.images[index]
        image = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)
        if image is None:
            raise ValueError(f"{path} is no image that OpenCV reads")
        height, width = image.shape[:2]
        ratio = self._size / max(height, width)
        if ratio == 1:
            return np.asarray(image)
        shape = (
            min(math.ceil(width * ratio), self._size),
            min(math.ceil(height * ratio), self._size),
        )
        return np.asarray(cv2.resize(image, shape, interpolation=cv2.INTER_LINEAR))

    def _rows(self, index: int, width: int, height: int) -> np.ndarray:
        """class, left, top, right, bottom in pixels of an image of that size."""
        rows = self._labels.of(index)
        half = rows[:, 3:5] / 2
        scale = np.array([width, height], np.float32)
        kinds = np.zeros_like(rows[:, :1]) if self._options.single_class else rows[:, :1]
        return np.concatenate(
            [kinds, (rows[:, 1:3] - half) * scale, (rows[:, 1:3] + half) * scale], 1
        )

    def _loaded(self, index: int) -> Loaded:
        image = self.load(index)
        height, width = image.shape[:2]
        return Loaded(image, self._rows(index, width, height))


class TrainData(DetectionData):
    """Augmented squares; what is random comes from the sample's key."""

    def __init__(self, labels: Labels, options: DetectionOptions) -> None:
        super().__init__(labels, options)
        self._augmenter = Augmenter(options, load=self._loaded, count=len(self), size=self._size)

    def __getitems__(
        self, ids: np.ndarray, sample_keys: np.ndarray, epoch: Epoch
    ) -> dict[str, Any]:
        is_open = epoch.number < epoch.total - self._options.close_mosaic
        make = partial(self._augmenter.make, is_open=is_open)
        made = [
            make(index, keys.generator(key))
            for index, key in zip(ids.tolist(), sample_keys.tolist(), strict=True)
        ]
        batch = collate(made, self._size, self._size)
        if self._options.multi_scale:
            batch["size"] = self._drawn_size(sample_keys[:1])
        return batch

    def _drawn_size(self, key: np.ndarray) -> int:
        """Of a whole micro-batch: from its first sample, which is the same on any rank."""
        low = max(STRIDE, int(self._size * (1 - self._options.multi_scale)))
        high = int(self._size * (1 + self._options.multi_scale)) + STRIDE
        drawn = int(keys.integers(keys.derive(key, "size"), low=low, high=high)[0])
        return drawn // STRIDE * STRIDE


class TestData(DetectionData):
    """Whole images on grey, from wide to narrow so that those of a micro-batch are alike."""

    def __init__(self, labels: Labels, options: DetectionOptions) -> None:
        super().__init__(_by_shape(labels) if options.rect else labels, options)

    def __getitems__(self, ids: np.ndarray, sample_keys: np.ndarray) -> dict[str, Any]:
        height, width = self._shape_of(ids)
        made = [self._framed(index, width, height) for index in ids.tolist()]
        return {**collate(made, width, height), "id": torch.from_numpy(ids)}

    def _shape_of(self, ids: np.ndarray) -> tuple[int, int]:
        """Height and width of a micro-batch: Ultralytics' rectangles."""
        if not self._options.rect:
            return self._size, self._size
        ratios = [h / w for h, w in self._labels.sizes[ids].tolist()]
        tall = max(ratios) if max(ratios) < 1 else 1.0
        wide = 1 / min(ratios) if min(ratios) > 1 else 1.0
        steps = (math.ceil(share * self._size / STRIDE + _RECT_PAD) for share in (tall, wide))
        height, width = (STRIDE * count for count in steps)
        return height, width

    def _framed(self, index: int, width: int, height: int) -> Loaded:
        image = self.load(index)
        h, w = image.shape[:2]
        ratio = min(height / h, width / w, 1.0)
        if ratio < 1:
            w, h = round(w * ratio), round(h * ratio)
            image = np.asarray(cv2.resize(image, (w, h), interpolation=cv2.INTER_LINEAR))
        left, top = round((width - w) / 2 - 0.1), round((height - h) / 2 - 0.1)
        framed = np.full((height, width, 3), GREY, np.uint8)
        cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=image)
        framed[top : top + h, left : left + w] = image
        rows = self._rows(index, w, h) + np.array([0, left, top, left, top], np.float32)
        return Loaded(framed, rows)


def _by_shape(labels: Labels) -> Labels:
    ratios = labels.sizes[:, 0] / np.maximum(labels.sizes[:, 1], 1)
    order = np.argsort(ratios, kind="stable")
    rows = [labels.of(index) for index in order]
    return Labels(
        [labels.images[index] for index in order],
        labels.sizes[order],
        np.cumsum([0, *(len(found) for found in rows)], dtype=np.int64),
        np.concatenate(rows) if rows else labels.rows,
        labels.faults,
    )


def collate(made: list[Loaded], width: int, height: int) -> dict[str, Any]:
    """One micro-batch of images of the same size."""
    images = np.stack([image for image, _ in made])
    most = max((len(rows) for _, rows in made), default=0)
    length = _FEWEST_BOXES
    while length < most:
        length *= 2
    classes = np.full((len(made), length), NO_CLASS, np.int64)
    boxes = np.zeros((len(made), length, 4), np.float32)
    scale = np.array([width, height, width, height], np.float32)
    for index, (_, rows) in enumerate(made):
        classes[index, : len(rows)] = rows[:, 0]
        boxes[index, : len(rows)] = rows[:, 1:] / scale
    return {
        "image": torch.from_numpy(images).permute(0, 3, 1, 2),
        "classes": torch.from_numpy(classes),
        "boxes": torch.from_numpy(boxes),
    }


def as_input(images: Tensor, model: torch.nn.Module) -> Tensor:
    """What the model takes: shares of brightness, in the type of its weights."""
    return images.to(next(model.parameters()).dtype) / 255


def open_split(split: Split, labels: Labels, options: DetectionOptions) -> DetectionData:
    return TrainData(labels, options) if split == "train" else TestData(labels, options)


def resized(images: Tensor, size: int) -> Tensor:
    """Images at another size, for training at many."""
    if size == max(images.shape[2:]):
        return images
    return torch.nn.functional.interpolate(
        images, size=(size, size), mode="bilinear", align_corners=False
    )
