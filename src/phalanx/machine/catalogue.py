"""Finds the facts of a GPU by the name the driver or a person gives it.

A name is a set of words: the model, and where they are needed its memory and its form. Every word
must be known and belong to the same card, so that `L40S` is never taken for `L4`, nor a laptop's
`RTX 4090` for the card.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from phalanx.errors import Finding, UserError, did_you_mean
from phalanx.machine.catalogue_rows import APPLE, NVIDIA, PCIE_GB_PER_S, CatalogueGpu

__all__ = ["CATALOGUE", "PCIE_GB_PER_S", "CatalogueGpu", "aliases", "find_gpu", "match_gpu"]

CATALOGUE: tuple[CatalogueGpu, ...] = (*NVIDIA, *APPLE)

_SILENT = {"nvidia", "geforce", "tesla", "quadro", "gpu", "apple"}
_SPELLINGS = (
    (r"pci[\s-]?e(xpress)?\b", "pcie"),
    (r"sxm\d?", " sxm "),
    (r"(?<=\d)(pcie|nvl)\b", r" \1"),
    (r"\bhbm\d?e?\b", " "),
    (r"\b(\d+)\s*gi?b?\b", r" \1 "),  # 80GB, 80 GB, 80G
    (r"\brtx(?=a?\d)", "rtx "),
    (r"(?<=\d)ti\b", " ti"),
    (r"\b(m\d)(pro|max|ultra)\b", r"\1 \2"),
)
_ALSO_SOLD_AS_GB = {"B200": (192,)}


def find_gpu(text: str) -> CatalogueGpu:
    """The card of that name; a UserError names the nearest ones when there is none, or several."""
    found = match_gpu(text)
    if len(found) == 1:
        return found[0]
    if found:
        names = [gpu.name for gpu in found]
        raise UserError(
            Finding(
                slug="which-gpu",
                what=f"`{text}` may be {' or '.join(names)}",
                why="they differ in memory: "
                + ", ".join(f"{gpu.name} has {gpu.memory_gb} GB" for gpu in found),
                fix=names[-1],
            )
        )
    names = [gpu.name for gpu in CATALOGUE]
    raise UserError(
        Finding(
            slug="unknown-gpu",
            what=f"no GPU named `{text}` is known{did_you_mean(text, names)}",
            why=f"known are {', '.join(names)}",
            fix="on that machine `phalanx check --json > machine.json`, then `--machine "
            "machine.json`; or write the numbers by hand: `phalanx plan digits --machine "
            f'"{_nearest(text)}" --json > machine.json`, and change name, memory_total_bytes and '
            "compute_capability in it",
        )
    )


def match_gpu(text: str) -> tuple[CatalogueGpu, ...]:
    """Every card the name fits: none, one, or several that differ in what it leaves out."""
    return _index().get(_key(text), ())


def aliases(gpu: CatalogueGpu) -> Iterator[str]:
    """Ways to write a card: its names, and its model with memory and form in either order."""
    yield gpu.name
    yield gpu.nvml_name
    forms = [gpu.form] if not gpu.is_usual_form else [gpu.form, ""]
    sizes = ["", *(f"{gb}GB" for gb in (gpu.memory_gb, *_ALSO_SOLD_AS_GB.get(gpu.name, ())))]
    for model in gpu.words:
        for form in forms:
            for size in sizes:
                yield " ".join(filter(None, (model, form, size)))


@cache
def _index() -> dict[frozenset[str], tuple[CatalogueGpu, ...]]:
    found: dict[frozenset[str], tuple[CatalogueGpu, ...]] = {}
    for gpu in CATALOGUE:
        for key in {_key(alias) for alias in aliases(gpu)}:
            found[key] = (*found.get(key, ()), gpu)
    return found


def _key(text: str) -> frozenset[str]:
    text = text.lower().replace("_", " ")
    for pattern, spelled in _SPELLINGS:
        text = re.sub(pattern, spelled, text)
    return frozenset(re.findall(r"[a-z0-9]+", text)) - _SILENT


def _nearest(text: str) -> str:
    from difflib import get_close_matches

    names = {gpu.name.lower(): gpu.name for gpu in NVIDIA}
    near = get_close_matches(text.lower(), list(names), n=1, cutoff=0.4)
    return names[near[0]] if near else "RTX 4090"
