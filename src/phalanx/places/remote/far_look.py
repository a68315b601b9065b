"""The far side's eyes: what there is, folders, the environment. Sent after `far_side.py`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from phalanx.places.remote.far_side import say, there

_BEAT_S = 5.0


def look(path: str, python: str | None, paths: list[str], project: str) -> None:
    """What a check wants to know, in one answer."""
    place = there(path)
    near = next(p for p in (place, *place.parents) if os.path.exists(p))  # noqa: PTH110 - no errors
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


def install(cwd: str, folder: str, stamp: str, commands: list[list[str]]) -> None:
    """Make an environment with these commands, unless it was made so before. Each line that they
    print as it comes, then the exit code of the last."""
    kept = Path(folder, ".phalanx-stamp")
    if kept.is_file() and kept.read_text(encoding="utf-8") == stamp:
        say(end=0, is_new=False)
        return
    kept.unlink(missing_ok=True)
    for argv in commands:
        code = _run(argv, cwd)
        if code != 0:
            say(end=code)
            return
    kept.write_text(stamp, encoding="utf-8")
    say(end=0, is_new=True)


def ask(argv: list[str], cwd: str) -> None:
    """What a command prints on stdout, and its exit code."""
    say(end=_run(argv, cwd, stderr=subprocess.DEVNULL))


def _run(argv: list[str], cwd: str, *, stderr: int = subprocess.STDOUT) -> int:
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


OPERATIONS: dict[str, Callable[..., None]] = {
    "look": look,
    "make": make,
    "install": install,
    "ask": ask,
}
