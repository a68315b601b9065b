"""Which images and labels a data.yaml of Ultralytics names.

path: folder, relative to the file itself        train, val: folders, .txt lists of images, images,
names: list, or {0: name, 1: name}                           or several of them
The label file of `.../images/a/b.jpg` is `.../labels/a/b.txt`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from phalanx.recipe import Finding, Split

SUFFIXES = frozenset(
    (".bmp", ".dng", ".jpeg", ".jpg", ".jp2", ".mpo", ".png", ".tif", ".tiff", ".webp")
)
_KEYS = {"train": ("train",), "val": ("val", "validation", "valid"), "test": ("test",)}
_MOST_BYTES = 2**20  # of a data.yaml; class names of any data set fit


@dataclass(frozen=True)
class Source:
    """A data set on disk."""

    file: Path
    names: dict[int, str]
    images: dict[Split, list[Path]] = field(default_factory=dict)
    """Sorted, each once."""


def read_source(
    file: Path, *, splits: Sequence[Split] = ("train", "test"), tested: str = "val"
) -> tuple[Source | None, list[Finding]]:
    """The images of a data.yaml for these splits, and all that is wrong with it; `tested` is its
    key for the test split."""
    content, findings = _parse(file)
    if content is None:
        return None, findings
    names, problems = _read_names(content, file)
    findings += problems
    folder = _folder_of(content, file)
    images: dict[Split, list[Path]] = {}
    for split in splits:
        keys = _KEYS["train" if split == "train" else tested]
        key = next((name for name in keys if content.get(name)), None)
        if key is None:
            findings.append(_no_split(file, keys[0], content))
            continue
        found, problems = _list_images(content[key], folder, file, key)
        findings += problems
        images[split] = found
        if not found and not problems:
            findings.append(_no_images(file, key, content[key], folder))
    return Source(file, names or {}, images), findings


def _parse(file: Path) -> tuple[dict[str, Any] | None, list[Finding]]:
    problem = ""
    try:
        if file.stat().st_size > _MOST_BYTES:
            problem = f"has {file.stat().st_size:,} bytes, a data.yaml has a few hundred"
        else:
            content = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
            if isinstance(content, dict):
                return content, []
            problem = f"holds {type(content).__name__}, not keys and values"
    except FileNotFoundError:
        problem = "is not there"
    except IsADirectoryError:
        problem = "is a folder; name the data.yaml in it"
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read: {error}"
    except yaml.YAMLError as error:
        problem = f"is not YAML: {' '.join(str(error).split())[:300]}"
    return None, [
        Finding(
            slug="detection-data",
            what=f"`{file}` {problem}",
            why=f"options.data = {file}",
            fix="a file with `path: FOLDER`, `train: images/train`, `val: images/val` and "
            "`names: [first, second]`; or leave `data` out for generated shapes",
        )
    ]


def _read_names(content: dict[str, Any], file: Path) -> tuple[dict[int, str] | None, list[Finding]]:
    names, count = content.get("names"), content.get("nc")
    if names is None and isinstance(count, int) and count > 0:
        return {n: f"class_{n}" for n in range(count)}, []
    if isinstance(names, list) and names:
        known = {n: str(name) for n, name in enumerate(names)}
    elif isinstance(names, dict) and names and all(str(n).isdecimal() for n in names):
        known = {number: str(names[n]) for number, n in sorted((int(n), n) for n in names)}
    else:
        return None, [_wrong_names(file, f"`names` is {names!r}, not a list or a mapping")]
    if list(known) != list(range(len(known))):
        told = ", ".join(map(str, list(known)[:12]))
        return None, [
            _wrong_names(file, f"`names` has the numbers {told}, not 0 to {len(known) - 1}")
        ]
    if count is not None and count != len(known):
        return known, [
            Finding(
                slug="detection-classes",
                what=f"`{file}` says nc: {count} and names {len(known)} classes",
                why=f"nc = {count}; names: {', '.join(list(known.values())[:12])}",
                fix="remove the line `nc`, or name as many classes",
            )
        ]
    return known, []


def _wrong_names(file: Path, what: str) -> Finding:
    return Finding(
        slug="detection-classes",
        what=f"the classes in `{file}` cannot be read",
        why=what,
        fix="names: [person, car], in the order of the numbers in the label files",
    )


def _folder_of(content: dict[str, Any], file: Path) -> Path:
    """Where relative paths begin: beside the file, else where the command runs."""
    given = Path(os.path.expandvars(str(content.get("path") or "."))).expanduser()
    beside = file.parent / given
    return beside if given.is_absolute() or beside.exists() or not given.exists() else given


def _list_images(
    given: Any, folder: Path, file: Path, key: str
) -> tuple[list[Path], list[Finding]]:
    images: set[Path] = set()
    findings = []
    for one in given if isinstance(given, list) else [given]:
        path = folder / str(one)
        if path.is_dir():
            images.update(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
        elif path.suffix.lower() == ".txt" and path.is_file():
            images.update(_read_list(path))
        elif path.suffix.lower() in SUFFIXES and path.is_file():
            images.add(path)
        else:
            findings.append(_no_folder(path, file, key, one))
    return sorted(Path(os.path.normpath(p.absolute())) for p in images), findings


def _read_list(path: Path) -> list[Path]:
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    named = (Path(line.strip()) for line in lines if line.strip())
    return [
        p if p.is_absolute() else path.parent / p for p in named if p.suffix.lower() in SUFFIXES
    ]


def label_file(image: Path) -> Path:
    """Where the labels of an image are: the last folder called `images` becomes `labels`."""
    parts = list(image.parts)
    for index in range(len(parts) - 2, -1, -1):
        if parts[index] == "images":
            parts[index] = "labels"
            break
    return Path(*parts).with_suffix(".txt")


def _no_split(file: Path, key: str, content: dict[str, Any]) -> Finding:
    return Finding(
        slug="detection-data",
        what=f"`{file}` has no `{key}`",
        why=f"its keys: {', '.join(map(str, content)) or 'none'}",
        fix=f"{key}: images/{key}",
    )


def _no_folder(path: Path, file: Path, key: str, given: Any) -> Finding:
    return Finding(
        slug="detection-data",
        what=f"`{path}` is not there",
        why=f"{file}: {key} = {given}; a folder of images, a .txt list or an image",
        fix=f"ls {path.parent}; then mend `path` or `{key}` in {file}",
    )


def _no_images(file: Path, key: str, given: Any, folder: Path) -> Finding:
    return Finding(
        slug="detection-empty",
        what=f"there is no image for `{key}`",
        why=f"{file}: {key} = {given}, under {folder}; images end in {', '.join(sorted(SUFFIXES))}",
        fix=f"ls {folder}; then mend `path` or `{key}` in {file}",
    )
