"""What the two sides of a meeting share: who asks for what, what a node says of itself, and how
each shows the other that it knows the secret."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.codec import from_json
from phalanx.errors import Finding
from phalanx.machine.network import Setting
from phalanx.places.nodes.link import NodeLink
from phalanx.run.channel import Message

GREETING_S = 10.0
"""A peer that is one of ours answers at once; a shared folder may lag."""
TELL_EVERY_S = 30.0
"""Between lines that say who is still missing."""
PREFIX = ".meeting-"
"""Of the file in the output folder that holds the secret."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class NodesAsked:
    """What was asked: how many nodes meet where."""

    nodes: int
    node_rank: int | None
    host: str
    port: int
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What a node says of itself."""

    nodes: int
    node_rank: int | None
    host: str
    address: str
    interface: str
    gbps: float | None
    settings: list[str]
    """What its ranks are told about the network, each with its reason."""
    facts: dict[str, Any]
    """What must be the same on all nodes: versions, command, job, sources."""
    is_back: bool = False
    """Whether it was welcome before, and had lost its line to node 0."""

    @property
    def title(self) -> str:
        number = "a node" if self.node_rank is None else f"node {self.node_rank}"
        return f"{number} ({self.host}, {self.address})"

    @property
    def described(self) -> str:
        """By number, name, address and interface."""
        speed = "" if self.gbps is None else f", {self.gbps:g} Gb/s"
        where = f"{self.address} on {self.interface or 'an unnamed interface'}{speed}"
        return f"node {self.node_rank}: {self.host}, {where}"


@dataclass(frozen=True, kw_only=True)
class Greeting(Message):
    """What node 0 says to whoever connects."""

    phalanx: str | None
    """Version: what follows may differ between two of them."""
    file: str
    """Name of the file that holds the secret."""
    folder: str
    host: str
    challenge: str


@dataclass(frozen=True, kw_only=True)
class Introduction(Message):
    """What another node answers."""

    proof: str
    challenge: str
    hello: Hello


@dataclass(frozen=True)
class Proof(Message):
    """Node 0 shows that it knows the secret."""

    proof: str


@dataclass(frozen=True)
class Welcome(Message):
    """All nodes are here."""

    rank: int
    """Number of the node that is told."""
    members: list[Hello]


@dataclass(frozen=True)
class Refused(Message):
    """Why a node cannot take part."""

    findings: list[Finding]


@dataclass
class Met:
    """The nodes are here: this one's number, and a line to each other one that is needed (node 0
    has one to every other, the others have one to node 0)."""

    rank: int
    members: list[Hello]
    settings: list[Setting]
    links: dict[int, NodeLink]
    find_again: Callable[[int], NodeLink | None] = lambda rank: None
    """On node 0: the line to a node that was lost, once it is back."""
    rejoin: Callable[[float], NodeLink | None] = lambda timeout_s: None
    """On the others: a new line to node 0, if one is to be had within this time."""
    close: Callable[[], None] = field(default=lambda: None)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What either side of a meeting needs."""

    asked: NodesAsked
    address: str
    """Of node 0."""
    hello: Hello
    settings: list[Setting]
    output: Path
    tell: Say


@dataclass(frozen=True)
class SecretFile:
    """The file by which nodes show that they share the output folder."""

    secret: str
    address: str
    port: int
    """Of node 0."""


def read_secret_file(path: Path) -> SecretFile:
    """Read what node 0 has written; raises OSError, or ValueError if it is damaged."""
    return from_json(SecretFile, json.loads(path.read_text(encoding="utf-8")))


def is_same(expected: str, shown: str) -> bool:
    """Compare proofs in constant time; those that are no ASCII are none."""
    return hmac.compare_digest(expected.encode(), shown.encode(errors="replace"))


def prove(secret: bytes, role: str, theirs: str, mine: str) -> str:
    """What only who knows the secret can answer to a challenge; each role answers its own way, so
    that no answer can be sent back."""
    return hmac.new(secret, f"{role} {theirs} {mine}".encode(), hashlib.sha256).hexdigest()
