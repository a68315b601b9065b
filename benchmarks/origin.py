"""Where a figure comes from: date, machine, versions, commit and command, which stand beside it."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
CPU_ONLY = "CPU only"


def describe_origin(*packages):
    """What is written into every record of a benchmark; `packages` beside torch are named with
    their versions."""
    import torch

    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "machine": torch.cuda.get_device_name(0) if torch.cuda.is_available() else CPU_ONLY,
        "cores": len(usable_cores()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "versions": versions(*packages),
        "commit": commit_of_tree(),
        "command": command_line(sys.argv),
    }


def usable_cores():
    return sorted(os.sched_getaffinity(0))


def versions(*packages):
    """`python 3.11.7, torch 2.13.0+cpu, ...` of what is installed."""
    found = [f"python {platform.python_version()}"]
    for package in ("torch", *packages):
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            found.append(f"{package} absent")
    return ", ".join(found)


def command_line(argv):
    """As it would be typed in the tree: of a file elsewhere only the name says anything."""
    script = Path(argv[0]).resolve()
    shown = [str(script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name)]
    for before, word in pairwise(argv):
        flag, equals, value = word.rpartition("=")
        is_file = "--out" in (before, flag) or Path(value).is_absolute()
        shown.append(flag + equals + (Path(value).name if is_file else value))
    return "python " + " ".join(shown)


def commit_of_tree(root=ROOT):
    """With `-dirty` where files of the commit differ or are gone. Files that it does not have do
    not count: what is copied to another machine brings scripts and wheels along, in git's index
    too."""
    commit = _git(root, "describe", "--always")
    # A copy may lose the bit that makes a file executable.
    changed = _git(
        root, "-c", "core.fileMode=false", "diff", "--name-only", "--diff-filter=a", "HEAD"
    )
    if commit is None:
        return "an unknown commit"
    return f"{commit}-dirty" if changed else commit


def _git(root, *words):
    try:
        done = subprocess.run(
            ["git", *words], cwd=root, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
