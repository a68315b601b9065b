"""Samples as flat arrays of tokens: five bytes a token, shared by every process that maps them.

Tokenizing a large file takes minutes, and every rank, `plan` and `verify` need the same tokens.
They are kept for the user under a digest of all they depend on: rows, tokenizer, template, options.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path

import numpy as np

from phalanx.recipe import cache_folder, new_folder
from phalanx.recipes.lora.columns import Columns, MalformedError, Sample, as_sample, find_columns
from phalanx.recipes.lora.options import LoraOptions
from phalanx.recipes.lora.rows import Row, Source
from phalanx.recipes.lora.spans import Refused
from phalanx.recipes.lora.template import Encoded, Template

_AT_ONCE = 1000  # rows tokenized together
_KEPT_FROM = 20_000  # rows; fewer are tokenized in a second or two
_KEPT_SETS = 8  # the newest ones
_FORMAT = 1
_SHAPING = ("prompt", "response", "messages", "text", "system", "train_on")
_ARRAYS = ("ids", "learned", "starts", "rows", "target", "target_starts")

IGNORED = -100
"""The label of tokens that are not learned, as transformers has it."""


@dataclass
class Fault:
    """Rows with the same fault."""

    file: str
    wrong: str
    detail: str
    """Of the first of them."""
    count: int = 0
    numbers: list[int] = field(default_factory=list)
    """Of the first few."""

    def add(self, number: int) -> None:
        self.count += 1
        if len(self.numbers) < 5:
            self.numbers.append(number)


@dataclass
class Tally:
    """What became of the rows of a source."""

    rows: int = 0
    faults: list[Fault] = field(default_factory=list)
    cut: int = 0
    longest: int = 0
    longest_at: int = 0
    longest_in: str = ""
    glued: int = 0
    """Samples whose prompt and response touch without a space or a template between them."""
    media: str | None = None
    """A column with images or sounds."""
    endless: int = 0
    """Samples whose answer ends without a token of its own."""

    def add(self, row: Row, wrong: str, detail: str) -> None:
        for fault in self.faults:
            if fault.file == row.file and fault.wrong == wrong:
                return fault.add(row.number)
        self.faults.append(Fault(row.file, wrong, detail))
        self.faults[-1].add(row.number)
        return None


LEFT_OUT = "have nothing of the response left"
"""The fault of samples whose prompt alone is as long as a sample may be."""


class Tokens:
    """All samples of a source: `ids[starts[i] : starts[i + 1]]`, and whether each is learned."""

    def __init__(self, arrays: dict[str, np.ndarray], tally: Tally) -> None:
        self.ids, self.learned, self.starts = arrays["ids"], arrays["learned"], arrays["starts"]
        self.rows = arrays["rows"]
        """Which row each sample was, from 0."""
        self.target, self.target_starts = arrays.get("target"), arrays.get("target_starts")
        self.tally = tally

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    def arrays(self) -> dict[str, np.ndarray]:
        """By their names."""
        return {name: a for name in _ARRAYS if (a := getattr(self, name)) is not None}


def tokenize(source: Source, options: LoraOptions, template: Template, limit: int) -> Tokens:
    """The samples of a source, cut to `limit` tokens: read from what is kept, or made."""
    key = _key(source, options, template, limit)
    if key is None:
        return _make(source, options, template, limit)
    known = _IN_THIS_PROCESS.get(key)
    if known is None:
        folder = cache_folder("tokens") / key
        known = _load(folder)
        if known is None:
            known = _make(source, options, template, limit)
            if known.tally.rows >= _KEPT_FROM:
                _save(known, folder)
        while len(_IN_THIS_PROCESS) >= 2:  # train and test
            _IN_THIS_PROCESS.pop(next(iter(_IN_THIS_PROCESS)))
        _IN_THIS_PROCESS[key] = known
    return known


_IN_THIS_PROCESS: dict[str, Tokens] = {}


def read_samples(
    source: Iterable[Row], options: LoraOptions, tally: Tally, where: str
) -> Iterator[tuple[Columns, list[tuple[int, Row, Sample]]]]:
    """Rows as samples, some at a time, with their indices; what is wrong goes into the tally."""
    rows, columns, index = iter(source), None, 0
    while chunk := list(islice(rows, _AT_ONCE)):
        if columns is None:
            names = dict.fromkeys(name for row in chunk for name in row.values or ())
            if names:  # of rows that can be read
                columns = find_columns(names, options, where)
        samples = []
        for row in chunk:
            if row.values is None or columns is None:
                tally.add(row, row.wrong, row.detail)
            else:
                try:
                    sample = as_sample(row.values, columns, options.system)
                except MalformedError as error:
                    tally.add(row, error.wrong, error.detail)
                else:
                    samples.append((index, row, sample))
            index += 1
        tally.rows = index
        if columns is not None:
            yield columns, samples


def _make(source: Source, options: LoraOptions, template: Template, limit: int) -> Tokens:
    tally = Tally()
    ids, learned, starts, rows = array("i"), bytearray(), array("q", [0]), array("q")
    target, target_starts = array("i"), array("q", [0])
    for columns, samples in read_samples(source, options, tally, f"`{source.name}`"):
        tally.media = columns.media
        encoded = template.encode([sample for _, _, sample in samples])
        for (index, row, sample), made in zip(samples, encoded, strict=True):
            if isinstance(made, Refused):
                tally.add(row, made.wrong, made.detail)
                continue
            mask = _mask(made, limit)
            length = max(len(made.ids), len(made.target or ()))
            if length > tally.longest:
                tally.longest, tally.longest_at, tally.longest_in = length, row.number, row.file
            tally.cut += length > limit
            if made.target is None and not any(mask):
                tally.add(row, LEFT_OUT, f"{len(made.ids)} tokens, {limit} may be used")
                continue
            tally.endless += not made.has_end
            tally.glued += _is_glued(sample, template)
            ids.extend(made.ids[:limit])
            learned += mask
            starts.append(len(ids))
            rows.append(index)
            if made.target is not None:
                target.extend(made.target[:limit])
                target_starts.append(len(target))
    arrays = {
        "ids": np.frombuffer(ids, np.int32) if ids else np.empty(0, np.int32),
        "learned": np.frombuffer(learned, np.bool_) if learned else np.empty(0, np.bool_),
        "starts": np.array(starts, np.int64),
        "rows": np.array(rows, np.int64),
    }
    if template.is_seq2seq:
        arrays["target"] = np.array(target, np.int32)
        arrays["target_starts"] = np.array(target_starts, np.int64)
    return Tokens(arrays, tally)


def _mask(made: Encoded, limit: int) -> bytearray:
    mask = bytearray(min(len(made.ids), limit))
    for start, stop in made.spans:
        # No token comes before the first one: nothing predicts it.
        start, stop = max(start, 1), min(stop, limit)  # noqa: PLW2901
        if stop > start:
            mask[start:stop] = b"\x01" * (stop - start)
    return mask


def _is_glued(sample: Sample, template: Template) -> bool:
    if template.text is not None or template.is_seq2seq or not sample.prompt:
        return False
    return not sample.prompt[-1].isspace() and not sample.response[0].isspace()


def _key(source: Source, options: LoraOptions, template: Template, limit: int) -> str | None:
    backend = getattr(template.tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None  # what it depends on cannot be told
    shaping = [getattr(options, name) for name in _SHAPING]
    tokenizer = sha256(backend.to_str().encode()).hexdigest()
    marks = sorted((k, str(v)) for k, v in template.tokenizer.special_tokens_map.items())
    parts = [_FORMAT, source.identity(), shaping, limit, template.text, template.is_seq2seq]
    text = json.dumps([*parts, tokenizer, marks])
    return sha256(text.encode()).hexdigest()[:32]


def _save(tokens: Tokens, folder: Path) -> None:
    """Beside its place first, so that nobody reads half of it. Room that lacks is no fault."""
    with contextlib.suppress(OSError):
        with new_folder(folder) as making:
            for name, values in tokens.arrays().items():
                np.save(making / f"{name}.npy", values, allow_pickle=False)
            (making / "tally.json").write_text(json.dumps(asdict(tokens.tally)), encoding="utf-8")
        _forget_oldest(folder.parent)


def _load(folder: Path) -> Tokens | None:
    try:
        read = json.loads((folder / "tally.json").read_text(encoding="utf-8"))
        tally = Tally(**{**read, "faults": [Fault(**fault) for fault in read["faults"]]})
        there = [folder / f"{name}.npy" for name in _ARRAYS]
        arrays = {f.stem: np.load(f, "r", allow_pickle=False) for f in there if f.is_file()}
        return Tokens(arrays, tally)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _forget_oldest(folder: Path) -> None:
    entries: Sequence[Path] = [e for e in folder.iterdir() if not e.name.startswith(".")]
    for entry in sorted(entries, key=lambda e: e.stat().st_mtime)[:-_KEPT_SETS]:
        shutil.rmtree(entry, ignore_errors=True)
