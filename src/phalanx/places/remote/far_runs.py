"""The far side's hands: runs are started, listed, told and followed. Sent after `far_side.py`."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from phalanx.places.remote.far_side import read_json, say, there, write_json

_CHUNK = 1 << 20
_LONG = 4 << 20  # of a longer file that is read from its start, old steps are left out
_POLL_S = 0.2
_TAIL_BYTES = 1 << 16
_NEWEST, _LARGEST = 40, 32 << 20  # pictures and films of a run that are sent to whoever watches it
_SHOWN = ("job.yaml", "media/*/*.png", "media/*/*.jpg", "media/*/*.mp4")


def start(
    path: str,
    name: str,
    project: str,
    run: str,
    argv: list[str],
    env: dict[str, str],
    token: str,
    is_resumed: bool,
) -> None:
    """Start a run that goes on when nobody is logged in. Asked twice with one token, it is started
    once: the line may have dropped before the first answer came through."""
    folder = there(path) / "started" / name
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    place = there(path) / project
    record = {"name": name, "token": token, "project": str(place), "run": str(place / run)}
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if read_json(folder / "run.json").get("token") != token:
            if ended(folder) is None:
                say(taken="running")
                return
            if not (place / run / "plan.json").exists() or not is_resumed:
                say(taken="there")
                return
            for old in ("exit", "pids.json"):
                (folder / old).unlink(missing_ok=True)
            write_json(folder / "run.json", {**record, "argv": argv, "time": time.time()})
            _begin(folder, argv, place, env)
    else:
        write_json(folder / "run.json", {**record, "argv": argv, "time": time.time()})
        _begin(folder, argv, place, env)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not (folder / "pids.json").exists():
        time.sleep(0.02)
    say(name=name, run=record["run"], output=str(folder / "output.log"))


def _begin(folder: Path, argv: list[str], cwd: Path, env: dict[str, str]) -> None:
    """Leave a process behind that starts the run, waits for it and writes its exit code down."""
    sys.stdout.flush()
    if os.fork() != 0:
        return
    code = 127
    try:
        os.setsid()  # no terminal and no group of the ssh session: logging out is not heard
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)  # sshd waits for whoever holds its pipes
        os.closerange(3, 256)
        with (folder / "output.log").open("ab") as log:
            log.truncate(0)
            try:
                child = subprocess.Popen(
                    argv,
                    cwd=cwd,
                    env={**os.environ, **env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            except OSError as error:
                log.write(f"{error}\n".encode())
            else:
                pids = {"run": _identity(child.pid), "watcher": _identity(os.getpid())}
                write_json(folder / "pids.json", pids)
                code = child.wait()
    finally:
        write_json(folder / "exit", {"code": code if code >= 0 else 128 - code})
        os._exit(0)


def _identity(pid: int) -> list[str]:
    """A process, told from a later one of the same number by when it began."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = stat.rpartition(")")[2].split()
        return [str(pid), fields[19] if fields[0] != "Z" else ""]
    except OSError:
        pass
    if Path("/proc/self").exists():
        return [str(pid), ""]
    argv = ["ps", "-o", "lstart=", "-p", str(pid)]
    return [str(pid), subprocess.run(argv, capture_output=True, text=True, check=False).stdout]


def _is_alive(identity: list[str]) -> bool:
    return bool(identity[1].strip()) and _identity(int(identity[0])) == identity


def ended(folder: Path) -> int | str | None:
    """The exit code of a run; None while it runs; `gone` when nobody has seen it end."""
    for _ in range(2):  # it may end between the two looks
        if (folder / "exit").exists():
            code: int = read_json(folder / "exit").get("code", 1)
            return code
        pids = read_json(folder / "pids.json")
        if not pids:
            is_new = time.time() - read_json(folder / "run.json").get("time", 0) < 30
            return None if is_new else "gone"
        if any(_is_alive(identity) for identity in pids.values()):
            return None
    return "gone"


def tell(path: str, name: str, number: int) -> None:
    """Send a signal to a run; the process that starts its ranks hears it."""
    folder = there(path) / "started" / name
    identity = read_json(folder / "pids.json").get("run", ["0", ""])
    is_told = ended(folder) is None and _is_alive(identity)
    if is_told:
        os.kill(int(identity[0]), number)
    say(is_told=is_told)


def runs(path: str) -> None:
    """Every run that was started here, the newest last."""
    found = []
    for folder in (there(path) / "started").glob("*"):
        record = read_json(folder / "run.json")
        if record:
            code = ended(folder)
            progress = _progress(Path(record["run"]))
            found.append({**record, "time_s": record["time"], "ended": code, **progress})
    say(runs=sorted(found, key=lambda record: record["time_s"]))


def _progress(run: Path) -> dict[str, Any]:
    """How far a run is, by the ends of its files."""
    step, best = None, run / "checkpoints" / "best"
    for writer in ("rank-0", "supervisor"):
        for line in _tail(run / "events" / f"{writer}.jsonl"):
            try:
                step = json.loads(line).get("step") or step
            except (ValueError, AttributeError):
                continue  # the first may be cut, the last half written
    return {"step": step, "best": os.path.realpath(best) if best.exists() else None}


def _tail(path: Path) -> list[bytes]:
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read().splitlines()


def follow(
    path: str,
    name: str,
    offsets: dict[str, int] | None,
    beat_s: float,
    shown: list[str] | None = None,
) -> None:
    """What a run writes from these offsets on (None: from now on): plans, events, output; its end
    at last. Says so when there is nothing, so that the other side knows that the line holds.
    `shown` are the job file, pictures and films that the other side has; None: it wants none."""
    folder = there(path) / "started" / name
    run = Path(read_json(folder / "run.json")["run"])
    if offsets is None:
        files = [*(run / "events").glob("*.jsonl"), folder / "output.log"]
        offsets = {file.name: file.stat().st_size for file in files if file.is_file()}
        say(offsets=offsets)
    plan_seen, said_at = None, time.monotonic()
    while True:
        end = ended(folder)  # asked first: what was written before it is read after
        count = 0
        plan = run / "plan.json"
        if plan.exists() and plan.stat().st_mtime_ns != plan_seen:
            plan_seen = plan.stat().st_mtime_ns
            say(plan=read_json(plan))
            count += 1
        for file in (*sorted((run / "events").glob("*.jsonl")), folder / "output.log"):
            for text, after in _news(file, offsets.get(file.name, 0)):
                offsets[file.name] = after
                say(file=file.name, text=text, after=after)
                count += 1
        if shown is not None:
            count += _show(run, shown)
        if end is not None and count == 0:
            say(end=end)
            return
        if count or time.monotonic() - said_at > beat_s:
            say(turn=True)  # what came since the last one belongs together
            said_at = time.monotonic()
        time.sleep(_POLL_S if end is None else 0)


def _show(run: Path, shown: list[str]) -> int:
    """Say the files that are new, in parts of base64; of those that are there already the newest
    ones. Each was renamed into its place whole, and is never written to again."""
    found = [file for pattern in _SHOWN for file in run.glob(pattern)]
    new = [file for file in found if str(file.relative_to(run)) not in shown]
    new.sort(key=lambda file: file.stat().st_mtime_ns)
    shown += [str(file.relative_to(run)) for file in new]
    sent = [file for file in new[-_NEWEST:] if file.stat().st_size <= _LARGEST]
    for file in sent:
        size, at = file.stat().st_size, 0
        with file.open("rb") as opened:
            while True:
                part = opened.read(_CHUNK)
                at += len(part)
                is_whole = at >= size or not part
                data = base64.b64encode(part).decode()
                say(shown=str(file.relative_to(run)), data=data, is_whole=is_whole)
                if is_whole:
                    break
    return len(sent)


def _news(path: Path, offset: int) -> Iterator[tuple[str, int]]:
    """(text, offset after it) of the whole lines that a file has got; of a log also half ones."""
    if not path.is_file():
        return
    is_log = path.suffix == ".log"
    size = path.stat().st_size
    if offset > size:
        offset = 0  # begun anew
    is_long = offset == 0 and size > _LONG and not is_log
    with path.open("rb") as file:
        file.seek(offset)
        while chunk := file.read(_CHUNK):
            whole = len(chunk) if is_log else chunk.rfind(b"\n") + 1
            if whole == 0:
                return
            file.seek(offset + whole)
            offset += whole
            chunk = chunk[:whole]
            if is_long and offset < size - _CHUNK:
                lines = chunk.splitlines(keepends=True)
                chunk = b"".join(line for line in lines if b'"kind":"step"' not in line)
            yield chunk.decode(errors="replace"), offset


OPERATIONS: dict[str, Callable[..., None]] = {
    "start": start,
    "tell": tell,
    "runs": runs,
    "follow": follow,
}
