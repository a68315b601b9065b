"""What runs on the other machine: sent on stdin to its Python, never installed there.

Only Python's own library, 3.11 or newer. Each answer is a line of JSON behind a mark, because a
login shell may print what it likes. What must stay secret comes in with the request, on stdin, and
goes into the environment of the run: into no file, log or command line.

PATH/                             everything of ours
  PROJECT/                        a folder that was pushed; runs/ below it
  started/RUN/                    run.json pids.json exit output.log
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MARK = "phalanx-answer:"
_CHUNK = 1 << 20
_LONG = 4 << 20  # of a longer file that is read from its start, old steps are left out
_POLL_S = 0.2
_BEAT_S = 5.0
_TAIL_BYTES = 1 << 16


def say(**record: Any) -> None:
    """One line of the answer."""
    sys.stdout.buffer.write(f"{MARK}{json.dumps(record)}\n".encode())
    sys.stdout.buffer.flush()


def answer(text: str) -> None:
    """Do what a request asks."""
    request = json.loads(text)
    operation = OPERATIONS[request.pop("operation")]
    try:
        operation(**request)
    except BrokenPipeError:
        os._exit(1)  # nobody listens any more
    except OSError as error:
        say(error=f"{error.strerror}: {error.filename}" if error.filename else str(error))
    except RuntimeError as error:  # `~nobody`
        say(error=str(error))


def there(path: str) -> Path:
    """A path of this machine: relative ones are below the home folder."""
    return Path.home() / Path(path).expanduser() if path.startswith("~") else Path.home() / path


# What there is


def look(path: str, python: str | None, paths: list[str], project: str) -> None:
    """What a check wants to know, in one answer."""
    place = there(path)
    near = next(p for p in (place, *place.parents) if p.exists())
    disk = os.statvfs(near)
    say(
        path=str(place),
        is_writable=near.is_dir() and os.access(near, os.W_OK | os.X_OK),
        nearest=str(near),
        free_bytes=disk.f_bavail * disk.f_frsize,
        memory_bytes=_available_memory(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        system=" ".join(os.uname()[i] for i in (0, 2, 4)),
        host=os.uname()[1],
        python=sys.version.split()[0],
        has_venv=_runs([sys.executable, "-c", "import venv, ensurepip"]),
        driver=_nvidia("driver_version"),
        gpus=_nvidia("index,name,memory.total,memory.free,compute_cap"),
        packages=_packages(python or str(place / "env" / "bin" / "python")),
        missing=[p for p in paths if not (place / project / p).exists()],
    )


def _available_memory() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _nvidia(fields: str) -> list[list[str]]:
    if shutil.which("nvidia-smi") is None:
        return []
    argv = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return []
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return [[cell.strip() for cell in line.split(",")] for line in lines]


def _packages(python: str) -> dict[str, str]:
    """What an environment has; nothing when there is no such environment."""
    code = (
        "import importlib.metadata as m, json\n"
        "names = ('phalanx', 'torch', 'numpy', 'transformers', 'peft', 'deepspeed')\n"
        "found = {d.metadata['Name'].lower(): d.version for d in m.distributions()\n"
        "         if d.metadata['Name']}\n"
        "print(json.dumps({n: found[n] for n in names if n in found}))"
    )
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
        found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
        return found
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return {}


def _runs(argv: list[str]) -> bool:
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def make(path: str) -> None:
    """Make a folder of ours: only its owner looks into it. Says how much room it has."""
    folder = there(path)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryFile(dir=folder):
        disk = os.statvfs(folder)
    say(path=str(folder), free_bytes=disk.f_bavail * disk.f_frsize)


def install(folder: str, stamp: str, commands: list[list[str]]) -> None:
    """Make an environment with these commands, unless it was made so before. Each line that they
    print as it comes, then the exit code of the last."""
    kept = Path(folder, ".phalanx-stamp")
    if kept.is_file() and kept.read_text(encoding="utf-8") == stamp:
        say(end=0, is_new=False)
        return
    kept.unlink(missing_ok=True)
    for argv in commands:
        code = _run(argv)
        if code != 0:
            say(end=code)
            return
    kept.write_text(stamp, encoding="utf-8")
    say(end=0, is_new=True)


def ask(argv: list[str], cwd: str) -> None:
    """What a command prints on stdout, and its exit code."""
    say(end=_run(argv, cwd, stderr=subprocess.DEVNULL))


def _run(argv: list[str], cwd: str | None = None, *, stderr: int = subprocess.STDOUT) -> int:
    try:
        child = subprocess.Popen(
            argv,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            errors="replace",
        )
    except OSError as error:
        say(line=str(error))
        return 127
    assert child.stdout is not None

    def beat() -> None:
        while True:
            time.sleep(_BEAT_S)  # pip is silent for as long as it fetches a large file
            try:
                say(beat=True)
            except OSError:
                child.terminate()
                os._exit(1)

    threading.Thread(target=beat, daemon=True).start()
    try:
        for line in child.stdout:
            say(line=line.rstrip("\n"))
    except BrokenPipeError:
        child.terminate()
        raise
    return child.wait()


# Runs


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
        if _read_json(folder / "run.json").get("token") != token:
            if ended(folder) is None:
                say(taken="running")
                return
            if not (place / run / "plan.json").exists() or not is_resumed:
                say(taken="there")
                return
            for old in ("exit", "pids.json"):
                (folder / old).unlink(missing_ok=True)
            _write_json(folder / "run.json", {**record, "argv": argv, "time": time.time()})
            _begin(folder, argv, place, env)
    else:
        _write_json(folder / "run.json", {**record, "argv": argv, "time": time.time()})
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
                _write_json(folder / "pids.json", pids)
                code = child.wait()
    finally:
        _write_json(folder / "exit", {"code": code if code >= 0 else 128 - code})
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
            code: int = _read_json(folder / "exit").get("code", 1)
            return code
        pids = _read_json(folder / "pids.json")
        if not pids:
            is_new = time.time() - _read_json(folder / "run.json").get("time", 0) < 30
            return None if is_new else "gone"
        if any(_is_alive(identity) for identity in pids.values()):
            return None
    return "gone"


def tell(path: str, name: str, number: int) -> None:
    """Send a signal to a run; the process that starts its ranks hears it."""
    folder = there(path) / "started" / name
    identity = _read_json(folder / "pids.json").get("run", ["0", ""])
    is_told = ended(folder) is None and _is_alive(identity)
    if is_told:
        os.kill(int(identity[0]), number)
    say(is_told=is_told)


def runs(path: str) -> None:
    """Every run that was started here, the newest last."""
    found = []
    for folder in (there(path) / "started").glob("*"):
        record = _read_json(folder / "run.json")
        if record:
            code = ended(folder)
            progress = _progress(Path(record["run"]))
            found.append({**record, "ended": code, **progress})
    say(runs=sorted(found, key=lambda record: record["time"]))


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


def follow(path: str, name: str, offsets: dict[str, int], beat_s: float) -> None:
    """What a run writes from these offsets on: plans, events, output; its end at last. Says so when
    there is nothing, so that the other side knows that the line holds."""
    folder = there(path) / "started" / name
    run = Path(_read_json(folder / "run.json")["run"])
    plan_seen, said_at = None, time.monotonic()
    while True:
        end = ended(folder)  # asked first: what was written before it is read after
        count = 0
        plan = run / "plan.json"
        if plan.exists() and plan.stat().st_mtime_ns != plan_seen:
            plan_seen = plan.stat().st_mtime_ns
            say(plan=_read_json(plan))
            count += 1
        for file in (*sorted((run / "events").glob("*.jsonl")), folder / "output.log"):
            for text, after in _news(file, offsets.get(file.name, 0)):
                offsets[file.name] = after
                say(file=file.name, text=text, after=after)
                count += 1
        if end is not None and count == 0:
            say(end=end)
            return
        if count or time.monotonic() - said_at > beat_s:
            say(turn=True)  # what came since the last one belongs together
            said_at = time.monotonic()
        time.sleep(_POLL_S if end is None else 0)


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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _write_json(path: Path, record: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(record), encoding="utf-8")
    temporary.replace(path)


OPERATIONS: dict[str, Callable[..., None]] = {
    "look": look,
    "make": make,
    "install": install,
    "ask": ask,
    "start": start,
    "tell": tell,
    "runs": runs,
    "follow": follow,
}
