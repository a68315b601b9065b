"""Answers of the far side, as `Connection.ask` returns them (far_look.py, far_runs.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from phalanx.errors import ExitCode


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a check wants to know of a machine."""

    path: str
    """The folder of everything of ours."""
    is_writable: bool
    nearest: str
    """The folder above it that is there."""
    free_bytes: int
    memory_bytes: int | None
    cores: int | None
    system: str
    host: str
    python: str
    has_venv: bool
    driver: list[list[str]]
    gpus: list[list[str]]
    """By nvidia-smi: index, name, MiB in all, MiB free, compute capability."""
    packages: dict[str, str]
    """Versions in the environment; empty when there is none."""
    missing: list[str]
    """Of the files that were asked for, those that are not there."""


@dataclass(frozen=True)
class Folder:
    """A folder that was made."""

    path: str
    free_bytes: int


@dataclass(frozen=True)
class Started:
    """A run that was started, unless its name is taken."""

    taken: Literal["running", "there"] | None = None


@dataclass(frozen=True)
class Told:
    """A signal that was sent, unless the run was gone."""

    is_told: bool


@dataclass(frozen=True, kw_only=True)
class RemoteRun:
    """A run as its machine knows it."""

    name: str
    run: str
    """Its run directory over there."""
    project: str
    """The folder over there that was pushed."""
    ended: int | str | None
    """Its exit code; None while it runs; `gone` when nobody has seen it end."""
    step: int | None
    best: str | None
    time_s: float

    @property
    def state(self) -> str:
        if self.ended is None:
            return "running"
        if isinstance(self.ended, str):
            return "gone"
        words = {0: "finished", int(ExitCode.STOPPED): "stopped, saved"}
        return words.get(self.ended, f"failed ({self.ended})")


@dataclass(frozen=True)
class Runs:
    """Every run that was started there, the newest last."""

    runs: list[RemoteRun] = field(default_factory=list)
