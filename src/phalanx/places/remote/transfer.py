"""Files there and back with rsync, over the shared connection: what is left out, how much there is
to send, progress, and what it means when it fails.

Over there rsync begins inside the folder that is meant (`--rsync-path`), so that its name is quoted
once, by `far_line`, whatever the versions on both sides do about quoting.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from phalanx.errors import ExitCode, Finding, UserError, format_bytes
from phalanx.places.remote.places import Place
from phalanx.places.remote.refusals import AGAIN, refusal
from phalanx.places.remote.ssh import Connection, LineDroppedError, far_line

LEFT_OUT = ("/data/raw/", "/runs/", ".git", ".venv", "__pycache__")
"""What stays here besides what `.gitignore` names."""
_PARTIAL = ".phalanx-partial"  # what is half there keeps no name that anybody would take for whole
_TRIES = 4
_WAIT_S = 2.0
_LOST = (10, 12, 30, 35, 255)  # rsync(1): socket, protocol stream, timeouts; ssh itself
_FULL = ("no space left on device", "disk quota exceeded")

Progress = Callable[[int, int], None]
"""Called with bytes done and percent."""


@dataclass(frozen=True)
class Load:
    """What there is to send."""

    files: int
    num_bytes: int


def filters(
    source: Path, *, include: Sequence[str] = (), leave_out: Sequence[str] = ()
) -> list[str]:
    """rsync's rules for a user's folder; the first that matches counts, so what is asked for wins
    over what stays out."""
    out = [f"--filter=- {pattern}" for pattern in (*LEFT_OUT, *map(_plain, leave_out))]
    usual = [*out, "--filter=:- .gitignore"]
    wanted = [Path(os.path.normpath(path)) for path in include]
    parents = {str(parent) for path in wanted for parent in path.parents if parent != Path()}
    # A folder that stays here is entered for what is wanted in it, and for nothing else.
    entered = sorted(parents - set(would_send(source, usual, sorted(parents))))
    rules = [f"+ /{_plain(path)}/" for path in entered]
    for path in map(_plain, map(str, wanted)):
        rules += [f"+ /{path}", f"+ /{path}/***"]
    rules += [f"- /{_plain(path)}/*" for path in entered]
    return [*(f"--filter={rule}" for rule in rules), *usual]


def _plain(path: str) -> str:
    """A pattern that matches this name only: rsync reads backslashes where it sees a wildcard."""
    if not re.search(r"[*?\[]", path):
        return path
    return re.sub(r"([*?\[\\])", r"\\\1", path)


def measure(connection: Connection | None, source: Path, far: str, rules: Sequence[str]) -> Load:
    """How much a push would send: to an empty folder when there is no connection."""
    argv = ["--dry-run", "--stats", *rules]
    if connection is None:
        with tempfile.TemporaryDirectory(prefix="phalanx-") as empty:
            done = _rsync([*argv, "./", f"{empty}/"], cwd=source)
    else:
        done = _over(connection, argv, "./", _FAR, far, cwd=source)
    return _load(done)


def would_send(source: Path, rules: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Which of these paths below the folder would go along."""
    if not paths:
        return []
    with tempfile.TemporaryDirectory(prefix="phalanx-") as empty:
        argv = ["--dry-run", "--8-bit-output", "--out-format=%n", *rules, "./", f"{empty}/"]
        names = _rsync(argv, cwd=source).splitlines()
    sent = {name.rstrip("/") for name in names}
    return [path for path in paths if os.path.normpath(path) in sent or path in (".", "./")]


def push(
    connection: Connection,
    source: Path,
    far: str,
    *,
    rules: Sequence[str] = (),
    on_progress: Progress,
) -> None:
    """Send what has changed below a folder. It goes on where it was when the line drops."""
    _again_and_again(connection, rules, "./", _FAR, far, source, on_progress)


def pull(
    connection: Connection,
    far: str,
    folder: Path,
    *,
    rules: Sequence[str] = (),
    on_progress: Progress,
) -> None:
    """Bring what has changed of a folder over there. Links that leave it are not followed."""
    folder.mkdir(parents=True, exist_ok=True)
    argv = ["--safe-links", *rules]
    _again_and_again(connection, argv, _FAR, "./", far, folder, on_progress)


def measure_pull(connection: Connection, far: str, folder: Path, rules: Sequence[str]) -> Load:
    """How much a pull would bring."""
    folder.mkdir(parents=True, exist_ok=True)
    argv = ["--dry-run", "--stats", "--safe-links", *rules]
    done = _over(connection, argv, _FAR, "./", far, cwd=folder)
    return _load(done)


_FAR = "\0far"  # stands for HOST:./ among the words of rsync


def _again_and_again(
    connection: Connection,
    rules: Sequence[str],
    source: str,
    target: str,
    far: str,
    cwd: Path,
    on_progress: Progress,
) -> None:
    for left in reversed(range(_TRIES)):
        try:
            argv = [f"--partial-dir={_PARTIAL}", *rules]
            _over(connection, argv, source, target, far, cwd=cwd, on_progress=on_progress)
            return
        except LineDroppedError as error:
            if left == 0:
                raise UserError(
                    Finding(
                        slug="remote-dropped",
                        what=f"the connection to {connection.place.target} was lost {_TRIES} times",
                        why=f"rsync says: {error}",
                        fix="the same command again goes on where this one was",
                    ),
                    exit_code=ExitCode.LAUNCH,
                ) from error
            connection.hang_up()
        except UserError as error:
            if left == 0 or error.findings[0].slug not in AGAIN:
                raise
        time.sleep(_WAIT_S)


def _over(
    connection: Connection,
    argv: Sequence[str],
    source: str,
    target: str,
    far: str,
    *,
    cwd: Path,
    on_progress: Progress | None = None,
) -> str:
    place = connection.place
    host = f"[{place.host}]" if ":" in place.host else place.host
    words = [f"{host}:./" if word == _FAR else word for word in (source, target)]
    there = f"cd {far_line([far])} && exec rsync"
    return _rsync(
        [f"--rsh={' '.join(connection.ssh_words())}", f"--rsync-path={there}", *argv, *words],
        cwd=cwd,
        place=place,
        on_progress=on_progress,
    )


@cache
def _progress_options() -> tuple[str, ...]:
    """Only rsync 3.1 and newer counts all files together; macOS ships an older one."""
    said = subprocess.run(["rsync", "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"version v?(\d+)\.(\d+)", said.stdout)
    is_new = found is not None and (int(found[1]), int(found[2])) >= (3, 1)
    # Without --outbuf it would keep what it says to a pipe until the end.
    return ("--info=progress2", "--no-inc-recursive", "--outbuf=N") if is_new else ()


def _rsync(
    words: Sequence[str],
    *,
    cwd: Path,
    place: Place | None = None,
    on_progress: Progress | None = None,
) -> str:
    """Run rsync and return what it printed; raises what its end means."""
    if shutil.which("rsync") is None:
        raise UserError(no_rsync(None), exit_code=ExitCode.LAUNCH)
    options = _progress_options() if on_progress is not None else ()
    argv = ["rsync", "--recursive", "--links", "--perms", "--times", *options, *words]
    out = ""
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            argv,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,  # Ctrl-C is ours to handle
        ) as child,
    ):
        assert child.stdout is not None
        try:
            while chunk := os.read(child.stdout.fileno(), 1 << 16):
                out += chunk.decode(errors="replace")
                if on_progress is not None:
                    if shown := re.findall(r"([\d.,]+)\s+(\d+)%", out):
                        done, percent = shown[-1]
                        on_progress(int(re.sub(r"\D", "", done)), int(percent))
                    out = out[-200:]
        except BaseException:
            child.terminate()
            raise
        code = child.wait()
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()
    if code != 0:
        _raise_for(code, said, place)
    return out


def _raise_for(code: int, said: str, place: Place | None) -> None:
    where = place.target if place is not None else "this machine"
    lines = said.splitlines()
    if any(words in said.lower() for words in _FULL):
        raise UserError(
            Finding(
                slug="remote-disk",
                what=f"a disk is full: {next(li for li in lines if _is_about_room(li))}",
                why=f"rsync between here and {where} has ended in the middle",
                fix="make room and run the same command again: it goes on where it was",
            ),
            exit_code=ExitCode.MACHINE,
        )
    if "command not found" in said or "rsync: not found" in said or code == 127:
        raise UserError(no_rsync(place), exit_code=ExitCode.MACHINE)
    finding = refusal(place, said) if place is not None and code == 255 else None
    if finding is not None:
        raise UserError(finding, exit_code=ExitCode.LAUNCH)
    if code in _LOST:
        raise LineDroppedError(lines[0] if lines else f"exit code {code}")
    raise UserError(
        Finding(
            slug="remote-transfer",
            what=f"rsync has failed with exit code {code}: {lines[0] if lines else 'no message'}",
            why=f"between here and {where}" + (f"; {lines[-1]}" if len(lines) > 1 else ""),
            fix="mend what it names (a file that cannot be read, a folder that cannot be written) "
            "and run the same command again",
        ),
        exit_code=ExitCode.LAUNCH,
    )


def _is_about_room(line: str) -> bool:
    return any(words in line.lower() for words in _FULL)


def no_rsync(place: Place | None) -> Finding:
    """rsync is missing here, or at a place."""
    return Finding(
        slug="rsync-missing",
        what=f"there is no `rsync` on {place.target if place else 'this machine'}",
        why="code, data and checkpoints travel with rsync, which both sides need",
        fix="apt install rsync (conda install -c conda-forge rsync, where you are not root)",
    )


def no_room(where: str, needs: int, has: int) -> Finding:
    """More is to be sent than there is room for."""
    return Finding(
        slug="remote-disk",
        what=f"{where} has {format_bytes(has)} left, {format_bytes(needs)} are needed",
        why="counted by `rsync --dry-run` here, asked of the file system there",
        fix="make room, name another folder with --path, or leave data out with .gitignore",
    )


def _load(stats: str) -> Load:
    files, num_bytes = (
        int(re.sub(r"\D", "", found[1])) if (found := re.search(pattern, stats)) else 0
        for pattern in (r"files transferred: ([\d.,]+)", r"transferred file size: ([\d.,]+)")
    )
    return Load(files, num_bytes)
