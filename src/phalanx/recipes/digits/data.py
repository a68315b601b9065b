"""The digits data: arrays in memory, one-pixel shifts keyed per sample."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.recipe import Finding, Split, Tensors, keys

_TEST_EVERY = 5  # every fifth image is the test split: 1,797 -> 1,437 train + 360 test
PEAK = 16.0  # pixels are counts of 4x4 blocks: 0 to 16


def open_digits(split: Split, *, folder: Path | None, augment: bool) -> Tensors:
    """8x8 images as float32 in [0, 1] with one channel, labels as int64."""
    images, labels = _read_folder(folder, split) if folder else _read_sklearn(split)
    return Tensors(
        {
            "image": (images.astype(np.float32) / PEAK)[:, None],
            "label": labels.astype(np.int64),
        },
        change=_shift if augment else None,
    )


def _shift(batch: dict[str, Tensor], sample_keys: Tensor) -> dict[str, Tensor]:
    """Move each image by its (row, column) offset; what comes in from outside is zero."""
    images = batch["image"]
    side = images.shape[-1]
    offsets = keys.integers(sample_keys, 2, low=0, high=3)
    places = torch.arange(side, device=images.device)
    places = places[:, None] * (side + 2) + places  # of the image's pixels in the padded one
    first = offsets[:, :1] * (side + 2) + offsets[:, 1:]
    padded = F.pad(images, (1, 1, 1, 1)).flatten(1)
    return {**batch, "image": padded.gather(1, first + places.flatten()).view_as(images)}


def _read_sklearn(split: Split) -> tuple[np.ndarray, np.ndarray]:
    rows = _sklearn_rows()
    images, labels = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(int)
    is_test = np.arange(len(labels)) % _TEST_EVERY == 0
    chosen = is_test if split == "test" else ~is_test
    return images[chosen], labels[chosen]


def _sklearn_rows() -> np.ndarray:
    """Pixels and label of each image, from the file inside scikit-learn: importing it would take
    every rank a second more of each start and restart."""
    found = find_spec("sklearn")
    places = (found.submodule_search_locations or []) if found is not None else []
    for place in places:
        path = Path(place, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits  # its own way, should the file move

    digits: Any = load_digits()
    return np.column_stack([digits.data, digits.target])


def _read_folder(folder: Path, split: Split) -> tuple[np.ndarray, np.ndarray]:
    with np.load(folder / f"{split}.npz", allow_pickle=False) as arrays:
        return arrays["images"], arrays["labels"]


def missing_files(folder: Path | None) -> list[Finding]:
    """What stands between this recipe and its data."""
    if folder is None:
        if find_spec("sklearn") is not None:
            return []
        return [
            Finding(
                slug="missing-extra",
                what="the digits recipe needs scikit-learn, which is not installed",
                why="its images ship inside scikit-learn, in the extra `digits`",
                fix="pip install 'phalanx[digits]'",
            )
        ]
    findings = []
    for split in ("train", "test"):
        path = folder / f"{split}.npz"
        try:
            with np.load(path, allow_pickle=False) as arrays:
                absent = [name for name in ("images", "labels") if name not in arrays]
            problem = f"lacks {' and '.join(absent)}" if absent else None
        except FileNotFoundError:
            problem = "is missing"
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            problem = f"cannot be read: {error}"
        if problem:
            findings.append(
                Finding(
                    slug="digits-data",
                    what=f"`{path}` {problem}",
                    why=f"options.data = {folder}: it holds train.npz and test.npz, each with "
                    "`images` (N x 8 x 8) and `labels` (N)",
                    fix="np.savez(path, images=images, labels=labels)",
                )
            )
    return findings
