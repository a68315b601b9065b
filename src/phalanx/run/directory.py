"""The run directory: where everything about one run lives, and how files get there whole.

runs/digits-20260131-120000/
  job.yaml machine.json plan.json plan-0.json ...   what was asked, what there was, what is done
  source.json                                       git commit and diff, command, versions
  purpose.json                                      what ranks do, where they do not train
  launch.json                                       instead of job and plan: a launched script's
  attempt.json .lock .locks/                        whom it belongs to, and who holds it
  events/<writer>.jsonl sinks.json                  what happened, and how far sinks have read it
  logs/rank-0.log ... command.log                   what each rank printed, and a detached command
  logs/hang-0.txt ...                               where every rank was when a group hung
  checkpoints/checkpoint-120/ latest best           weights and state
  final_model/                                      what the recipe writes for other tools
  exports/checkpoint-120-FORM/                      what `phalanx export` wrote
  events/evaluate.jsonl                             what `phalanx evaluate` found
  tensorboard/ results.csv wandb/                   curves for other tools
  media/step-120/                                   pictures and videos that the recipe logged
  recordings/rank-0.jsonl ...                       what `verify` compares, and only for it
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.errors import Finding, UserError
from phalanx.run.guards import link_or_copy, rename_new, require_link
from phalanx.run.reading import read_json

LATEST = "latest"
"""Name of the link to the newest run, and of the newest checkpoint's."""


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run; nothing is read or written until asked."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def job_file(self) -> Path:
        return self.path / "job.yaml"

    @property
    def machine_file(self) -> Path:
        return self.path / "machine.json"

    @property
    def plan_file(self) -> Path:
        return self.path / "plan.json"

    @property
    def purpose_file(self) -> Path:
        return self.path / "purpose.json"

    @property
    def source_file(self) -> Path:
        return self.path / "source.json"

    @property
    def launch_file(self) -> Path:
        return self.path / "launch.json"

    @property
    def events(self) -> Path:
        return self.path / "events"

    @property
    def recordings(self) -> Path:
        return self.path / "recordings"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def final_model(self) -> Path:
        return self.path / "final_model"

    @property
    def exports(self) -> Path:
        return self.path / "exports"

    @property
    def media(self) -> Path:
        return self.path / "media"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def results_file(self) -> Path:
        return self.path / "results.csv"

    def log_file(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.log"

    def nccl_log(self, rank: int) -> Path:
        """What NCCL says of itself with NCCL_DEBUG."""
        return self.logs / f"nccl-rank-{rank}.log"

    def collectives_file(self, rank: int) -> Path:
        """The last collectives of a rank that was asked because the group hung."""
        return self.logs / f"collectives-rank-{rank}.json"

    def hang_file(self, attempt: int) -> Path:
        """Where every rank was when the group of this attempt hung."""
        return self.logs / f"hang-{attempt}.txt"

    @property
    def command_log(self) -> Path:
        """What the command prints once it is detached from its terminal."""
        return self.logs / "command.log"

    def write_plan(self, plan: dict[str, Any]) -> None:
        """Write a plan revision; every revision stays, `plan.json` is the newest."""
        text = json.dumps(plan, indent=2)
        write_atomic(self.path / f"plan-{plan['revision']}.json", text)
        write_atomic(self.plan_file, text)


def create_run_directory(output: Path, name: str | None, recipe: str) -> RunDirectory:
    """Make a new run directory; an existing name is refused, never reused."""
    base = (
        name or f"{Path(recipe.rpartition(':')[0] or recipe).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    if base in (LATEST, ".", "..") or set(base) & set("/\\\0"):
        why = (
            f"`{output / LATEST}` is the link to the newest run"
            if base == LATEST
            else f"a run is a folder in `{output}`, and this is the name of none"
        )
        raise UserError(
            Finding(
                slug="run-name",
                what=f"a run cannot be called `{base}`",
                why=f"name = {name}; {why}",
                fix="--name another_name",
            )
        )
    require_link(output / LATEST)
    output.mkdir(parents=True, exist_ok=True)
    path = output / base
    try:
        path.mkdir()
    except FileExistsError:
        if name is not None:
            raise UserError(
                Finding(
                    slug="run-exists",
                    what=f"the run `{path}` already exists",
                    why=f"name = {name}, output = {output}",
                    fix=f"choose another name, or continue it: `--resume {path}`",
                )
            ) from None
        # Two runs started within the same second.
        path = output / f"{base}-{secrets.token_hex(2)}"
        path.mkdir()
    run = RunDirectory(path.resolve())
    for folder in (run.events, run.logs, run.checkpoints):
        folder.mkdir()
    swap_link(output / LATEST, path.name)
    return run


def find_run(
    reference: str | None, output: Path, *, command: str = "--resume", with_scripts: bool = False
) -> RunDirectory:
    """The run meant by a path, a name under `output`, or nothing (the newest). Runs of launched
    scripts have no plan: they are passed over, unless they are wanted too."""
    if reference is None:
        candidates = [output / LATEST, *_newest_first(output)]
    else:
        candidates = [Path(reference), output / reference]
    names = ("plan.json", "launch.json") if with_scripts else ("plan.json",)
    for path in candidates:
        if any((path / name).is_file() for name in names):
            return RunDirectory(path.resolve())
    launched = next((path for path in candidates if (path / "launch.json").is_file()), None)
    if launched is not None:
        raise UserError(_is_a_script(launched))
    there = sorted(p.parent.name for p in output.glob("*/plan.json") if not p.parent.is_symlink())
    raise UserError(
        Finding(
            slug="no-run",
            what=f"no run at `{candidates[0]}`",
            why=f"a run directory holds {' or '.join(names)}; runs in `{output}`: "
            f"{', '.join(there[-5:]) or 'none'}",
            fix=f"{command} {output / there[-1]}" if there else "start one: `phalanx train digits`",
        )
    )


def _newest_first(output: Path) -> list[Path]:
    """Runs of jobs, the one whose plan is newest first: behind the link when it is to a script."""
    plans = [p for p in output.glob("*/plan.json") if not p.parent.is_symlink()]
    return [p.parent for p in sorted(plans, key=lambda p: p.stat().st_mtime, reverse=True)]


def _is_a_script(path: Path) -> Finding:
    try:
        words = read_json(path / "launch.json")["command"][2:]
        again = shlex.join(["phalanx", "launch", *map(str, words)])
    except (KeyError, TypeError):
        again = "phalanx launch SCRIPT.py"
    return Finding(
        slug="run-of-a-script",
        what=f"`{path}` is the run of a launched script, which has no plan and no checkpoint of "
        "ours",
        why="it holds launch.json and no plan.json; the script saves and resumes in its own way",
        fix=f"{again}, with the script's own way to resume",
    )


def write_atomic(path: Path, content: str | bytes, *, is_new: bool = False) -> None:
    """Write a whole file or nothing: temporary file, fsync, rename, fsync of the folder. With
    `is_new`, raise FileExistsError instead of replacing a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(3)}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            link_or_copy(temporary, path)
        else:
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


@contextmanager
def new_folder(final: Path, *, is_new: bool = False) -> Iterator[Path]:
    """A temporary folder to write into; once all of it is on disk it becomes `final` in one rename,
    in place of what was there. With `is_new`, raise UserError instead of replacing files."""
    temporary = final.with_name(f".{final.name}.{os.getpid()}.{secrets.token_hex(3)}.tmp")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        _sync_tree(temporary)
        if is_new:
            rename_new(temporary, final)
        elif final.exists():
            # Moving the old aside first keeps the rename atomic on every file system.
            aside = final.with_name(f".{final.name}.{secrets.token_hex(3)}.old")
            final.rename(aside)
            try:
                temporary.rename(final)
            except OSError:
                aside.rename(final)
                raise
            shutil.rmtree(aside, ignore_errors=True)
        else:
            temporary.rename(final)
        sync_folder(final.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sync_tree(folder: Path) -> None:
    # safetensors writes files only their owner can read; the umask is the user's own choice.
    mode = stat.S_IMODE(folder.stat().st_mode) & 0o666
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
            continue
        about = path.lstat()
        if stat.S_ISREG(about.st_mode) and about.st_nlink == 1:  # no file of anybody else's
            path.chmod(mode)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)


def sync_folder(path: Path) -> None:
    """Make renames and new names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def swap_link(link: Path, target: str) -> None:
    """Point a symbolic link at another name without a moment in which it is missing."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}.{secrets.token_hex(3)}.tmp")
    temporary.symlink_to(target)
    try:
        temporary.replace(link)
    finally:
        temporary.unlink(missing_ok=True)
