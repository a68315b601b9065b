"""VOC XML and COCO JSON as a data set of Ultralytics' format: images, labels, data.yaml.

Images are linked where the file system allows it and copied where not. Boxes that VOC calls
difficult and COCO a crowd are left out, as everybody does. Needs neither torch nor Ultralytics.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

from phalanx.recipe import Finding, UserError

FORMATS = ("voc", "coco")
_NAMED = 5  # places that are said


@dataclass
class Annotated:
    """An image with its boxes: class, left, top, right, bottom in pixels."""

    file: Path
    name: str
    """Of the label file, without ending; may have folders in it."""
    width: float
    height: float
    boxes: list[tuple[str, float, float, float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Converted:
    """What was written."""

    file: Path
    images: dict[str, int]
    boxes: int
    classes: list[str]
    findings: list[Finding]


def convert(
    kind: str,
    source: Path,
    *,
    images: Path,
    out: Path,
    val: Path | None = None,
    val_images: Path | None = None,
    val_share: float = 0.1,
) -> Converted:
    """Write `out`; it appears whole. Without `val` a share of the images is set aside by name."""
    if out.exists():
        raise UserError(_exists(out))
    read = _read_voc if kind == "voc" else _read_coco
    faults: list[str] = []
    train, names = read(source, images, faults)
    if val is not None:
        held, more = read(val, val_images or images, faults)
        names = _joined(names, more)
        splits = {"train": train, "val": held}
    else:
        splits = {"train": [], "val": []}
        for one in train:
            is_held = zlib.crc32(one.name.encode()) / 2**32 < val_share
            splits["val" if is_held else "train"].append(one)
    empty = [split for split, found in splits.items() if not found]
    if empty:
        raise UserError(_nothing(kind, source, images, empty, faults))
    with _whole(out) as folder:
        boxes = sum(_write(folder, split, found, names) for split, found in splits.items())
        about = {"train": "images/train", "val": "images/val", "names": dict(enumerate(names))}
        text = yaml.safe_dump(about, sort_keys=False, allow_unicode=True)
        (folder / "data.yaml").write_text(text, encoding="utf-8")
    counts = {split: len(found) for split, found in splits.items()}
    found = [_left_out(faults)] if faults else []
    return Converted(out / "data.yaml", counts, boxes, names, found)


def _joined(names: list[str], more: list[str]) -> list[str]:
    return [*names, *(name for name in more if name not in names)]


def _read_voc(folder: Path, images: Path, faults: list[str]) -> tuple[list[Annotated], list[str]]:
    files = sorted(folder.rglob("*.xml")) if folder.is_dir() else []
    found = []
    for file in files:
        try:
            # Expat, which reads this, refuses entities that blow up (since 2.4.1).
            root = ElementTree.parse(file).getroot()  # noqa: S314
            found.append(_voc_image(root, file, images))
        except (ElementTree.ParseError, ValueError, OSError) as error:
            faults.append(f"{file}: {error}")
    names = sorted({box[0] for one in found for box in one.boxes})
    return found, names


def _voc_image(root: Any, file: Path, images: Path) -> Annotated:
    name = (root.findtext("filename") or "").strip()
    beside = sorted(images.glob(f"{file.stem}.*"))
    path = images / name if name and (images / name).is_file() else next(iter(beside), None)
    if path is None:
        raise ValueError(f"no image `{name or file.stem}` in {images}")
    width, height = (float(root.findtext(f"size/{side}") or 0) for side in ("width", "height"))
    if not (width > 0 and height > 0):
        width, height = _size_of(path)
    made = Annotated(path, file.stem, width, height)
    for thing in root.iter("object"):
        label, box = (thing.findtext("name") or "").strip(), thing.find("bndbox")
        if not label or box is None or (thing.findtext("difficult") or "0").strip() == "1":
            continue
        left, top, right, bottom = (
            float(box.findtext(side) or "nan") for side in ("xmin", "ymin", "xmax", "ymax")
        )
        # VOC counts pixels from 1 and names the first and the last one of a box.
        made.boxes.append((label, left - 1, top - 1, right, bottom))
    return made


def _read_coco(file: Path, images: Path, faults: list[str]) -> tuple[list[Annotated], list[str]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        kinds = {c["id"]: str(c["name"]) for c in content["categories"]}
        entries = content["images"]
        annotations = content.get("annotations", [])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(_not_coco(file, error)) from error
    made: dict[Any, Annotated] = {}
    for entry in entries:
        name = str(entry.get("file_name", ""))
        path = next((p for p in (images / name, images / Path(name).name) if p.is_file()), None)
        if path is None:
            faults.append(f"{file}: no image `{name}` in {images}")
            continue
        width, height = float(entry.get("width") or 0), float(entry.get("height") or 0)
        if not (width > 0 and height > 0):
            width, height = _size_of(path)
        made[entry["id"]] = Annotated(path, Path(name).stem, width, height)
    for one in annotations:
        image, kind = made.get(one.get("image_id")), kinds.get(one.get("category_id"))
        box = one.get("bbox")
        if image is None or one.get("iscrowd"):
            continue
        if kind is None or not isinstance(box, list) or len(box) != 4:
            faults.append(f"{file}: annotation {one.get('id')} has no known category or no box")
            continue
        left, top, width, height = map(float, box)
        image.boxes.append((kind, left, top, left + width, top + height))
    names = [kinds[number] for number in sorted(kinds)]
    return list(made.values()), names


def _size_of(path: Path) -> tuple[float, float]:
    from PIL import Image

    with Image.open(path) as image:
        return float(image.size[0]), float(image.size[1])


def _write(folder: Path, split: str, found: Iterable[Annotated], names: list[str]) -> int:
    numbers = {name: number for number, name in enumerate(names)}
    count = 0
    for one in found:
        lines = []
        for kind, *sides in one.boxes:
            left, right = (min(max(v / one.width, 0.0), 1.0) for v in (sides[0], sides[2]))
            top, bottom = (min(max(v / one.height, 0.0), 1.0) for v in (sides[1], sides[3]))
            if right > left and bottom > top:  # also not where a side is no number
                places = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
                lines.append(f"{numbers[kind]} " + " ".join(f"{v:.6f}" for v in places))
        count += len(lines)
        label = folder / "labels" / split / f"{one.name}.txt"
        image = folder / "images" / split / f"{one.name}{one.file.suffix.lower()}"
        for path in (label, image):
            path.parent.mkdir(parents=True, exist_ok=True)
        label.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        _link(one.file.resolve(), image)
    return count


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copyfile(source, target)


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _told(faults: list[str]) -> str:
    more = len(faults) - _NAMED
    return "; ".join(faults[:_NAMED]) + (f"; and {more:,} more" if more > 0 else "")


def _left_out(faults: list[str]) -> Finding:
    return Finding(
        slug="convert-left-out",
        what=f"{len(faults):,} images or boxes were left out",
        why=_told(faults),
        fix="mend these and convert again into another folder",
        severity="warning",
    )


def _nothing(kind: str, source: Path, images: Path, empty: list[str], faults: list[str]) -> Finding:
    what = "XML files" if kind == "voc" else "images"
    return Finding(
        slug="convert-empty",
        what=f"nothing is left for {' and '.join(empty)}",
        why=f"{what} of {source} with images in {images}; {_told(faults) or 'none found'}",
        fix=f"ls {source} {images}; --val names the annotations to test with",
    )


def _not_coco(file: Path, error: Exception) -> Finding:
    return Finding(
        slug="convert-source",
        what=f"`{file}` is not COCO's JSON",
        why=f"{type(error).__name__}: {str(error)[:300]}; it has `images`, `annotations` and "
        "`categories`",
        fix="phalanx recipes convert coco instances_train2017.json --images train2017 --out data",
    )


def _exists(out: Path) -> Finding:
    return Finding(
        slug="folder-exists",
        what=f"`{out}` already exists",
        why="converting would mix with what is there",
        fix=f"--out {out}_2",
    )
