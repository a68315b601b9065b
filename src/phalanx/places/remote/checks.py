"""What stands in the way of training over there: everything that can be asked, at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.codec import from_json
from phalanx.errors import Finding, UserError, format_bytes
from phalanx.machine import Machine
from phalanx.places.remote.answers import Look
from phalanx.places.remote.first_look import no_python
from phalanx.places.remote.places import Place
from phalanx.places.remote.ssh import Connection, LineDroppedError
from phalanx.places.remote.transfer import no_room, no_rsync
from phalanx.run.source import package_version

_GIB = 1 << 30


@dataclass
class Examination:
    """What was found over there."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    machine: Machine | None = None
    """As its own `phalanx check` sees it; None when there is no Phalanx yet."""
    missing: list[str] = field(default_factory=list)
    """Of the files that were asked for, those that are not there."""
    path: str = ""


def examine(
    connection: Connection,
    *,
    project: str,
    files: Sequence[str] = (),
    needs_bytes: int = 0,
    is_whole: bool = True,
) -> Examination:
    """Look at a machine; `is_whole` also runs its `phalanx check`, which takes an import of torch.
    A machine that cannot be reached raises."""
    place = connection.place
    found = connection.find()
    seen = Examination()
    seen.rows.append(("ssh", f"{place.target} answers"))
    if found.rsync is None:
        seen.findings.append(no_rsync(place))
    if found.python is None:
        seen.findings.append(no_python(place, found))
        return seen
    facts = look_at(connection, project, files)
    seen.missing, seen.path = facts.missing, facts.path
    seen.rows += _rows(place, found.python, facts)
    seen.findings += _judge(place, facts, needs_bytes)
    if is_whole and "phalanx" in facts.packages:
        python = (place.python and found.python) or f"{facts.path}/env/bin/python"
        seen.machine, problems = _ask_check(connection, python, facts.nearest)
        seen.findings += problems
    if seen.machine is None:
        seen.rows += _gpu_rows(facts)
    return seen


def look_at(connection: Connection, project: str, files: Sequence[str]) -> Look:
    """What there is, and which of these files of a project are missing."""
    place, paths = connection.place, list(files)
    return connection.ask(
        Look, "look", path=place.path, python=place.python, paths=paths, project=project
    )


def _rows(place: Place, python: str, facts: Look) -> Iterator[tuple[str, str]]:
    packages = facts.packages
    yield "system", f"{facts.host}: {facts.system}, {facts.cores} cores"
    yield "python", f"{facts.python} ({python})"
    if place.python:
        yield "environment", f"{place.python}, used as it is"
    else:
        made = f"{facts.path}/env"
        own = ", on top of the machine's own packages" if place.site_packages else ""
        yield "environment", made + (own if packages else f": made by `remote train`{own}")
    listed = ", ".join(f"{name} {number}" for name, number in packages.items())
    yield "packages", listed or "none of ours"
    if facts.memory_bytes is not None:
        yield "free memory", format_bytes(facts.memory_bytes)
    access = "writable" if facts.is_writable else "not writable"
    yield "path", f"{facts.path}: {format_bytes(facts.free_bytes)} free, {access}"


def _gpu_rows(facts: Look) -> Iterator[tuple[str, str]]:
    """GPUs by nvidia-smi, before there is a Phalanx to ask."""
    driver = facts.driver[0][0] if facts.driver else None
    yield "driver", f"NVIDIA {driver}" if driver else "no NVIDIA driver answers"
    for index, name, total, free, capability in (r for r in facts.gpus if len(r) == 5):
        is_known = capability[:1].isdecimal()
        precisions = "precisions unknown"
        if is_known:
            precisions = "bf16, fp16" if float(capability) >= 8.0 else "fp16, no bf16"
        sizes = f"{_gib(free)} of {_gib(total)} GiB free"
        yield f"GPU {index}", f"{name}: {sizes}, compute {capability}, {precisions}"


def _gib(mib: str) -> str:
    return f"{int(mib) * 2**20 / _GIB:.1f}" if mib.isdecimal() else "?"


def _judge(place: Place, facts: Look, needs_bytes: int) -> Iterator[Finding]:
    packages = facts.packages
    if not facts.is_writable:
        yield Finding(
            slug="remote-unwritable",
            what=f"`{facts.path}` on {place.target} cannot be written",
            why=f"no permission in `{facts.nearest}`, or it is no folder",
            fix=f"phalanx remote add {place.name} {place.target} --path A_FOLDER_OF_YOURS",
        )
    elif needs_bytes > facts.free_bytes:
        where = f"`{facts.path}` on {place.target}"
        yield no_room(where, needs_bytes, facts.free_bytes)
    if place.python and "phalanx" not in packages:
        yield Finding(
            slug="remote-phalanx",
            what=f"`{place.python}` on {place.target} has no Phalanx",
            why="--python names an environment that is used as it is: nothing is installed",
            fix="pip install phalanx into it; or leave --python out, and one is made: phalanx "
            f"remote add {place.name} {place.target}",
        )
    if not place.python and not facts.has_venv and not packages:
        yield Finding(
            slug="remote-venv",
            what=f"Python {facts.python} on {place.target} has no venv or no ensurepip",
            why="the environment is made with them",
            fix="apt install python3-venv there, or name an environment with --python",
        )
    yield from _versions(place, packages)


def _versions(place: Place, packages: dict[str, str]) -> Iterator[Finding]:
    """Where the environment there is another than here: guide G3's `same environment?`"""
    for name in ("phalanx", "torch"):
        here, there = package_version(name), packages.get(name)
        if here is None or there is None or _plain(here) == _plain(there):
            continue
        yield Finding(
            slug="remote-version",
            what=f"{name} is {there} on {place.target} and {here} here",
            why=f"asked of {place.python or 'the environment there'} and of this Python",
            fix="nothing to do if you mean it; else install the same there"
            if name == "torch" or place.python
            else "nothing to do: `remote train` brings this one",
            severity="warning" if name == "phalanx" and place.python else "note",
        )


def _plain(number: str) -> str:
    return number.partition("+")[0]  # 2.13.0+cpu and 2.13.0+cu130 are one version


def _ask_check(
    connection: Connection, python: str, output: str
) -> tuple[Machine | None, list[Finding]]:
    """The machine as its own `phalanx check` sees it."""
    argv = [python, "-m", "phalanx", "check", "--json", "--output", output]
    lines: list[str] = []
    try:
        for record in connection.stream("ask", argv=argv, cwd=str(Path("/"))):
            lines += [record["line"]] if "line" in record else []
        told = json.loads("\n".join(lines))
        machine = Machine.from_json(told["machine"])
        return machine, from_json(list[Finding], told["findings"])
    except (LineDroppedError, UserError, ValueError, KeyError, TypeError) as error:
        last = next((line.strip() for line in reversed(lines) if line.strip()), str(error))
        return None, [
            Finding(
                slug="remote-check",
                what=f"`phalanx check` on {connection.place.target} gave no answer",
                why=last,
                fix=f"{connection.place.by_hand}, then: {python} -m phalanx check",
                severity="warning",
            )
        ]
