"""Generated data: circles, squares, triangles and crosses on textured backgrounds, as files.

A real detection problem that a small model learns in minutes: sizes from a tenth to nearly half of
the image, objects that overlap by less than a third, colours that say nothing about the class,
noise and gradients behind. Drawn from keys: the same files everywhere.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from phalanx.recipe import cache_folder, keys

NAMES = ("circle", "square", "triangle", "cross")
SIDE = 128
TRAIN, TEST = 320, 80
_VERSION = 1
_MOST_OVERLAP = 0.3
_SMOOTH = 4  # drawn so many times larger and shrunk: edges without steps


def shapes_file() -> Path:
    """The data.yaml of the generated data, made when it is not there yet."""
    folder = cache_folder("detection") / f"shapes-{_VERSION}"
    if not (folder / "data.yaml").exists():
        make_shapes(folder)
    return folder / "data.yaml"


def make_shapes(
    folder: Path, *, train: int = TRAIN, test: int = TEST, side: int = SIDE, seed: int = 0
) -> Path:
    """Write images, labels and data.yaml; the folder appears whole. Returns the data.yaml."""
    import cv2

    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for split, count in (("train", train), ("val", test)):
            for kind in ("images", "labels"):
                (temporary / kind / split).mkdir(parents=True)
            for index in range(count):
                key = keys.make_key(seed, split == "val", index)
                image, rows = draw(keys.generator(key), side)
                name = f"{split}/{index:05d}"
                done, content = cv2.imencode(".png", image)
                assert done
                (temporary / "images" / f"{name}.png").write_bytes(content.tobytes())
                lines = [f"{int(row[0])} " + " ".join(f"{v:.6f}" for v in row[1:]) for row in rows]
                (temporary / "labels" / f"{name}.txt").write_text("\n".join(lines) + "\n")
        about = {"train": "images/train", "val": "images/val", "names": dict(enumerate(NAMES))}
        (temporary / "data.yaml").write_text(yaml.safe_dump(about, sort_keys=False))
        temporary.chmod(0o755)
        try:
            temporary.rename(folder)
        except OSError:  # another process was quicker, with the same files
            if not (folder / "data.yaml").exists():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder / "data.yaml"


def drawn_batch(side: int, count: int = 2) -> dict[str, Any]:
    """A micro-batch of generated images, where there are no others."""
    import cv2

    from phalanx.recipes.detection.augment import Loaded
    from phalanx.recipes.detection.data import collate

    made = []
    for index in range(count):
        image, rows = draw(keys.generator(keys.make_key(0, 2, index)), min(side, SIDE))
        image = np.asarray(cv2.resize(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), (side, side)))
        places = np.array(rows, np.float32).reshape(-1, 5)
        half = places[:, 3:5] / 2
        corners = side * np.concatenate([places[:, 1:3] - half, places[:, 1:3] + half], 1)
        made.append(Loaded(image, np.concatenate([places[:, :1], corners], 1)))
    return collate(made, side, side)


def draw(rng: np.random.Generator, side: int) -> tuple[np.ndarray, list[tuple[float, ...]]]:
    """One image in BGR, and a row (class, x, y, w, h) for each object."""
    image = _background(rng, side)
    boxes: list[tuple[float, float, float, float]] = []
    rows: list[tuple[float, ...]] = []
    for _ in range(int(rng.integers(1, 6))):
        for _ in range(20):  # until one finds a place
            half = 0.5 * side * float(np.exp(rng.uniform(np.log(0.1), np.log(0.45))))
            x, y = rng.uniform(half, side - half, 2)
            box = (x - half, y - half, x + half, y + half)
            if all(_overlap(box, other) < _MOST_OVERLAP for other in boxes):
                break
        else:
            continue
        kind = int(rng.integers(len(NAMES)))
        left, top, right, bottom = _draw_shape(image, rng, kind, float(x), float(y), half)
        boxes.append(box)
        rows.append(
            (
                kind,
                (left + right) / 2 / side,
                (top + bottom) / 2 / side,
                (right - left) / side,
                (bottom - top) / side,
            )
        )
    noise = rng.normal(0, 6, image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8), rows


def _background(rng: np.random.Generator, side: int) -> np.ndarray:
    import cv2

    grain = int(rng.integers(3, 17))
    coarse = rng.uniform(60, 195, 3) + rng.uniform(-45, 45, (grain, grain, 3))
    coarse = coarse.astype(np.float32)
    image = cv2.resize(coarse, (side, side), interpolation=cv2.INTER_CUBIC)
    stripes = np.sin(np.arange(side) * rng.uniform(0.1, 1.2) + rng.uniform(0, 6))
    image = image + (rng.uniform(0, 18) * stripes)[:, None, None]
    return np.ascontiguousarray(image if rng.random() < 0.5 else image.transpose(1, 0, 2))


def _draw_shape(
    image: np.ndarray, rng: np.random.Generator, kind: int, x: float, y: float, half: float
) -> tuple[float, float, float, float]:
    """Draw into the image; returns the box around what was drawn."""
    import cv2

    side = image.shape[0]
    angle = float(rng.uniform(0, np.pi / 2))
    outline = _outline(kind, angle, half)
    points = outline + np.array([x, y])
    mask = np.zeros((side * _SMOOTH, side * _SMOOTH), np.uint8)
    cv2.fillPoly(mask, [np.round(points * _SMOOTH).astype(np.int32)], 255)
    cover = cv2.resize(mask, (side, side), interpolation=cv2.INTER_AREA)[..., None] / 255.0
    colour = rng.uniform(0, 255, 3)
    there: Any = image[int(y), int(x)]
    if np.abs(colour - there).max() < 80:  # it can be seen
        colour = np.where(there > 127, colour - 127, colour + 127).clip(0, 255)
    image *= 1 - cover
    image += cover * colour
    left, top = points.min(0).clip(0, side)
    right, bottom = points.max(0).clip(0, side)
    return float(left), float(top), float(right), float(bottom)


def _outline(kind: int, angle: float, half: float) -> np.ndarray:
    if kind == 0:
        turns = np.linspace(0, 2 * np.pi, 48, endpoint=False)
        return half * np.stack([np.cos(turns), np.sin(turns)], 1)
    if kind == 1:
        corners = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * 0.72
    elif kind == 2:
        corners = np.array([(np.cos(t), np.sin(t)) for t in np.array([0, 2, 4]) * np.pi / 3])
    else:
        arm = 0.3
        across = [(-arm, -1), (arm, -1), (arm, -arm), (1, -arm), (1, arm), (arm, arm)]
        corners = np.array([*across, *((-x, -y) for x, y in across)]) * 0.95
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.asarray(half * corners @ turn.T)


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Shared area, as a share of the smaller box."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    area = min((b[2] - b[0]) * (b[3] - b[1]) for b in (one, other))
    return width * height / area
