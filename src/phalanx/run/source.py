"""Where a run comes from: command, git commit and diff, versions."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_MAX_DIFF_BYTES = 4 * 2**20  # a larger diff is data, not a change of code


def record_source(command: list[str]) -> dict[str, Any]:
    """What would be needed to run this again: git commit and diff, command, versions."""
    packages = ("phalanx", "torch", "numpy", "safetensors", "pydantic")
    return {
        "schema_version": 1,
        "command": command,
        "python": sys.version.split()[0],
        "versions": {name: package_version(name) for name in packages},
        "git": _git_state(),
    }


def package_version(package: str) -> str | None:
    """Return the version of an installed package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_state() -> dict[str, Any] | None:
    def git(*argv: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *argv],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    diff = git("diff", "HEAD") or ""
    is_cut = len(diff) > _MAX_DIFF_BYTES
    return {
        "commit": commit.strip(),
        "is_dirty": bool((git("status", "--porcelain") or "").strip()),
        "diff": diff[:_MAX_DIFF_BYTES],
        "is_diff_cut": is_cut,
    }
