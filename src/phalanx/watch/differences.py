"""In what the jobs of several runs differ, key by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.run.directory import RunDirectory
from phalanx.run.reading import read_yaml
from phalanx.watch.watched_run import WatchedRun

_FROM_PLAN = (
    "device",
    "ranks",
    "nodes",
    "strategy",
    "precision",
    "global_batch_size",
    "micro_batch_size",
    "accumulation",
    "lr",
    "total_steps",
    "parameters",
    "compile",
    "cuda_graph",
)


def job_differences(runs: Sequence[WatchedRun]) -> list[tuple[str, list[str]]]:
    """(key, its value in each run), of those that are not the same in all."""
    tables = [{**_job(one.run), **_plan(one), **_launched(one)} for one in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    found = []
    for key in keys:
        values = [table.get(key, "") for table in tables]
        if len(set(values)) > 1:
            found.append((key, values))
    return found


def _job(run: RunDirectory) -> dict[str, str]:
    flat: dict[str, str] = {}
    _flatten(read_yaml(run.job_file), "", flat)
    flat.pop("name", None)
    return flat


def _flatten(value: Any, name: str, into: dict[str, str]) -> None:
    if isinstance(value, dict) and value:
        for key, one in value.items():
            _flatten(one, f"{name}.{key}" if name else str(key), into)
    elif name:
        into[name[:200]] = "" if value is None else str(value)[:500]


def _plan(watched: WatchedRun) -> dict[str, str]:
    found = {f"plan: {name}": watched.planned(name) for name in _FROM_PLAN}
    return {name: str(value) for name, value in found.items() if value is not None}


def _launched(watched: WatchedRun) -> dict[str, str]:
    words = watched.launched.get("command")
    return {"command": " ".join(map(str, words))[:500]} if isinstance(words, list) else {}
