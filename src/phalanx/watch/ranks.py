"""What is known of each rank: what it uses, what its steps go to, who is slow."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from statistics import median

from phalanx.errors import Finding
from phalanx.run.event_kinds import Pace, RankStarted, Usage

MOST_RANKS = 4096
_COLUMNS = 240
_SLOW = 1.5
_OF_STEP = 0.2  # of a step: less is noise


@dataclass
class Rank:
    """The newest figures of one rank."""

    device: str = ""
    pid: int | None = None
    usage: dict[str, float] = field(default_factory=dict)
    """As the `usage` event has it, without what is null."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds per step by part, in the newest window."""
    step_s: float | None = None
    is_straggler: bool = False
    """By the newest window, or because a Finding says so."""
    exit_code: int | None = None
    is_alone: bool = False
    """The only rank."""

    @property
    def shares(self) -> dict[str, float]:
        """Shares of data, compute and communication in a step. Backward exchanges gradients
        while it computes: it counts as computing. Who reads a loss waits for the device to compute
        it, on a CPU for the other ranks; who agrees, for the other ranks."""
        total = sum(self.parts.values())
        if total <= 0:
            return {}
        compute = ["forward", "backward", "update"]
        compute += ["read"] if self.is_alone or not self.device.startswith("cpu") else []
        compute += ["agree"] if self.is_alone else []
        others = [part for part in ("agree", "read") if part not in compute]
        groups = {"data": ["data"], "compute": compute, "communication": others}
        return {
            name: sum(self.parts.get(part, 0.0) for part in parts) / total
            for name, parts in groups.items()
        }


@dataclass
class HeatMap:
    """Seconds per step of every rank over time, in a bounded number of columns."""

    times: list[float] = field(default_factory=list)
    columns: list[dict[int, float]] = field(default_factory=list)
    _merged: int = 1
    _since: int = 0

    def add(self, time_s: float, step_s: dict[int, float]) -> None:
        if self.columns and self._since < self._merged:
            before = self.columns[-1]
            self.columns[-1] = {
                **before,
                **{r: max(s, before.get(r, s)) for r, s in step_s.items()},
            }
            self.times[-1] = time_s
        else:
            self.times.append(time_s)
            self.columns.append(step_s)
            self._since = 0
        self._since += 1
        if len(self.columns) >= 2 * _COLUMNS:
            pairs = zip(self.columns[::2], self.columns[1::2], strict=True)
            # The slower of the two: a straggler is what this picture is for.
            self.columns = [
                {**a, **{rank: max(s, a.get(rank, s)) for rank, s in b.items()}} for a, b in pairs
            ]
            self.times = self.times[1::2]
            self._merged *= 2
            self._since = self._merged


@dataclass
class Ranks:
    """All ranks of the newest attempt."""

    by_number: dict[int, Rank] = field(default_factory=dict)
    heat: HeatMap = field(default_factory=HeatMap)
    world: int = 0
    _said: set[int] = field(default_factory=set)

    def __getitem__(self, number: int) -> Rank:
        if len(self.by_number) >= MOST_RANKS:
            return self.by_number.get(number, Rank())
        return self.by_number.setdefault(number, Rank())

    def begin(self, world: int) -> None:
        """Ranks start: what the ones before used says nothing of them."""
        self.by_number, self._said = {}, set()
        self.world = min(max(0, world), MOST_RANKS)

    def start(self, said: RankStarted) -> None:
        rank = self[said.rank]
        rank.device, rank.pid = said.device, said.pid

    def use(self, usage: Usage) -> None:
        known = {name: value for name, value in vars(usage).items() if value is not None}
        self[usage.rank].usage = known

    def pace(self, time_s: float, pace: Pace) -> None:
        alone = pace.alone
        rows: dict[int, tuple[float, dict[str, float]]] = {}
        for row in pace.rows[:MOST_RANKS]:
            if row.steps <= 0:
                continue
            pairs = zip(pace.parts, row.seconds, strict=False)
            parts = {name: s / row.steps for name, s in pairs if name != "none"}
            rows[row.rank] = sum(parts.values()), parts
        for number, (step_s, parts) in rows.items():
            rank = self[number]
            rank.step_s, rank.parts, rank.is_alone = step_s, parts, self.world == 1
            rank.is_straggler = number in self._said or _is_slow(number, rows, alone)
        self.heat.add(time_s, {n: _own(parts, alone) for n, (_, parts) in rows.items()})

    def blame(self, finding: Finding) -> None:
        """Mark the rank that a Finding calls slow."""
        found = re.match(r"rank (\d{1,6}) takes", finding.what)
        if finding.slug == "straggler" and found:
            self._said.add(int(found[1]))
            self[int(found[1])].is_straggler = True


def _own(parts: dict[str, float], alone: list[str]) -> float:
    """Seconds per step of a rank on its own account; the rest may be waiting for others."""
    return sum(parts.get(name, 0.0) for name in alone)


def _is_slow(
    number: int, rows: dict[int, tuple[float, dict[str, float]]], alone: list[str]
) -> bool:
    others = [_own(parts, alone) for n, (_, parts) in rows.items() if n != number]
    if not others:
        return False
    step_s, parts = rows[number]
    own, usual = _own(parts, alone), median(others)
    return own > _SLOW * usual and own - usual > _OF_STEP * step_s
