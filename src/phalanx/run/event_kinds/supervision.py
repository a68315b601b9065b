"""What the supervisor writes."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.codec import Json


@dataclass(frozen=True, kw_only=True)
class AttemptStarted:
    """The ranks are started, the first time or again."""

    ranks: int
    """how many ranks"""
    revision: int | None = None
    """plan revision they read; absent for a launched script"""


@dataclass(frozen=True, kw_only=True)
class NodesJoined:
    """All nodes of a run on several have met."""

    members: list[str]
    """each node of several in words: number, host, address, interface, speed"""
    settings: list[list[str]]
    """what the ranks of each are told about the network, with reasons"""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one rank uses of the machine, every few seconds."""

    rank: int
    """the rank that is meant, with what it started"""
    step: int | None
    """the last step that was logged, or null"""
    cpu_percent: float | None
    """of the CPU since the last sample, 100 is one core"""
    memory_bytes: int
    """resident host memory; shared pages count in each process"""
    gpu: int | None = None
    """the driver's number of its GPU; absent on CPU, as are the next four"""
    gpu_percent: float | None = None
    """share of the time in which a kernel ran"""
    gpu_memory_bytes: int | None = None
    """memory in use on that GPU, of all processes"""
    gpu_power_w: float | None = None
    """power drawn"""
    gpu_temperature_c: float | None = None
    """temperature"""


@dataclass(frozen=True)
class RankPace:
    """What the steps of one rank went to."""

    rank: int
    steps: int
    seconds: list[float]
    """In each part, in the order of `Pace.parts`."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What the steps of every rank went to, every few seconds."""

    seconds: float
    """time that the figures are of"""
    parts: list[str]
    """names of the figures of each rank: parts of a step as the heartbeat counts them; `none` is
    outside of steps"""
    alone: list[str]
    """those of them in which a rank waits for no other one"""
    ranks: list[list[int | float]]
    """of each rank: its number, the steps it made, seconds in each part"""

    @property
    def rows(self) -> list[RankPace]:
        """The ranks, with names; a row too short for its number and steps is left out."""
        return [
            RankPace(int(row[0]), int(row[1]), [float(s) for s in row[2:]])
            for row in self.ranks
            if len(row) > 1
        ]


@dataclass(frozen=True, kw_only=True)
class Hang:
    """No rank has moved for longer than allowed."""

    rank: int | None
    """the rank that the others wait for, or null"""
    because: str
    """what says that it is this one"""
    phase: str
    """where it is: start, compile, step, evaluate, save or export"""
    part: str
    """and within a step: data, agree, forward, backward or update"""
    step: int
    """optimizer steps it has done"""
    place: str
    """the same in words"""
    line: str | None
    """file, line and function it is at, or null when it did not answer"""
    silent_s: float
    """how long it had not moved"""
    limit_s: float
    """how long it may"""
    limit_reason: str
    """where that limit is from: a job key, or what a step takes"""
    file: str
    """where every rank was: stacks, state, collectives"""


@dataclass(frozen=True, kw_only=True)
class StopAsked:
    """The run is asked to stop early."""

    reason: str
    """why the run is asked to stop early"""


@dataclass(frozen=True)
class Change:
    """A value of the plan that changes."""

    old: Json
    new: Json


@dataclass(frozen=True, kw_only=True)
class RevisionMade:
    """The plan is changed on the way."""

    revision: int
    """plan revision from here on; the next attempt reads it"""
    reason: str
    """why the plan is changed, and what that means for the curve"""
    changes: dict[str, Change]
    """each value that changes by name: micro_batch_size, accumulation, ...; old, new"""
    step: int | None
    """optimizer steps done when it became necessary, or null"""


@dataclass(frozen=True, kw_only=True)
class Death:
    """A rank did not end in order."""

    rank: int
    """a rank that did not end in order; one event for each, the first first"""
    exit_code: int
    """how it ended; negative: the signal that killed it"""
    was_ended: bool
    """whether it was ended because another one had died before"""
    phase: str | None = None
    """where it was, as last heard: start, compile, step, evaluate, save or export; absent for a
    launched script, as is the next"""
    step: int | None = None
    """optimizer steps it had done"""
    oom_kills: int | None
    """processes that the kernel ended here for want of memory, since the attempt began; null where
    that is not told"""
