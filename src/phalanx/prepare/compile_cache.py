"""Where ranks keep the code that torch.compile made: per user, torch and GPU, so that the second
start of a job is quick.

Code that is found there is run, so nobody else may write to it: the folder is the user's own, and
where that cannot be had the run keeps its own. torch's default is in the folder for temporary
files, which others may write to and which is gone after a restart of the machine.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from phalanx.machine import Machine
from phalanx.run.cache import cache_folder
from phalanx.run.directory import RunDirectory

# On by default since torch 2.6; a user's own setting wins, as everywhere.
_ALWAYS = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1"}


def compile_cache_variables(run: RunDirectory) -> dict[str, str]:
    """Environment variables for the ranks of a run."""
    folder = cache_folder("compiled") / _machine_key(run)
    if not _make_private(folder):
        folder = run.path / "compiled"
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        **_ALWAYS,
    }


def early_variables() -> dict[str, str]:
    """What the launcher gets before the machine is known: it imports what reads them. The folder is
    made by that import and not used: ranks are told theirs."""
    folder = cache_folder("compiled") / "early"
    named = {"TORCHINDUCTOR_CACHE_DIR": str(folder)} if _make_private(folder) else {}
    return {**named, **_ALWAYS}


def _machine_key(run: RunDirectory) -> str:
    """torch's own keys know these too; apart, each can be thrown away alone."""
    machine = Machine.read(run.machine_file)
    if machine is None:
        return "unknown"
    version = machine.torch.version if machine.torch is not None else "unknown"
    names = sorted({gpu.name for gpu in machine.visible_gpus}) or ["cpu"]
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"torch {version} {' '.join(names)}")[:120]


def _make_private(folder: Path) -> bool:
    """Whether the folder is there, the user's own, and nobody else's to write to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
    except OSError:
        return False
    is_mine = not hasattr(os, "getuid") or about.st_uid == os.getuid()
    return is_mine and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
