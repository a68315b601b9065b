"""Samples of a data set, read back from a recording and compared element by element."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from phalanx.diagnose.recording import Recording, batch_file

Array = np.ndarray[Any, Any]

_CLEARLY = 0.5  # of the distance to any other sample: nearer than this is the sample itself


@dataclass
class Content:
    """Batches by their parts."""

    rows: dict[str, dict[int, Array]] = field(default_factory=dict)
    """Return the rows by sample of each part that has a row per sample."""
    others: dict[str, Array] = field(default_factory=dict)
    """Parts of another shape."""

    def add(self, ids: list[int], parts: Mapping[str, Array]) -> None:
        for name, array in parts.items():
            if array.shape[:1] == (len(ids),):
                self.rows.setdefault(name, {}).update(zip(ids, array, strict=True))
            else:
                self.others[name] = array


def read_content(run: Recording, step: int, slot: int | None = None) -> Content | None:
    """The content of one slot of a step, or of all; None where it was too large to be kept."""
    content = Content()
    for index, (_, record) in sorted(run.slots(step).items()):
        if slot not in (None, index):
            continue
        path = batch_file(run.folder, step, index) if run.folder is not None else None
        if path is None or not path.is_file():
            return None
        with np.load(path, allow_pickle=False) as file:
            names = file["arr_0"].tolist()
            content.add(record.ids, {n: file[f"arr_{i}"] for i, n in enumerate(names, 1)})
    return content


def describe_parts(one: Content, many: Content, sides: tuple[str, str]) -> Iterator[str]:
    """For each part that differs: in how many elements, and one of them with both values. Rows of
    different shapes are padded to another length, and not compared."""
    a, b = sides
    for part, rows in one.rows.items():
        theirs = many.rows.get(part, {})
        pairs = {i: (row, theirs[i]) for i, row in rows.items() if i in theirs}
        alike = {i: (x, y) for i, (x, y) in pairs.items() if x.shape == y.shape}
        differ = {i: mask for i, (x, y) in alike.items() if (mask := _unequal(x, y)).any()}
        if differ:
            sample, mask = next(iter(differ.items()))
            count = sum(int(mask.sum()) for mask in differ.values())
            total = sum(row.size for row, _ in alike.values())
            example = _example(mask, *alike[sample], sides)
            yield (
                f"`{part}` in {count:,} of {total:,} elements ({len(differ)} of {len(alike)} "
                f"samples), such as sample {sample}{example}"
            )
    for part, array in one.others.items():
        there = many.others.get(part)
        if there is None or array.shape != there.shape:
            shape = "nothing" if there is None else str(there.shape)
            yield f"`{part}` has shape {array.shape} {a} and {shape} {b}"
        elif (mask := _unequal(array, there)).any():
            example = _example(mask, array, there, sides)
            yield f"`{part}` in {int(mask.sum()):,} of {array.size:,} elements, such as{example}"


def _unequal(one: Array, many: Array) -> Array:
    differ = np.asarray(one != many)
    if one.dtype.kind in "fc" and many.dtype.kind in "fc":
        differ &= ~(np.isnan(one) & np.isnan(many))
    return differ


def _example(mask: Array, one: Array, many: Array, sides: tuple[str, str]) -> str:
    place = tuple(int(i) for i in np.argwhere(mask)[0])
    a, b = _value(one[place].item()), _value(many[place].item())
    where = f" at {list(place)}" if place else ""
    return f"{where}: {a} {sides[0]}, {b} {sides[1]}"


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def nearest_sample(found: Content, known: Content) -> tuple[int, int, str] | None:
    """A sample, the known one that its content is nearest to, and the part that shows it. The two
    are the same where a sample was only augmented otherwise; None where it cannot be told."""
    for part, rows in found.rows.items():
        table = known.rows.get(part, {})
        if 2 * len({row.tobytes() for row in table.values()}) < len(table):
            continue  # a label: many samples have the same
        for sample, row in rows.items():
            own = table.get(sample)
            if own is None or own.shape != row.shape or not _unequal(own, row).any():
                continue
            others = {i: r for i, r in table.items() if i != sample and r.shape == row.shape}
            if not others:
                continue
            apart = {i: _distance(row, r) for i, r in others.items()}
            nearest, mine = min(apart, key=lambda i: apart[i]), _distance(row, own)
            if apart[nearest] < _CLEARLY * mine:
                return sample, nearest, part
            if mine < _CLEARLY * apart[nearest]:
                return sample, sample, part
    return None


def _distance(one: Array, many: Array) -> float:
    """Count labels that differ, and measure how far values are apart."""
    if one.dtype.kind == "f" or one.dtype == np.uint8:
        return float(np.linalg.norm((one.astype(float) - many.astype(float)).ravel()))
    return float(np.count_nonzero(one != many))
