"""Another tool's settings on their way into a job: what became of each of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from phalanx.job.origin import show

_MOST_SHOWN = 8
"""Settings of one line with their values; of more only the names."""
_SECRET = re.compile(r"token|secret|password|api_?key", re.IGNORECASE)

Fate = Literal["taken", "derived", "left"]


class Line(NamedTuple):
    """What became of one setting, or of several that belong together."""

    theirs: str
    """The setting with its value."""
    fate: Fate
    """`taken` as it is, `derived`: the same meaning in other words, `left`: not in the job."""
    ours: str
    """The job's key with its value; empty when there is none."""
    why: str = ""


class Translation:
    """The settings, the job that is made of them, and a line for each."""

    def __init__(self, settings: Mapping[str, Any], place: str) -> None:
        """`place` is where they were read, for people."""
        self.settings = settings
        self.place = place
        self.recipe: str | None = None
        """The recipe that such settings are for, where there is one."""
        self.job: dict[str, Any] = {}
        """Values by dotted key."""
        self.lines: list[Line] = []
        self._read: set[str] = set()

    def get(self, key: str) -> Any:
        """A setting, by its dotted key where the settings have sections; None when not there."""
        place: Any = self.settings
        for part in key.split("."):
            if not isinstance(place, Mapping) or part not in place:
                return None
            place = place[part]
        return place

    def take(self, key: str, ours: str, *, why: str = "") -> None:
        """The same value under another name, if it is there."""
        if (value := self.get(key)) is not None:
            self._put(ours, value)
            self._say([key], "taken", f"{ours} = {show(value)}", why)

    def take_all(self, names: Mapping[str, str]) -> None:
        for key, ours in names.items():
            self.take(key, ours)

    def derive(self, keys: Iterable[str], ours: str, value: Any, why: str = "") -> None:
        """A value that follows from some of the settings."""
        self._put(ours, value)
        self._say(keys, "derived", f"{ours} = {show(value)}", why)

    def leave(self, keys: Iterable[str], why: str) -> None:
        """Settings that a job has no place for, as far as they are there."""
        there = [key for key in keys if self.get(key) is not None]
        if there:
            self._say(there, "left", "", why)

    def leave_rest(self, why: str) -> None:
        """Everything that nobody has looked at."""
        self.leave([key for key in _leaves(self.settings) if not self.is_read(key)], why)

    def _put(self, ours: str, value: Any) -> None:
        self.job[ours] = value

    def _say(self, keys: Iterable[str], fate: Fate, ours: str, why: str) -> None:
        keys = list(keys)
        self._read.update(keys)
        theirs = ", ".join(keys if len(keys) > _MOST_SHOWN else map(self._shown, keys))
        self.lines.append(Line(theirs, fate, ours, why))

    def _shown(self, key: str) -> str:
        return f"{key} = {'***' if _SECRET.search(key) else show(self.get(key))}"

    def is_read(self, key: str) -> bool:
        """Whether something has become of a setting."""
        return any(key == read or key.startswith(f"{read}.") for read in self._read)


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys of all that has a value."""
    found = []
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            found += _leaves(value, f"{prefix}{name}.")
        elif value is not None:
            found.append(f"{prefix}{name}")
    return found
