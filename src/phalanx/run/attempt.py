"""Which attempt a run belongs to.

`attempt.json` names the run by an id that no other run has, and the newest attempt by its number.
Whoever writes for an older attempt stops: its ranks may be on a host whose processes nobody here
can see, or on a disk that keeps no locks between hosts.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import ExitCode, Finding, UserError
from phalanx.run.directory import write_atomic

FILE = "attempt.json"
_SCHEMA_VERSION = 1


class RunTakenError(UserError):
    """The run belongs to a newer attempt: this process may not write into it any more."""


@dataclass(frozen=True)
class Attempt:
    """One start of the ranks of one run."""

    run: str | None
    """Id of the run; None in run directories of versions that had none."""
    number: int
    hosts: tuple[str, ...] = ()
    """Hosts that its ranks were started on."""

    def check(self, path: Path) -> None:
        """Raise RunTakenError if the run directory at `path` belongs to a newer attempt, or was
        replaced by another run of the same name."""
        newest = read_attempt(path)
        if newest is None:
            return
        is_other = self.run is not None and newest.run != self.run
        if is_other or newest.number > self.number:
            raise RunTakenError(_taken(path, self, newest), exit_code=ExitCode.FAILED)


def read_attempt(path: Path) -> Attempt | None:
    """Return the newest attempt of the run directory at `path`, or None if none is recorded."""
    try:
        record = json.loads((path / FILE).read_text(encoding="utf-8"))
        return Attempt(str(record["run"]), int(record["attempt"]), tuple(record["hosts"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def claim_attempt(path: Path, number: int, hosts: Sequence[str] = ()) -> Attempt:
    """Record that the run belongs to this attempt from now on. Call it only with the run locked."""
    before = read_attempt(path)
    name = before.run if before is not None else secrets.token_hex(8)
    claimed = Attempt(name, number, tuple(hosts))
    record = {"schema_version": _SCHEMA_VERSION, "run": name, "attempt": number, "hosts": hosts}
    write_atomic(path / FILE, json.dumps(record, indent=2))
    return claimed


def _taken(path: Path, mine: Attempt, newest: Attempt) -> Finding:
    return Finding(
        slug="run-taken",
        what=f"`{path}` belongs to another attempt now: this one stopped without writing",
        why=f"`{path / FILE}` names attempt {newest.number} of run {newest.run}; this is attempt "
        f"{mine.number} of run {mine.run}",
        fix=f"nothing to do: the newer attempt continues the run; `phalanx watch {path}` shows it",
    )
