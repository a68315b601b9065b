"""The labels of a data set: read, judged line by line, and remembered while files stay as they are.

A line is `class x y w h` (centre and size as shares of the image), or `class x1 y1 x2 y2 x3 y3 ...`
of an outline, of which the surrounding box counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from phalanx.recipe import cache_folder, first_few, new_file
from phalanx.recipes.detection.source import label_file

_VERSION = 1  # of what is remembered
_THREADS = 8  # images are looked at in parallel: it is reading that takes the time
_LARGEST = 1.01  # shares above are wrong; those a rounding above 1 are cut
_SMALLEST_SIDE = 10  # pixels, as Ultralytics has it


class Fault(NamedTuple):
    """Something wrong with one image or one line of its labels."""

    kind: str
    """`image`, `columns`, `number`, `range`, `class`, `duplicate`, `missing` or `empty`."""
    place: str
    """The file, and the line in it."""
    detail: str


@dataclass(frozen=True)
class Labels:
    """The boxes of every image, one below the other."""

    images: list[Path]
    sizes: np.ndarray
    """Height and width of each image; 0 where it cannot be read."""
    starts: np.ndarray
    """First row of each image, and the end of the last one."""
    rows: np.ndarray
    """class, x, y, w, h: float32."""
    faults: list[Fault] = field(default_factory=list)

    def of(self, index: int) -> np.ndarray:
        """Rows of one image."""
        return self.rows[self.starts[index] : self.starts[index + 1]]

    def count(self, kind: str) -> int:
        return sum(fault.kind == kind for fault in self.faults)


def read_labels(images: Sequence[Path], *, classes: int, check_images: bool = True) -> Labels:
    """Labels of all images; from memory where images and label files are as they were."""
    digest = _digest(images, classes, check_images)
    file = cache_folder("detection") / f"labels-{digest}.npz"
    known = _recall(file, list(images))
    if known is not None:
        return known
    labels = scan(images, classes=classes, check_images=check_images)
    _remember(file, labels)
    return labels


def scan(images: Sequence[Path], *, classes: int, check_images: bool) -> Labels:
    """Read and judge every label file, and every image if asked."""
    with ThreadPoolExecutor(_THREADS) as pool:
        looked = list(pool.map(lambda path: _look(path, classes, check_images), images))
    rows = [found for _, found, _ in looked]
    starts = np.cumsum([0, *(len(found) for found in rows)], dtype=np.int64)
    return Labels(
        list(images),
        np.array([size for size, _, _ in looked], dtype=np.int32).reshape(-1, 2),
        starts,
        np.concatenate(rows) if rows else np.zeros((0, 5), np.float32),
        [fault for _, _, faults in looked for fault in faults],
    )


def _look(
    image: Path, classes: int, is_opened: bool
) -> tuple[tuple[int, int], np.ndarray, list[Fault]]:
    size, faults = _image_size(image, is_opened)
    rows, problems = parse_labels(label_file(image), classes)
    return size, rows, faults + problems


def _image_size(path: Path, is_opened: bool) -> tuple[tuple[int, int], list[Fault]]:
    """Height and width, as the image is shown: a camera may have been held upright."""
    from PIL import Image  # comes with the extra

    try:
        if is_opened:
            with Image.open(path) as image:
                image.verify()
        with Image.open(path) as image:
            width, height = image.size
            turned = image.getexif().get(274, 1) in (5, 6, 7, 8)  # EXIF's orientation
        if is_opened and path.suffix.lower() in (".jpg", ".jpeg"):
            _check_end(path)
    except Exception as error:  # PIL raises whatever a damaged file leads it to
        text = " ".join(str(error).split())[:200].replace(str(path), "it")
        return (0, 0), [Fault("image", str(path), f"{type(error).__name__}: {text}")]
    if min(width, height) < _SMALLEST_SIDE:
        return (0, 0), [Fault("image", str(path), f"{width} x {height} pixels are too few")]
    return ((width, height) if turned else (height, width)), []


def _check_end(path: Path) -> None:
    """A copy that was cut off has no end marker; decoders fill up with grey and say nothing."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 64))
        if b"\xff\xd9" not in file.read():
            raise ValueError("a JPEG without its end")


def parse_labels(file: Path, classes: int) -> tuple[np.ndarray, list[Fault]]:
    """Rows of one label file, without those that are wrong or there twice."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        return np.zeros((0, 5), np.float32), [Fault("missing", str(file), "")]
    except (OSError, UnicodeDecodeError) as error:
        return np.zeros((0, 5), np.float32), [Fault("columns", str(file), str(error))]
    rows: list[tuple[float, ...]] = []
    faults = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        row = _parse_line(words, classes)
        if isinstance(row, tuple) and row in rows:
            row = Fault("duplicate", "", "the same box twice")
        if isinstance(row, Fault):
            faults.append(row._replace(place=f"{file}:{number}"))
        else:
            rows.append(row)
    if not rows and not faults:
        faults.append(Fault("empty", str(file), ""))
    return np.array(rows, dtype=np.float32).reshape(-1, 5), faults


def _parse_line(words: list[str], classes: int) -> tuple[float, ...] | Fault:
    if len(words) != 5 and (len(words) < 7 or len(words) % 2 == 0):
        return Fault("columns", "", f"{len(words)} numbers, a box has 5")
    try:
        numbers = [float(word) for word in words]
    except ValueError as error:
        return Fault("number", "", str(error))
    kind, places = numbers[0], numbers[1:]
    if kind != int(kind) or not 0 <= kind < classes:
        return Fault("class", "", f"class {words[0]}, there are 0 to {classes - 1}")
    if not all(0 <= place <= _LARGEST for place in places):
        wrong = next(
            word
            for word, place in zip(words[1:], places, strict=True)
            if not 0 <= place <= _LARGEST
        )
        return Fault("range", "", f"{wrong} is no share of the image, from 0 to 1")
    places = [min(place, 1.0) for place in places]
    if len(places) > 4:
        left, top, right, bottom = (
            f(places[n::2]) for f, n in ((min, 0), (min, 1), (max, 0), (max, 1))
        )
        places = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
    if not places[2] > 0 or not places[3] > 0:
        return Fault("range", "", f"a box of {places[2]:g} x {places[3]:g}")
    return (kind, *places)


def _digest(images: Iterable[Path], classes: int, check_images: bool) -> str:
    """Of names, sizes and times of all files."""
    digest = hashlib.sha256(f"{_VERSION} {classes} {check_images}".encode())
    for image in images:
        for path in (image, label_file(image)):
            try:
                stat = path.stat()
                digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
            except OSError:
                digest.update(f"{path}\0-\n".encode())
    return digest.hexdigest()[:24]


def _recall(file: Path, images: list[Path]) -> Labels | None:
    try:
        with np.load(file, allow_pickle=False) as kept:
            faults = [Fault(*fault) for fault in json.loads(str(kept["faults"]))]
            return Labels(images, kept["sizes"], kept["starts"], kept["rows"], faults)
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None


def _remember(file: Path, labels: Labels) -> None:
    """Whole or not at all; without it the files are read again."""
    try:
        with new_file(file) as making:
            np.savez(
                making,
                sizes=labels.sizes,
                starts=labels.starts,
                rows=labels.rows,
                faults=np.array(json.dumps(labels.faults)),
            )
    except OSError:
        return


def name_places(faults: Sequence[Fault]) -> str:
    """Some places, and how many more."""
    return first_few([f"`{fault.place}`" for fault in faults], between=", ")
