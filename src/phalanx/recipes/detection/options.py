"""What a user may say about detection; Ultralytics' names and defaults wherever it has them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from phalanx.recipe import Options

STRIDE = 32
"""Pixels that an image's sides are multiples of: the coarsest grid of these models."""
Share = Annotated[float, Field(ge=0, le=1)]


class DetectionOptions(Options):
    """Options of the detection recipe."""

    data: Path | None = None
    """Ultralytics' data.yaml: folders, lists or files of images for `train` and `val`, and class
    names. Default: generated shapes on textured backgrounds."""
    model: str = "yolo11n"
    """`yolo11n`, `s`, `m`, `l` or `x` with fresh weights; a `.yaml` of your own; or a `.pt` of
    Ultralytics, whose weights are taken where they fit."""
    image_size: int | None = Field(default=None, ge=STRIDE, le=4096)
    """Side of training images in pixels, a multiple of 32. Default: 640; 128 for the shapes."""
    single_class: bool = False
    """Take all classes for one."""
    split: Literal["val", "test"] = "val"
    """Which images of the data.yaml evaluation looks at."""
    names: list[str] | None = None
    """Names of the model's classes. Default: those of the data; checkpoints and exported files
    carry them to where the data is not."""
    structure: dict[str, Any] | None = None
    """The model's layers as a `.yaml` describes them, carried like `names`; default: those of
    `model`."""

    mosaic: Share = 1.0
    """Share of the training images that are put together from four."""
    close_mosaic: int = Field(default=10, ge=0)
    """No mosaic and no mixup in the last so many epochs."""
    mixup: Share = 0.0
    """Share of the training images that are blended with another one."""
    hsv_h: Share = 0.015
    """Largest change of hue, as a share of the circle."""
    hsv_s: Share = 0.7
    """Largest change of saturation, as a share."""
    hsv_v: Share = 0.4
    """Largest change of brightness, as a share."""
    degrees: float = Field(default=0.0, ge=0, le=180)
    """Largest rotation."""
    translate: Share = 0.1
    """Largest shift, as a share of the image."""
    scale: float = Field(default=0.5, ge=0, lt=1)
    """Largest change of size: 0.5 is from half to one and a half times."""
    shear: float = Field(default=0.0, ge=0, lt=90)
    """Largest shear in degrees."""
    perspective: float = Field(default=0.0, ge=0, le=0.001)
    """Largest perspective, as Ultralytics counts it."""
    flipud: Share = 0.0
    """Share of the images that are turned upside down."""
    fliplr: Share = 0.5
    """Share of the images that are mirrored."""
    multi_scale: float = Field(default=0.0, ge=0, le=0.9)
    """Train each micro-batch at a size of its own, by up to this share smaller or larger."""

    rect: bool = True
    """Evaluate on rectangles as narrow as the images of a micro-batch allow, not on squares."""
    conf: float = Field(default=0.001, gt=0, lt=1)
    """Detections below this confidence do not count in evaluation."""
    iou: float = Field(default=0.7, gt=0, lt=1)
    """Boxes of one class that overlap by more are one detection."""
    max_det: int = Field(default=300, ge=1)
    """Most detections of an image."""

    box: float = Field(default=7.5, ge=0)
    """Weight of the boxes' loss."""
    cls: float = Field(default=0.5, ge=0)
    """Weight of the classes' loss."""
    dfl: float = Field(default=1.5, ge=0)
    """Weight of the loss of the boxes' sides as distributions."""
    freeze: int = Field(default=0, ge=0)
    """How many of the first layers do not learn."""
    warmup_bias_lr: float = Field(default=0.0, ge=0)
    """Learning rate of the biases at the beginning of the warm-up; 0.1 goes with SGD."""

    check_images: bool = True
    """Open every image before training, not only those that are trained on first."""
    pictures: int = Field(default=8, ge=0, le=64)
    """Test images that are shown with their detections after each evaluation; 0 also draws no
    curves."""

    @property
    def size(self) -> int:
        """Side of training images."""
        return self.image_size or (640 if self.data is not None else 128)
