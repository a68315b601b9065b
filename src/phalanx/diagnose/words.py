"""Words and fixes of a cause with what is known of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping

_MISSING = "\0"
_IN_BRACKETS = re.compile(rf" \([^()]*{_MISSING}[^()]*\)")


def fill_words(text: str, values: Mapping[str, str]) -> str:
    """The words with what is known; a part that needs what is not known is left out."""
    filled = text.format_map(_Known(values, _MISSING))
    pieces = [_without_missing(piece) for piece in filled.split("; ")]
    return "; ".join(filter(None, pieces)) or filled.replace(_MISSING, "...")


def _without_missing(piece: str) -> str:
    piece = _IN_BRACKETS.sub("", piece)
    before, found, _ = piece.partition(_MISSING)
    if not found:
        return piece
    return before.rpartition(": ")[0] or before.rpartition(", ")[0]


def fill_fix(text: str, values: Mapping[str, str]) -> str:
    """The fix with what is known; what is not stands in capitals."""
    return text.format_map(_Known(values, None))


class _Known(dict[str, str]):
    def __init__(self, values: Mapping[str, str], missing: str | None) -> None:
        super().__init__(values)
        self._missing = missing

    def __missing__(self, name: str) -> str:
        return name.upper() if self._missing is None else self._missing
