"""Messages between the command and its launcher (engine/launcher/serve.py), and what they carry
about ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

from phalanx.run.channel import Message
from phalanx.run.heartbeat import Beat

_PACKAGE = str(Path(__file__).parents[1])
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread|Stack).*most recent call first.*$", re.MULTILINE)
_OUTERMOST = "_run_module_as_main"  # the thread that trains began the process
_WAITING = re.compile(r"/torch/(distributed/|autograd/graph\.py)")
_LIBRARIES = ("site-packages", "dist-packages", "<frozen", "/lib/python")


@dataclass(frozen=True, kw_only=True)
class Share:
    """The ranks of one attempt on one node, and where the ranks of all nodes meet."""

    run: Path
    attempt: int
    ranks: int
    node: int = 0
    nodes: int = 1
    address: str = "127.0.0.1"
    """Of node 0."""
    port: int = 0
    """Where the ranks of all nodes meet; 0 while that is not known."""

    @property
    def first(self) -> int:
        """Number of the first rank on this node."""
        return self.node * self.ranks


@dataclass(frozen=True)
class RankDeath:
    """A rank that did not end in order."""

    rank: int
    exit_code: int
    """Negative: killed by that signal."""
    was_ended: bool = False
    """By whoever started it, because another one had died before."""
    lines: tuple[str, ...] = ()
    """The last lines it printed, where they were read."""


@dataclass(frozen=True)
class Witness:
    """The state and the stacks of one rank."""

    rank: int
    state: str
    """Of its process, as in proc(5): T is stopped, R computes, S and D wait."""
    stacks: str
    """Of its threads; empty when it could not answer."""
    collectives: Any = None
    """The last entries of torch's Flight Recorder, if it could answer."""

    @property
    def frames(self) -> list[tuple[str, int, str]]:
        """File, line and function of the training thread, innermost first."""
        blocks = _THREAD.split(self.stacks)[1:]
        training = next((block for block in blocks if _OUTERMOST in block), None)
        block = training or (blocks[-1] if blocks else "")
        return [(f["file"], int(f["line"]), f["name"]) for f in _FRAME.finditer(block)]

    @property
    def line(self) -> str | None:
        """`recipe.py:83 in loss`: the innermost line that its author can mend."""
        frames = self.frames
        own = [f for f in frames if not any(word in f[0] for word in (*_LIBRARIES, _PACKAGE))]
        ours = [f for f in frames if _PACKAGE in f[0]]
        shown = next(iter([*own, *ours, *frames]), None)
        return None if shown is None else f"{shown[0]}:{shown[1]} in {shown[2]}"

    @property
    def is_in_exchange(self) -> bool | None:
        """Whether it waits for the others; None when its stacks do not say."""
        frames = self.frames
        return bool(_WAITING.search(frames[0][0])) if frames else None


@dataclass(frozen=True, kw_only=True)
class JoinedRun:
    """The run of ranks that torchrun has started, as its rank 0 tells the others."""

    run: Path
    attempt: int
    environment: dict[str, str]
    """What differs from the environment that ranks have begun with."""
    is_read_early: bool
    """Whether torch has read some of it already."""
    port: int = 0
    """Of the store of the process groups; 0 before rank 0 has opened it."""


# From the command.


@dataclass(frozen=True)
class Ask(Message):
    """Run `python -m WORDS FILES` in a fork: the request, the answer, what is printed."""

    words: list[str]
    files: tuple[Path, Path, Path]
    environment: dict[str, str]


@dataclass(frozen=True)
class StartRanks(Message):
    """Start ranks with exactly this environment."""

    share: Share
    environment: dict[str, str]


@dataclass(frozen=True)
class SendSignal(Message):
    """Send a signal to every rank; SIGKILL also takes their loader processes."""

    number: Signals


@dataclass(frozen=True)
class AskStacks(Message):
    """Have every rank say where it is stuck."""


@dataclass(frozen=True)
class PeersOver(Message):
    """The ranks of other nodes are gone: the store may go."""


# From the launcher.


@dataclass(frozen=True)
class Answered(Message):
    """A fork has ended with this exit code."""

    exit_code: int


@dataclass(frozen=True)
class StoreOpened(Message):
    """The port at which the ranks of all nodes meet, said by node 0."""

    port: int


@dataclass(frozen=True)
class RanksStarted(Message):
    """The ranks run."""

    pids: list[int]


@dataclass(frozen=True)
class Beats(Message):
    """Where each rank is."""

    beats: list[Beat]


@dataclass(frozen=True)
class Stacks(Message):
    """Where each rank is stuck."""

    witnesses: list[Witness]


@dataclass(frozen=True)
class RanksEnded(Message):
    """All ranks are gone; `deaths` of those that did not end in order."""

    deaths: list[RankDeath]


@dataclass(frozen=True)
class RanksFailed(Message):
    """The ranks could not be started or watched."""

    error: str
