"""Rows of text with the places they come from: jsonl, json, csv, parquet, data sets on disk.

A row that cannot be read is a row too, with what is wrong: whoever mends a file wants all of its
bad lines at once. Rows are read one after the other and never all held.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.recipe import Finding, Split, UserError
from phalanx.recipes.lora import hub
from phalanx.recipes.lora.options import LoraOptions

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
_TEST_NAMES = ("test", "valid", "eval", "dev")
_HERE = Path(__file__).parent


class Row(NamedTuple):
    """One row, or what is wrong with it."""

    file: str
    """Its path, as it was given, or the name of a data set."""
    number: int
    """Line of a text file, row of other ones, from 1."""
    values: dict[str, Any] | None
    wrong: str = ""
    """The kind of fault, the same words for all rows that share it; `detail` is of this row."""
    detail: str = ""


@dataclass(frozen=True)
class Source:
    """Rows of one split: files, or a data set of `datasets`."""

    name: str
    files: tuple[Path, ...] = ()
    table: Any = None
    """A `datasets.Dataset`, which memory-maps its rows."""

    def identity(self) -> list[Any]:
        """What changes when the rows change: names, sizes and times, or `datasets`' own digest."""
        if self.table is not None:
            return [self.name, self.table._fingerprint]
        stats = [(file, file.stat()) for file in self.files]
        return [[str(f.resolve()), s.st_size, s.st_mtime_ns] for f, s in stats]

    def __iter__(self) -> Iterator[Row]:
        if self.table is not None:
            for number, values in enumerate(self.table, 1):
                yield Row(self.name, number, values)
        for file in self.files:
            yield from _READERS[file.suffix.lower()](file)


class Sources(NamedTuple):
    """Where the rows of both splits are."""

    train: Source
    test: Source | None
    """None: a share of the rows of `train` is held out."""


def find_sources(options: LoraOptions) -> Sources:
    """Find the data of a job; raises all Findings at once."""
    if options.data is None:
        train, test = _one_file("skill.jsonl"), _one_file("skill_test.jsonl")
        if options.test_data is None:
            return Sources(train, test)
    findings: list[Finding] = []
    parts: dict[str, dict[Split, Source]] = {}
    for key in ("data", "test_data"):
        given = getattr(options, key)
        if given is None:
            continue
        try:
            parts[key] = _find(given, key)
        except UserError as error:
            findings += error.findings
    if findings:
        raise UserError(findings)
    if "data" in parts:
        train = parts["data"]["train"]
    if "test_data" in parts:
        # Given a folder or a data set with splits of its own, those rows are meant.
        held_out = parts["test_data"]
        return Sources(train, held_out.get("test", held_out["train"]))
    return Sources(train, parts["data"].get("test"))


def unit_of(file: str) -> str:
    """What the number of a row counts in this file."""
    return "line" if file.lower().endswith((".jsonl", ".csv")) else "row"


def is_held_out(index: int, share: float) -> bool:
    """Whether the row at an index is of the test split: evenly spread, the same everywhere."""
    return int((index + 1) * share) > int(index * share)


def _one_file(name: str) -> Source:
    return Source(name, (_HERE / name,))


def _find(given: str, key: str) -> dict[Split, Source]:
    path = Path(given).expanduser()
    if path.is_dir():
        if hub.is_saved_data_set(path):
            return _tables(given, hub.load_saved(path, key))
        return _folder(path, key)
    if path.is_file():
        if path.suffix.lower() not in _READERS:
            raise UserError(_unknown_format(path, key))
        return {"train": Source(path.name, (path,))}
    if not hub.is_name(given) or path.suffix.lower() in _READERS:
        raise UserError(_missing_file(path, key))
    return _tables(given, hub.load_named(given, key, _near(path)))


def _tables(name: str, tables: dict[Split, Any]) -> dict[Split, Source]:
    return {split: Source(name, table=table) for split, table in tables.items()}


def _folder(folder: Path, key: str) -> dict[Split, Source]:
    """All files of a folder; those named test, valid, eval or dev are held out if others are
    there."""
    files = sorted(f for f in folder.rglob("*") if f.suffix.lower() in _READERS and f.is_file())
    if not files:
        raise UserError(_no_files(folder, key))
    test = [f for f in files if f.stem.lower().startswith(_TEST_NAMES)]
    train = [f for f in files if f not in test]
    if not test or not train:
        return {"train": Source(folder.name, tuple(files))}
    return {
        "train": Source(folder.name, tuple(train)),
        "test": Source(folder.name, tuple(test)),
    }


def _read_lines(file: Path) -> Iterator[Row]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")  # noqa: PLW2901 - a mark of the encoding
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except ValueError as error:  # also bytes that are no UTF-8
                yield Row(str(file), number, None, "are not JSON", _first_line(error))
            else:
                yield _row(str(file), number, values)


def _read_list(file: Path) -> Iterator[Row]:
    try:
        loaded = json.loads(file.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except ValueError as error:
        if "Extra data" in str(error):  # one object a line, under the other name
            yield from _read_lines(file)
        elif file.stat().st_size:
            yield Row(str(file), 1, None, "are not JSON", _first_line(error))
        return
    if isinstance(loaded, dict) and isinstance(loaded.get("data"), list):
        loaded = loaded["data"]
    for number, values in enumerate(loaded if isinstance(loaded, list) else [loaded], 1):
        yield _row(str(file), number, values)


def _read_csv(file: Path) -> Iterator[Row]:
    csv.field_size_limit(1 << 30)
    with file.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
        reader = csv.reader(lines)
        header = next(reader, [])
        number = reader.line_num + 1  # a quoted field may span lines: the first one counts
        for fields in reader:
            if fields and len(fields) != len(header):
                detail = f"{len(fields)} fields, the header has {len(header)}"
                yield Row(
                    str(file), number, None, "have more or fewer fields than the header", detail
                )
            elif fields:
                yield Row(str(file), number, dict(zip(header, fields, strict=True)))
            number = reader.line_num + 1


def _read_parquet(file: Path) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise UserError(hub.missing_package("pyarrow", f"{file.name} is a parquet file")) from error

    number = 0
    try:
        for batch in ParquetFile(file).iter_batches(batch_size=1000):
            for values in batch.to_pylist():
                number += 1
                yield Row(str(file), number, values)
    except (ArrowException, OSError) as error:
        yield Row(str(file), number + 1, None, "are not parquet", _first_line(error))


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = dict(
    zip(SUFFIXES, (_read_lines, _read_list, _read_csv, _read_parquet), strict=True)
)


def _row(file: str, number: int, values: Any) -> Row:
    if isinstance(values, dict):
        return Row(file, number, values)
    return Row(file, number, None, "are no objects", f"a {type(values).__name__}")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def _missing_file(path: Path, key: str) -> Finding:
    folder = "" if path.parent.is_dir() else f"; there is no folder `{path.parent}`"
    return Finding(
        slug="data-missing",
        what=f"`{path}` is not there{_near(path)}",
        why=f"options.{key} = {path}, looked for in {Path.cwd()}{folder}",
        fix=f"phalanx train lora {key}=FILE, a .jsonl, .json, .csv or .parquet file or a folder",
    )


def _near(path: Path) -> str:
    """Files in the same folder whose names are near."""
    from difflib import get_close_matches

    folder = path.parent
    if not folder.is_dir():
        return ""
    there = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")]
    near = get_close_matches(path.name, there, n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(f'`{folder / n}`' for n in near)}?)" if near else ""


def _unknown_format(path: Path, key: str) -> Finding:
    return Finding(
        slug="data-format",
        what=f"`{path}` ends in `{path.suffix}`, which is none of {', '.join(SUFFIXES)}",
        why=f"options.{key} = {path}; the ending says how a file is read",
        fix="write one JSON object a line into a file that ends in .jsonl",
    )


def _no_files(folder: Path, key: str) -> Finding:
    return Finding(
        slug="data-missing",
        what=f"the folder `{folder}` holds no .jsonl, .json, .csv or .parquet file",
        why=f"options.{key} = {folder}; {sum(1 for _ in folder.iterdir())} other entries are there",
        fix=f"phalanx train lora {key}=FILE",
    )
