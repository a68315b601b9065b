"""The first look at a machine, by its shell alone: is there rsync, which Pythons are there."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from phalanx.errors import Finding
from phalanx.places.remote.far_side import MARK
from phalanx.places.remote.places import Place

_USUAL = ("python3", "python3.13", "python3.12", "python3.11")


@dataclass(frozen=True)
class Found:
    """What the first look has found."""

    rsync: str | None
    pythons: tuple[tuple[str, str], ...]
    """(version, path), in the order in which they are taken."""

    @property
    def python(self) -> str | None:
        """The first that is new enough."""
        return next((path for version, path in self.pythons if _is_new(version)), None)


def _is_new(version: str) -> bool:
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    return numbers >= (3, 11)


def look_script(place: Place) -> str:
    """A script for `sh`, which reads it on stdin."""
    names = [place.python] if place.python else _USUAL
    return _SCRIPT.format(candidates=" ".join(map(_below_home, names)))


def parse_look(text: str) -> Found:
    """What the script has printed."""
    said = [
        line.removeprefix(MARK).split(" ", 2) for line in text.splitlines() if line.startswith(MARK)
    ]
    return Found(
        rsync=next((words[1] for words in said if words[0] == "rsync" and words[1]), None),
        pythons=tuple((words[1], words[2]) for words in said if words[0] == "python"),
    )


def _below_home(path: str) -> str:
    """A word of a shell script; `~/` is meant as a shell means it."""
    if path.startswith("~/"):
        return f'"$HOME"/{shlex.quote(path[2:])}'
    return shlex.quote(path)


_SCRIPT = f"""\
ask='import sys; print("%d.%d.%d" % sys.version_info[:3])'
echo "{MARK}rsync $(command -v rsync)"
for candidate in {{candidates}}; do
  path=$(command -v "$candidate") || continue
  case $path in /*) ;; *) path=$PWD/$path ;; esac
  version=$("$path" -c "$ask" </dev/null 2>/dev/null) || continue
  echo "{MARK}python $version $path"
done
"""


def no_python(place: Place, found: Found) -> Finding:
    """No Python there that is new enough."""
    known = ", ".join(f"{path} is {version}" for version, path in found.pythons)
    if place.python:
        return Finding(
            slug="remote-python",
            what=f"`{place.python}` on {place.target} is no Python 3.11 or newer",
            why=known or "it is not there, or does not run",
            fix=f"phalanx remote add {place.name} {place.target} --python PATH_OF_A_PYTHON",
        )
    return Finding(
        slug="remote-python",
        what=f"there is no Python 3.11 or newer on {place.target}",
        why=f"of python3, python3.13, python3.12 and python3.11 on its PATH: {known or 'none'}",
        fix="install one there (apt install python3 python3-venv, conda, uv), or name it: phalanx "
        f"remote add {place.name} {place.target} --python PATH",
    )
