"""Another tool's settings on their way into a job: what became of each of them.

Every setting ends in a line of the report or in a refusal; nothing is dropped in silence.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from phalanx.errors import Finding
from phalanx.job.importing.settings import Setting, as_number, is_number, is_off
from phalanx.job.importing.vocabulary import meaning_of, why_left, why_refused
from phalanx.job.source.origin import show

_MOST_SHOWN = 8
"""Settings of one line with their values; of more only the names."""

Fate = Literal["taken", "derived", "left", "unstated"]
BatchMeans = Literal["per-gpu", "global"]


class Line(NamedTuple):
    """What became of one setting, or of several that belong together."""

    theirs: str
    """The setting with its value."""
    fate: Fate
    """`taken` as it is, `derived`: the same meaning in other words, `left`: not in the job,
    `unstated`: the job has a value that the settings do not state."""
    ours: str
    """The job's key with its value; empty when there is none."""
    why: str = ""


class Refusal(NamedTuple):
    """A setting that could not be placed."""

    setting: Setting
    why: str
    instead: str
    """A line of a job that says it another way."""


class Translation:
    """The settings by meaning, the job that is made of them, and a line for each."""

    def __init__(
        self,
        settings: Sequence[Setting],
        *,
        recipe: str | None = None,
        leave: Iterable[str] = (),
        batch_means: BatchMeans | None = None,
        words: Mapping[str, str] | None = None,
    ) -> None:
        """`words` are a tool's own meanings of words; `leave` names keys to leave out."""
        self.recipe = recipe
        self.batch_means = batch_means
        self.job: dict[str, Any] = {}
        """Values by dotted key."""
        self.lines: list[Line] = []
        self.refusals: list[Refusal] = []
        self.nodes = 1
        self.preset: str | None = None
        self._leave = tuple(key.lstrip("-").replace("-", "_") for key in leave)
        self._by_meaning: dict[str, list[Setting]] = defaultdict(list)
        self._rest: list[Setting] = []
        for setting in settings:
            if setting.key.replace("-", "_") in self._leave:
                self.tell([setting], "left", "", _LEFT_BY_USER)
                continue
            own = (words or {}).get(setting.key, (words or {}).get(setting.word))
            meaning = own or meaning_of(setting)
            if meaning is None or setting.value is None:
                self._rest.append(setting)
            else:
                self._by_meaning[meaning].append(setting)

    def settings(self, meaning: str) -> list[Setting]:
        """Every setting of a meaning."""
        return self._by_meaning.get(meaning, [])

    def get(self, meaning: str) -> Setting | None:
        """The setting that states a meaning; two that contradict each other are refused."""
        stated = self._by_meaning.get(meaning, [])
        if not stated:
            return None
        highest = max(setting.rank for setting in stated)
        counted = [setting for setting in stated if setting.rank == highest]
        if any(not _is_same(setting.value, counted[0].value) for setting in counted[1:]):
            self.refuse(meaning, f"{len(counted)} settings state this with different values")
            return None
        overruled = [s for s in stated if s not in counted and s.value != counted[0].value]
        if overruled:
            self.tell(overruled, "left", "", f"overruled by `{counted[0]}`")
            self._by_meaning[meaning] = counted
        return counted[0]

    def value(self, meaning: str, read: Callable[[Any], Any]) -> Any:
        """The value of a meaning; None when it is not stated, or refused as it cannot be read."""
        setting = self.get(meaning)
        if setting is None:
            return None
        try:
            return read(setting.value)
        except (ValueError, TypeError) as error:
            self.refuse(meaning, str(error))
            return None

    def take(self, meaning: str, ours: str, read: Callable[[Any], Any], why: str = "") -> None:
        """Give the job a value under its own name, if it is stated."""
        value = self.value(meaning, read)
        if value is not None:
            self.put([meaning], ours, value, why)

    def put(self, meanings: Iterable[str], ours: str, value: Any, why: str = "") -> None:
        """Give the job what some meanings state."""
        stated = [setting for meaning in meanings for setting in self._by_meaning.get(meaning, [])]
        self.say(stated, ours, value, why)
        self._done(meanings)

    def say(self, stated: Sequence[Setting], ours: str, value: Any, why: str = "") -> None:
        """Give the job a value, and keep the settings for more."""
        self.job[ours] = value
        is_taken = len(stated) == 1 and show(stated[0].value) == show(value)
        self.tell(stated, "taken" if is_taken else "derived", f"{ours} = {show(value)}", why)

    def leave(self, meanings: Iterable[str], why: str) -> None:
        """Settings that a job has no place and no need for."""
        meanings = list(meanings)
        stated = [setting for meaning in meanings for setting in self._by_meaning.get(meaning, [])]
        if stated:
            self.tell(stated, "left", "", why)
        self._done(meanings)

    def refuse(self, meaning: str, why: str, instead: str = "") -> None:
        """Settings that cannot be carried as they are meant."""
        self.refusals += [Refusal(s, why, instead) for s in self._by_meaning.pop(meaning, [])]

    def recast(self, meaning: str, other: str, test: Callable[[Setting], bool]) -> None:
        """Give settings whose value says so another meaning."""
        stated = self._by_meaning.get(meaning, [])
        moved = [setting for setting in stated if test(setting)]
        if moved:
            self._by_meaning[meaning] = [setting for setting in stated if setting not in moved]
            self._by_meaning[other] += moved

    def drop(self, meaning: str) -> None:
        """Forget settings that lines speak of already."""
        self._by_meaning.pop(meaning, None)

    def finish(self) -> None:
        """Account for every setting that no rule has looked at."""
        rest = [*self._rest, *(s for stated in self._by_meaning.values() for s in stated)]
        self._by_meaning.clear()
        left: dict[str, list[Setting]] = defaultdict(list)
        for setting in rest:
            if setting.value is None:
                continue
            why = why_left(setting)
            if why is None:
                self.refusals.append(Refusal(setting, why_refused(setting), ""))
            else:
                left[why].append(setting)
        for why, settings in left.items():
            self.tell(settings, "left", "", why)
        asked = [r for r in self.refusals if self._is_left(r.setting.key)]
        self.tell([refusal.setting for refusal in asked], "left", "", _LEFT_BY_USER)
        self.refusals = [refusal for refusal in self.refusals if refusal not in asked]

    def _is_left(self, key: str) -> bool:
        return any(key.replace("-", "_").startswith(f"{name}.") for name in self._leave)

    def _done(self, meanings: Iterable[str]) -> None:
        for meaning in meanings:
            self.drop(meaning)

    def tell(self, stated: Sequence[Setting], fate: Fate, ours: str, why: str) -> None:
        """Add a line to the report."""
        if not stated:
            return
        names = [s.key for s in stated] if len(stated) > _MOST_SHOWN else list(map(str, stated))
        self.lines.append(Line(", ".join(names), fate, ours, why))


_LEFT_BY_USER = "left out by `--leave`"


def refused(refusals: Sequence[Refusal]) -> list[Finding]:
    """The settings that could not be placed; those of one section with one reason together."""
    groups: dict[tuple[str, str, str], list[Setting]] = defaultdict(list)
    for setting, why, instead in refusals:
        groups[setting.key.rpartition(".")[0], why, instead].append(setting)
    return [
        _refused(section, settings, why, instead)
        for (section, why, instead), settings in groups.items()
    ]


def _refused(section: str, settings: Sequence[Setting], why: str, instead: str) -> Finding:
    places = ", ".join(dict.fromkeys(setting.place for setting in settings))
    is_whole = len(settings) > 1 and section and not re.search(r"\.\d+$", section)
    keys = [section] if is_whole else [setting.key for setting in settings]
    leave = " ".join(f"--leave {key}" for key in dict.fromkeys(keys))
    return Finding(
        slug="import-unplaced",
        what=f"{', '.join(f'`{setting}`' for setting in settings)}: not carried into the job, and "
        "nothing was written",
        why=f"{places}; {why}",
        fix=f"{leave}, and in the job: `{instead}`" if instead else f"{leave} to leave it out",
    )


def _is_same(one: Any, other: Any) -> bool:
    if is_number(one) and is_number(other) and not isinstance(one, list | tuple):
        return not isinstance(other, list) and as_number(one) == as_number(other)
    return bool(one == other) or (is_off(one) and is_off(other))
