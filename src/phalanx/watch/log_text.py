"""What ranks printed: the end of a log, or the lines in which a word stands; bounded, whatever the
size of the file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from phalanx.errors import printable
from phalanx.run.directory import RunDirectory
from phalanx.run.reading import read_end

_END = 2**17
_SEARCHED = 64 * 2**20
_LONGEST = 2000
_MOST_FILES = 4200


def log_names(run: RunDirectory) -> list[str]:
    """Logs of the run, those of ranks first and in their order."""
    with suppress(OSError):
        names = [path.name for path in run.logs.iterdir() if path.is_file()][:_MOST_FILES]
        return sorted(names, key=_order)
    return []


def _order(name: str) -> tuple[int, int, str]:
    number = name.removeprefix("rank-").removesuffix(".log")
    is_rank = name.startswith("rank-") and number.isdigit()
    return (0, int(number), name) if is_rank else (1, 0, name)


def log_text(run: RunDirectory, name: str, word: str = "", *, lines: int = 400) -> str:
    """The last lines of a log, or of those that hold a word in any case. A name that is none of
    this run's logs gives nothing."""
    if name not in log_names(run):
        return ""
    path = run.logs / name
    if not path.resolve().is_relative_to(run.path.resolve()):
        return ""
    try:
        found = _search(path, word.lower(), lines) if word else _end(path)[-lines:]
    except OSError:
        return ""
    return "\n".join(printable(line[:_LONGEST]) for line in found)


def _end(path: Path) -> list[str]:
    text = read_end(path, _END).decode(errors="replace")
    # Of a bar its last state.
    return [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]


def _search(path: Path, word: str, lines: int) -> list[str]:
    """Numbered lines, the newest `lines` of them; of a huge log only its end is looked at."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        start = max(0, size - _SEARCHED)
        file.seek(start)
        found: list[str] = []
        for number, line in enumerate(file, 1):
            if word.encode() in line.lower():
                text = line.decode(errors="replace").rstrip("\r\n")
                found.append(f"{number}: {text}" if start == 0 else text)
                if len(found) >= 2 * lines:
                    found = found[-lines:]
    return found[-lines:]
