"""VOC XML and COCO JSON as a data set of Ultralytics' format: images, labels, data.yaml.

Images are linked where the file system allows it and copied where not, each under a name of its
own. Boxes that VOC calls difficult and COCO a crowd are left out, as everybody does. Needs neither
torch nor Ultralytics.
"""

from __future__ import annotations

import csv
import glob
import io
import json
import os
import secrets
import shutil
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

from phalanx.recipe import Finding, UserError, find_inside, first_few, link_or_copy, rename_new

FORMATS = ("voc", "coco")
RENAMED_FILE = "renamed.csv"
_LONGEST_TOLD = 400  # letters of each place
_LONGEST = 200  # bytes of a name that folders are part of; file systems take 255
_WRONG = (KeyError, TypeError, ValueError, AttributeError, OSError)  # what a broken entry raises


@dataclass
class Annotated:
    """An image with its boxes: class, left, top, right, bottom in pixels."""

    file: Path
    """Where it really is: below the folder of images."""
    name: str
    """Its path below that folder, as its annotations name it."""
    width: float
    height: float
    boxes: list[tuple[str, float, float, float, float]] = field(default_factory=list)


@dataclass
class _Problems:
    """What is wrong with annotations."""

    left_out: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    """Names that leave the folder of images, each with the file that has it."""


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
    if os.path.lexists(out):
        raise UserError(_exists(out))
    read = _read_voc if kind == "voc" else _read_coco
    problems = _Problems()
    train, names = read(source, images, problems)
    if val is not None:
        held, more = read(val, val_images or images, problems)
        names = _joined(names, more)
        splits = {"train": train, "val": held}
    else:
        splits = {"train": [], "val": []}
        for one in train:
            is_held = zlib.crc32(Path(one.name).stem.encode(errors="replace")) / 2**32 < val_share
            splits["val" if is_held else "train"].append(one)
    if problems.outside:
        raise UserError(_outside(images, problems.outside))
    empty = [split for split, found in splits.items() if not found]
    if empty:
        raise UserError(_nothing(kind, source, images, empty, problems.left_out))
    placed = {split: list(_place(found)) for split, found in splits.items()}
    renamed = [
        (one.name, _image(split, one, name))
        for split, found in placed.items()
        for one, name in found
        if name != Path(one.name).stem
    ]
    with _whole(out) as folder:
        boxes = sum(_write(folder, split, found, names) for split, found in placed.items())
        about = {"train": "images/train", "val": "images/val", "names": dict(enumerate(names))}
        text = yaml.safe_dump(about, sort_keys=False, allow_unicode=True)
        (folder / "data.yaml").write_text(text, encoding="utf-8")
        if renamed:
            (folder / RENAMED_FILE).write_bytes(_table(renamed))
    counts = {split: len(found) for split, found in splits.items()}
    findings = [_left_out(problems.left_out)] if problems.left_out else []
    findings += [_renamed(renamed, out / RENAMED_FILE)] if renamed else []
    return Converted(out / "data.yaml", counts, boxes, names, findings)


def _joined(names: list[str], more: list[str]) -> list[str]:
    return [*names, *(name for name in more if name not in names)]


def _read_voc(folder: Path, images: Path, problems: _Problems) -> tuple[list[Annotated], list[str]]:
    files = sorted(folder.rglob("*.xml")) if folder.is_dir() else []
    found, used = [], dict[Path, str]()
    for file in files:
        try:
            # Expat, which reads this, refuses entities that blow up (since 2.4.1).
            root = ElementTree.parse(file).getroot()  # noqa: S314
            name = (root.findtext("filename") or "").strip()
            path = _find_voc_image(images, file.relative_to(folder).parent, name, file.stem)
            if path is None or not _is_inside(images, str(path.relative_to(images))):
                problems.outside.append(f"{file}: {name or file.stem!r}")
                continue
            own = str(file.relative_to(folder).with_suffix(path.suffix))
            one = _voc_image(root, path.resolve(), own)
            _require_once(one, used)
            found.append(one)
        except (ElementTree.ParseError, *_WRONG) as error:
            problems.left_out.append(f"{file}: {error}")
    names = sorted({box[0] for one in found for box in one.boxes})
    return found, names


def _find_voc_image(images: Path, beside: Path, name: str, stem: str) -> Path | None:
    """The image of an XML file: in the folder that matches its own or in that of all images, by the
    name in it or by the file's own. None if the name leaves the folder."""
    if name and not _is_inside(images, name):
        return None
    folders = [images / beside, images]
    named = [folder / name for folder in folders] if name else []
    named += [p for folder in folders for p in sorted(folder.glob(f"{glob.escape(stem)}.*"))]
    found = next((path for path in named if path.is_file()), None)
    if found is None:
        raise ValueError(f"no image `{name or stem}` in {images}")
    return found


def _is_inside(images: Path, name: str) -> bool:
    return "\\" not in name and find_inside(images, name) is not None


def _require_once(one: Annotated, used: dict[Path, str]) -> None:
    """Raise ValueError for a second image that is the same file: whose boxes are they?"""
    if one.file in used:
        raise ValueError(f"`{one.name}` is the same file as `{used[one.file]}`: {one.file}")
    used[one.file] = one.name


def _voc_image(root: Any, path: Path, name: str) -> Annotated:
    width, height = (float(root.findtext(f"size/{side}") or 0) for side in ("width", "height"))
    if not (width > 0 and height > 0):
        width, height = _size_of(path)
    made = Annotated(path, name, width, height)
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


def _read_coco(file: Path, images: Path, problems: _Problems) -> tuple[list[Annotated], list[str]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        kinds = {c["id"]: str(c["name"]) for c in content["categories"]}
        entries = list(content["images"])
        annotations = list(content.get("annotations", []))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(_not_coco(file, error)) from error
    made: dict[Any, Annotated] = {}
    used: dict[Path, str] = {}
    for number, entry in enumerate(entries):
        try:
            name = str(entry["file_name"])
            if not _is_inside(images, name):
                problems.outside.append(f"{file}: {name!r}")
            elif entry["id"] in made:
                raise ValueError(f"`{name}` has the id of `{made[entry['id']].name}`")
            else:
                one = _coco_image(entry, name, images)
                _require_once(one, used)
                made[entry["id"]] = one
        except _WRONG as error:
            problems.left_out.append(f"{file}: image {number}: {_say(error)}")
    for number, box in enumerate(annotations):
        try:
            image = made.get(box["image_id"])
            if image is None or box.get("iscrowd"):
                continue
            if box["category_id"] not in kinds:
                raise ValueError(f"there is no category {box['category_id']!r}")
            left, top, width, height = map(float, box["bbox"])
        except _WRONG as error:
            problems.left_out.append(f"{file}: annotation {number}: {_say(error)}")
            continue
        kind = kinds[box["category_id"]]
        image.boxes.append((kind, left, top, left + width, top + height))
    names = [kinds[number] for number in sorted(kinds)]
    return list(made.values()), names


def _coco_image(entry: dict[str, Any], name: str, images: Path) -> Annotated:
    tried = (find_inside(images, each) for each in (name, Path(name).name))
    path = next((p for p in tried if p is not None and p.is_file()), None)
    if path is None:
        raise ValueError(f"no image `{name}` in {images}")
    width, height = float(entry.get("width") or 0), float(entry.get("height") or 0)
    if not (width > 0 and height > 0):
        width, height = _size_of(path)
    return Annotated(path, name, width, height)


def _say(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())


def _size_of(path: Path) -> tuple[float, float]:
    from PIL import Image

    with Image.open(path) as image:
        return float(image.size[0]), float(image.size[1])


def _place(found: list[Annotated]) -> Iterator[tuple[Annotated, str]]:
    """Each image with its name in the data set: its own, after its folders too where others have
    it, and with a number where that is not enough. File systems that do not tell `A` from `a` are
    thought of."""
    times = Counter(_key(Path(one.name).stem) for one in found)
    taken = {key for key, number in times.items() if number == 1}
    for one in found:
        name = Path(one.name).stem
        if times[_key(name)] > 1:
            parts = Path(one.name).with_suffix("").parts
            stem = "-".join(parts).encode(errors="replace")[-_LONGEST:].decode(errors="ignore")
            names = (stem if n == 1 else f"{stem}-{n}" for n in count(1))
            name = next(each for each in names if _key(each) not in taken)
            taken.add(_key(name))
        yield one, name


def _image(split: str, one: Annotated, name: str) -> str:
    return f"images/{split}/{name}{Path(one.name).suffix.lower()}"


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name.casefold())


def _write(
    folder: Path, split: str, placed: Iterable[tuple[Annotated, str]], names: list[str]
) -> int:
    numbers = {name: number for number, name in enumerate(names)}
    total = 0
    for kind in ("images", "labels"):
        (folder / kind / split).mkdir(parents=True)
    for one, name in placed:
        lines = []
        for kind, *sides in one.boxes:
            left, right = (min(max(v / one.width, 0.0), 1.0) for v in (sides[0], sides[2]))
            top, bottom = (min(max(v / one.height, 0.0), 1.0) for v in (sides[1], sides[3]))
            if right > left and bottom > top:  # also not where a side is no number
                places = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
                lines.append(f"{numbers[kind]} " + " ".join(f"{v:.6f}" for v in places))
        total += len(lines)
        with (folder / "labels" / split / f"{name}.txt").open("x", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        link_or_copy(one.file, folder / _image(split, one, name))
    return total


def _table(rows: list[tuple[str, str]]) -> bytes:
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerows([("image", "written as"), *rows])
    return os.fsencode(made.getvalue())  # names are bytes, and not always text


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    temporary = out.with_name(f".{out.name}.{os.getpid()}.{secrets.token_hex(3)}.tmp")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        rename_new(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _told(faults: list[str]) -> str:
    return first_few([fault[:_LONGEST_TOLD] for fault in faults])


def _left_out(faults: list[str]) -> Finding:
    return Finding(
        slug="convert-left-out",
        what=f"{len(faults):,} images or boxes were left out",
        why=_told(faults),
        fix="mend these and convert again into another folder",
        severity="warning",
    )


def _renamed(renamed: list[tuple[str, str]], file: Path) -> Finding:
    return Finding(
        slug="convert-renamed",
        what=f"{len(renamed):,} images were given another name, because others have theirs",
        why=_told([f"`{name}` is `{image}`" for name, image in renamed]),
        fix=f"no action needed: all of them are listed in {file}",
        severity="note",
    )


def _outside(images: Path, names: list[str]) -> Finding:
    return Finding(
        slug="convert-outside",
        what=f"{len(names):,} images are named outside of `{images}`; nothing was written",
        why=f"{_told(names)}; a name is a path below --images: not empty, not absolute, without "
        "`..` and `\\`, and not through a link that leaves it",
        fix="--images the folder that holds all images themselves, and names in the annotations "
        "that begin there: `seq1/0001.png`",
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
