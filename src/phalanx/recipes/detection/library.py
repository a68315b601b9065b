"""Ultralytics, imported on demand and kept from reaching for the network. AGPL-3.0."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch

from phalanx.recipe import Finding, UserError, cache_folder

PACKAGES = {"ultralytics": "ultralytics", "torchvision": "torchvision", "cv2": "opencv-python"}


def missing_packages() -> list[Finding]:
    """What this recipe needs and is not installed."""
    absent = [package for module, package in PACKAGES.items() if find_spec(module) is None]
    if not absent:
        return []
    return [
        Finding(
            slug="missing-extra",
            what=f"the detection recipe needs {', '.join(absent)}, which "
            f"{'is' if len(absent) == 1 else 'are'} not installed",
            why="models, loss and metrics are Ultralytics' own, in the extra `detection`; its "
            "licence is AGPL-3.0, which asks you to publish what you build on it or to buy theirs",
            fix="pip install 'phalanx[detection]'",
        )
    ]


@functools.cache
def ultralytics() -> Any:
    """The package. It would look for updates and install packages by itself: here it does not, and
    its settings lie in Phalanx's cache."""
    if found := missing_packages():
        raise UserError(found)
    os.environ.setdefault("YOLO_OFFLINE", "true")
    os.environ.setdefault("YOLO_AUTOINSTALL", "false")
    os.environ.setdefault("ULTRALYTICS_SAFE_LOAD", "1")  # model files name known layers, no code
    if "YOLO_CONFIG_DIR" not in os.environ:
        folder = cache_folder("ultralytics")
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["YOLO_CONFIG_DIR"] = str(folder)
    try:
        # Classes of it hold tensors: made where values are, though a model is being planned.
        with _alone(), torch.device("cpu"):
            import ultralytics as package
            import ultralytics.nn.tasks
            import ultralytics.utils.metrics
            import ultralytics.utils.nms
    except (ImportError, RuntimeError, OSError) as error:
        raise UserError(_broken(error)) from error
    logging.getLogger("ultralytics").setLevel(logging.ERROR)
    return package


@contextmanager
def _alone() -> Iterator[None]:
    """Inside, this process seems to be no rank. Importing Ultralytics lets all ranks but the first
    wait for the first one to import it as well, which may have done so long ago: forever."""
    kept = {name: os.environ.pop(name, None) for name in ("RANK", "LOCAL_RANK")}
    try:
        yield
    finally:
        os.environ.update({name: value for name, value in kept.items() if value is not None})


def _broken(error: Exception) -> Finding:
    return Finding(
        slug="extra-broken",
        what=f"Ultralytics does not load: {type(error).__name__}: {str(error)[:300]}",
        why="torchvision must be built for the torch that is installed; beside a CPU build of "
        "torch the usual wheel is not",
        fix="pip install --upgrade torch torchvision ultralytics",
    )
