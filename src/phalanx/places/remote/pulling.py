"""A run brought back: its files into the local runs, its paths made those of this machine."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from phalanx.errors import ExitCode, Finding, UserError, format_bytes
from phalanx.places.remote import transfer
from phalanx.places.remote.answers import RemoteRun
from phalanx.places.remote.request import project_of
from phalanx.places.remote.ssh import Connection
from phalanx.run.directory import LATEST, RunDirectory, swap_link, write_atomic
from phalanx.run.guards import require_link


def pull_run(
    connection: Connection,
    run: RemoteRun,
    output: Path,
    *,
    best_only: bool,
    update: Callable[[str], None],
) -> tuple[RunDirectory, str]:
    """Bring a run into `output`; what has come before is not sent again. In words: how much."""
    folder = output / run.name
    require_link(output / LATEST)
    _refuse_another(connection, run, folder)
    rules = [
        "--exclude=.*.tmp",
        "--exclude=/.lock",
        "--exclude=/.locks",
    ]  # what is half written, and who holds it there
    if best_only and run.best is not None:
        rules += [f"--include=/checkpoints/{Path(run.best).name}"]
        rules += ["--exclude=/checkpoints/checkpoint-*", "--exclude=/checkpoints/latest"]
    load = transfer.measure_pull(connection, run.run, folder, rules)
    free = shutil.disk_usage(folder).free
    if load.num_bytes > free:
        finding = transfer.no_room(f"`{folder}` on this machine", load.num_bytes, free)
        raise UserError(finding, exit_code=ExitCode.MACHINE)
    what = f"{load.files} files, {format_bytes(load.num_bytes)}"

    def on_progress(done: int, percent: int) -> None:
        update(f"bringing {what}: {percent}%")

    transfer.pull(connection, run.run, folder, rules=rules, on_progress=on_progress)
    pulled = RunDirectory(folder.resolve())
    marker = {"remote": connection.place.name, "run": run.run, "project": run.project}
    write_atomic(folder / "remote.json", json.dumps(marker, indent=2))
    _make_local(pulled, run)
    swap_link(output / LATEST, run.name)
    return pulled, what


def _refuse_another(connection: Connection, run: RemoteRun, folder: Path) -> None:
    """A run of this name that is not this one, or that went on here, must not be mixed with it."""
    marker = folder / "remote.json"
    known = json.loads(marker.read_text(encoding="utf-8")) if marker.is_file() else None
    is_same = known is not None and known.get("run") == run.run
    is_ours = (folder / ".lock").exists()  # is not brought: whoever trains here makes it
    if folder.exists() and any(folder.iterdir()) and (is_ours or not is_same):
        raise UserError(
            Finding(
                slug="run-exists",
                what=f"the run `{folder}` already exists",
                why=f"it was trained further on this machine since it was brought from "
                f"{connection.place.target}"
                if is_same
                else f"it is not the run {run.name!r} of {connection.place.target}",
                fix="bring it elsewhere: --output pulled",
            )
        )


def _make_local(pulled: RunDirectory, run: RemoteRun) -> None:
    """A recipe that was pushed from this folder is named by its path here again, so that export and
    resume find it. Its source is the same; other paths stay as they were."""
    if Path(run.project).name != project_of(Path.cwd()) or not pulled.job_file.is_file():
        return
    before = f"{run.project.rstrip('/')}/"
    here = f"{Path.cwd()}/"

    def change(value: Any) -> Any:
        if isinstance(value, str) and value.startswith(before):
            return here + value[len(before) :]
        if isinstance(value, dict):
            return {key: change(item) for key, item in value.items()}
        return [change(item) for item in value] if isinstance(value, list) else value

    job = yaml.safe_load(pulled.job_file.read_text(encoding="utf-8"))
    write_atomic(pulled.job_file, yaml.safe_dump(change(job), sort_keys=False))
    for path in pulled.path.glob("plan*.json"):
        if re.fullmatch(r"plan(-\d+)?\.json", path.name):
            plan = json.loads(path.read_text(encoding="utf-8"))
            write_atomic(path, json.dumps(change(plan), indent=2))
