"""The environment a run has over there: this Phalanx as a wheel, in a venv that is made once.

The wheel is written here, file by file, without a build tool: it holds the code that is running,
and its version says so (`0.1.0+1a2b3c4d`).
"""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from phalanx import errors
from phalanx.errors import ExitCode, Finding, UserError
from phalanx.job import LoadedJob
from phalanx.places.remote.places import Place
from phalanx.places.remote.ssh import Connection, LineDroppedError

_TRIES = 3
_SHOWN_LINES = 5


@dataclass(frozen=True)
class Wanted:
    """What the environment must hold."""

    wheel: Path
    extras: tuple[str, ...]
    requirements: str | None
    """A file of the project, relative to it."""
    has_wheelhouse: bool
    """Whether packages come from the wheelhouse that was pushed, and from nowhere else."""


def write_wheel(folder: Path) -> Path:
    """This package as a wheel."""
    package = Path(errors.__file__).parent
    files = {
        f"phalanx/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    metadata, entry_points = _metadata()
    known = re.search(r"^Version: (\S+)$", metadata, re.MULTILINE)
    assert known is not None, "metadata without a version"
    version = f"{known[1].partition('+')[0]}+{digest.hexdigest()[:8]}"
    info = f"phalanx-{version}.dist-info"
    lines = metadata.replace(known[0], f"Version: {version}", 1)
    files |= {
        f"{info}/METADATA": lines.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: phalanx\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
        f"{info}/entry_points.txt": entry_points.encode(),
    }
    record = "".join(
        f"{name},sha256={_base64(content)},{len(content)}\n" for name, content in files.items()
    )
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    path = folder / f"phalanx-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            # The same code gives the same bytes, and rsync sends nothing.
            wheel.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return path


def _metadata() -> tuple[str, str]:
    """The installed package's METADATA and entry points."""
    try:
        found = distribution("phalanx")
    except PackageNotFoundError:
        raise UserError(
            Finding(
                slug="remote-no-metadata",
                what="this Phalanx is not installed: it does not know what it depends on",
                why="it runs from a folder on PYTHONPATH; pip has never seen it",
                fix="pip install -e .; or name an environment there: phalanx remote add --python",
            )
        ) from None
    text = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    return text, found.read_text("entry_points.txt") or ""


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def extras_of(loaded: LoadedJob) -> tuple[str, ...]:
    """The optional packages that a job needs."""
    extras = {loaded.job.recipe} & {"digits", "lora"}
    if loaded.job.strategy == "deepspeed":
        extras.add("deepspeed")
    return tuple(sorted(extras))


def make_environment(
    connection: Connection,
    path: str,
    project: str,
    wanted: Wanted,
    *,
    on_line: Callable[[str], None],
) -> str:
    """Make the environment over there, or find it as it should be: the path of its Python."""
    place, folder = connection.place, f"{path}/env"
    python = f"{folder}/bin/python"
    venv = [connection.find().python or "python3", "-m", "venv"]
    venv += ["--system-site-packages"] if place.site_packages else []
    extras = f"[{','.join(wanted.extras)}]" if wanted.extras else ""
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    if wanted.has_wheelhouse:
        pip += ["--no-index", "--find-links", "wheelhouse"]
    # Names from PATH on, where it runs: to pip a `;` in a path begins a condition.
    pip += [f"./wheels/{wanted.wheel.name}{extras}"]
    pip += ["-r", f"{project}/{wanted.requirements}"] if wanted.requirements else []
    commands = [[*venv, folder], pip]
    stamp = hashlib.sha256(repr((commands, _content(wanted.requirements))).encode()).hexdigest()
    lines: list[str] = []
    for left in reversed(range(_TRIES)):
        try:
            lines.clear()
            for record in connection.stream(
                "install", cwd=path, folder=folder, stamp=stamp, commands=commands
            ):
                if "line" in record:
                    lines.append(record["line"])
                    on_line(record["line"])
                elif record.get("end", 0) != 0:
                    raise UserError(_failed(place, lines, wanted), exit_code=ExitCode.LAUNCH)
            return python
        except LineDroppedError as error:
            if left == 0:
                raise UserError(_dropped(place, str(error)), exit_code=ExitCode.LAUNCH) from error
            connection.hang_up()
    raise AssertionError("not reached")


def _content(path: str | None) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace") if path else ""


def _failed(place: Place, lines: Sequence[str], wanted: Wanted) -> Finding:
    text = "\n".join(lines)
    said = " | ".join(line.strip() for line in lines[-_SHOWN_LINES:] if line.strip())
    if "ensurepip" in text or "No module named venv" in text:
        fix = "apt install python3-venv there; or --python with an environment that you have made"
    elif "No space left" in text:
        fix = "make room there: torch for CUDA takes about 6 GiB; or another folder with --path"
    elif wanted.has_wheelhouse:
        fix = "fetch what is missing here, for the Python and system over there: pip download -d "
        fix += "wheelhouse --only-binary=:all: --python-version 3.12 "
        fix += "--platform manylinux_2_28_x86_64 PACKAGE"
    else:
        fix = "does the server reach the internet? if not: --wheelhouse DIR; or --python with an "
        fix += "environment that is there"
    return Finding(
        slug="remote-environment",
        what=f"the environment on {place.target} could not be made",
        why=said or "nothing was printed",
        fix=fix,
    )


def _dropped(place: Place, why: str) -> Finding:
    return Finding(
        slug="remote-dropped",
        what=f"the connection to {place.target} was lost {_TRIES} times while packages were "
        "installed",
        why=f"ssh says: {why}",
        fix="the same command again; what was fetched is in pip's cache over there",
    )
