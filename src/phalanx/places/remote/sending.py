"""A run over there is begun: look, push, make the environment, start. Each part says all that is
wrong with it at once; what was pushed already is not sent again."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import ExitCode, Finding, UserError, errors_of, format_bytes
from phalanx.places.remote import transfer
from phalanx.places.remote.answers import Folder, Started
from phalanx.places.remote.checks import examine, look_at
from phalanx.places.remote.environment import Wanted, make_environment, write_wheel
from phalanx.places.remote.request import TrainRequest, missing_findings
from phalanx.places.remote.ssh import Connection

Say = Callable[[str], None]


@dataclass(frozen=True)
class Sent:
    """A project that is over there, and what runs it."""

    path: str
    """The folder of everything of ours."""
    python: str
    findings: list[Finding]
    """Warnings and notes; errors were raised."""


def send_project(
    connection: Connection,
    request: TrainRequest,
    *,
    include: Sequence[str] = (),
    wheelhouse: Path | None = None,
    requirements: str | None = None,
    say: Say,
    update: Say,
) -> Sent:
    """Push this folder and make the environment; `say` gets lines, `update` what goes on now."""
    place = connection.place
    update(f"looking at {place.target}")
    _raise_if_errors(_wrong_paths(include, wheelhouse, requirements), ExitCode.USAGE)
    seen = examine(connection, project=request.project, is_whole=False)
    _raise_if_errors(seen.findings, ExitCode.MACHINE)
    rules = transfer.filters(Path.cwd(), include=include, leave_out=request.leave_out)
    _push(connection, Path.cwd(), f"{seen.path}/{request.project}", rules, say, update)
    missing = look_at(connection, request.project, request.files).missing
    _raise_if_errors(list(missing_findings(place, missing, is_pushed=True)))
    if place.python:
        python = connection.find().python or place.python
    else:
        if wheelhouse is not None:
            _push(connection, wheelhouse, f"{seen.path}/wheelhouse", (), say, update)
        python = _environment(
            connection, seen.path, request, requirements, wheelhouse is not None, say, update
        )
    findings = [f for f in seen.findings if f.severity == "warning"]
    return Sent(seen.path, python, [*findings, *_gitignore_notes()])


def start_run(
    connection: Connection, sent: Sent, request: TrainRequest, environment: dict[str, str]
) -> None:
    """Start a run that goes on without us. The one place that knows how."""
    name, place = request.name, connection.place
    taken = connection.ask(
        Started,
        "start",
        path=sent.path,
        name=name,
        project=request.project,
        run=request.run,
        argv=request.argv(sent.python),
        env=environment,
        token=secrets.token_hex(8),
        is_resumed=request.is_resumed,
    ).taken
    if taken is not None:
        is_running = taken == "running"
        raise UserError(
            Finding(
                slug="remote-run-exists",
                what=f"there is a run {name!r} on {place.target}"
                + (", and it is running" if is_running else ""),
                why=f"its files are in {sent.path}/started/{name} and "
                f"{sent.path}/{request.project}/{request.run}",
                fix=f"phalanx remote attach {place.name} {name}"
                if is_running
                else f"another --name, or go on with it: phalanx remote train {place.name} "
                f"--resume {name}",
            )
        )


def _wrong_paths(
    include: Sequence[str], wheelhouse: Path | None, requirements: str | None
) -> list[Finding]:
    wrong = [("--include", path) for path in include if not _is_below(path)]
    if wheelhouse is not None and not any(wheelhouse.glob("*.whl")):
        wrong.append(("--wheelhouse", str(wheelhouse)))
    if requirements is not None and not (_is_below(requirements) and Path(requirements).is_file()):
        wrong.append(("--requirements", requirements))
    meanings = {
        "--include": "names something below this folder",
        "--wheelhouse": "names a folder of wheels (*.whl)",
        "--requirements": "names a file below this folder",
    }
    return [
        Finding(
            slug="remote-option",
            what=f"{option} {path!r} is not there, or not below this folder",
            why=f"{option} {meanings[option]}, {Path.cwd()}",
            fix="pip download -d wheelhouse torch; then --wheelhouse wheelhouse"
            if option == "--wheelhouse"
            else f"{option} with a path from here, as `ls` shows it",
        )
        for option, path in wrong
    ]


def _is_below(path: str) -> bool:
    given = Path(path)
    return not given.is_absolute() and ".." not in given.parts and given.exists()


def _push(
    connection: Connection, source: Path, far: str, rules: Sequence[str], say: Say, update: Say
) -> None:
    target = connection.place.target
    room = connection.ask(Folder, "make", path=far)
    load = transfer.measure(connection, source, room.path, rules)
    if load.num_bytes > room.free_bytes:
        finding = transfer.no_room(f"`{far}` on {target}", load.num_bytes, room.free_bytes)
        raise UserError(finding, exit_code=ExitCode.MACHINE)
    what = f"{load.files} files, {format_bytes(load.num_bytes)}"
    update(f"pushing {what}")

    def on_progress(done: int, percent: int) -> None:
        update(f"pushing {what}: {percent}%")

    transfer.push(connection, source, room.path, rules=rules, on_progress=on_progress)
    say(f"pushed {what} to {target}:{far}")


def _environment(
    connection: Connection,
    path: str,
    request: TrainRequest,
    requirements: str | None,
    has_wheelhouse: bool,
    say: Say,
    update: Say,
) -> str:
    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder:
        wheel = write_wheel(Path(folder))
        wheels = connection.ask(Folder, "make", path=f"{path}/wheels").path
        transfer.push(connection, Path(folder), wheels, on_progress=lambda done, percent: None)
    wanted = Wanted(wheel, request.extras, requirements, has_wheelhouse)
    lines = 0

    def on_line(line: str) -> None:
        nonlocal lines
        lines += 1
        update(f"making the environment: {line.strip()[:60]}")

    update("making the environment")
    python = make_environment(connection, path, request.project, wanted, on_line=on_line)
    say(f"environment {path}/env: " + ("made" if lines else "as it was"))
    return python


def _gitignore_notes() -> Iterator[Finding]:
    """`.gitignore` as rsync reads it knows no exceptions."""
    path = Path(".gitignore")
    if not path.is_file():
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    kept = [line for line in lines if line.startswith("!")]
    if kept:
        yield Finding(
            slug="remote-gitignore",
            what=f"`{kept[0]}` in .gitignore is not heeded: what it keeps is left out of the push",
            why="rsync reads .gitignore and knows no `!`",
            fix=f"--include {kept[0].lstrip('!/')}, if the job needs it",
            severity="note",
        )


def _raise_if_errors(findings: list[Finding], code: ExitCode = ExitCode.USAGE) -> None:
    if errors_of(findings):
        raise UserError(findings, exit_code=code)
