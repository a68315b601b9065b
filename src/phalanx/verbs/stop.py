"""Stops the command that holds a run, from another one: `phalanx stop`."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import ExitCode, Finding, UserError
from phalanx.run.directory import RunDirectory, find_run
from phalanx.run.event_kinds import AttemptStarted, Checkpoint, Outcome, Step
from phalanx.run.events import Event, EventReader, read_events
from phalanx.run.holder import Holder
from phalanx.run.lock import is_held, read_holder, read_ranks

_POLL_S = 0.1
_PATIENCE_S = 20.0  # from an end now to SIGKILL


@dataclass(frozen=True)
class Stopped:
    """Where a run stands after it was stopped."""

    run: RunDirectory
    status: str
    """finished, stopped or failed; `gone` when its command left no word."""
    step: int | None
    reason: str

    @property
    def is_script(self) -> bool:
        return not self.run.plan_file.is_file()


def stop_run(
    reference: str | None,
    output: Path,
    *,
    is_now: bool = False,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Stopped:
    """Have a run save and end (or end at once), and wait until it has. Raises UserError when it
    does not run, or not here."""
    run = find_run(reference, output, command="phalanx stop", with_scripts=True)
    if not is_held(run):
        raise UserError(_not_running(run), exit_code=ExitCode.OK)
    holder = read_holder(run)
    if holder is None or not holder.is_here:
        raise UserError(_elsewhere(run, holder), exit_code=ExitCode.FAILED)
    reader = EventReader(run.events)
    reader.read()  # what was before is no news
    # Ranks that a killed command has left are asked in its place.
    holders = [holder] if holder.is_alive() else [h for h in read_ranks(run) if h.is_alive()]
    for one in holders:
        _send(run, one, signal.SIGTERM)
        if is_now:
            _send(run, one, signal.SIGINT)  # a second one; two of the same may arrive as one
    _wait(run, holders, reader, is_now=is_now, on_event=on_event)
    return _standing(run)


def _send(run: RunDirectory, holder: Holder, number: signal.Signals) -> None:
    try:
        holder.send(number)
    except PermissionError as error:
        raise UserError(_not_ours(run, holder), exit_code=ExitCode.FAILED) from error


def _wait(
    run: RunDirectory,
    holders: list[Holder],
    reader: EventReader,
    *,
    is_now: bool,
    on_event: Callable[[Event], None],
) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while any(holder.is_alive() for holder in holders):
        for event in reader.read():
            on_event(event)
        if is_now and time.monotonic() > deadline:
            for holder in holders:
                _send(run, holder, signal.SIGKILL)  # Linux ends its ranks with it
        time.sleep(_POLL_S)


def _standing(run: RunDirectory) -> Stopped:
    events = read_events(run.events)
    begun = (event.attempt for event in events if isinstance(event.body, AttemptStarted))
    newest = max(begun, default=0)
    steps = [e.step for e in events if isinstance(e.body, Step | Checkpoint)]
    for event in reversed(events):
        is_last = event.writer == "supervisor" and event.attempt == newest
        if isinstance(event.body, Outcome) and is_last:
            return Stopped(run, event.body.status, event.body.step, event.body.reason)
    seen = max((step for step in steps if step is not None), default=None)
    return Stopped(run, "gone", seen, "its command ended without a word")


def resume_command(run: RunDirectory, shown: Path) -> str | None:
    """What continues a run; None where only its script knows."""
    return f"phalanx train --resume {shown}" if run.plan_file.is_file() else None


def _not_running(run: RunDirectory) -> Finding:
    standing = _standing(run)
    at = f" at step {standing.step}" if standing.step is not None else ""
    command = resume_command(run, run.path)
    return Finding(
        slug="not-running",
        what=f"`{run.path}` does not run: {standing.status}{at}",
        why=f"no process holds its lock; {standing.reason}",
        fix=f"nothing to do; continue it: `{command}`" if command else "nothing to do",
        severity="note",
    )


def _elsewhere(run: RunDirectory, holder: Holder | None) -> Finding:
    if holder is None:
        return Finding(
            slug="run-elsewhere",
            what=f"`{run.path}` is held by a process that its lock does not name",
            why=f"`{run.path / '.lock'}` is locked and cannot be read",
            fix="stop it with Ctrl-C or SIGTERM where it was started; it saves first",
        )
    fix = f"ssh {holder.host} phalanx stop {run.path}"
    if holder.slurm_job is not None:
        fix = f"phalanx slurm cancel {holder.slurm_job}"
    return Finding(
        slug="run-elsewhere",
        what=f"`{run.path}` runs on {holder.host}, a signal from here does not reach it",
        why=f"its lock is held by process {holder.pid} there"
        + (f", of Slurm job {holder.slurm_job}" if holder.slurm_job else ""),
        fix=fix,
    )


def _not_ours(run: RunDirectory, holder: Holder) -> Finding:
    return Finding(
        slug="run-of-another-user",
        what=f"`{run.path}` is run by another user",
        why=f"process {holder.pid} takes no signals from this one",
        fix="ask that user, or an administrator",
    )
