"""A process that is a rank: where its output goes, whom it ends with, what its exit code is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from phalanx.engine.process.stacks import answer_when_asked
from phalanx.run.attempt import RunTakenError
from phalanx.run.directory import RunDirectory
from phalanx.run.lock import hold_rank
from phalanx.run.parent_death import end_with_parent


def run_rank(run: Path, attempt: int) -> int:
    """Be the rank that the environment names; returns the exit code."""
    try:
        hold_rank(RunDirectory(run), attempt=attempt, rank=int(os.environ.get("RANK", "0")))
    except RunTakenError:
        return 1
    _write_to_log(run, attempt)
    if "NCCL_DEBUG" in os.environ:  # a file of its own: it says much
        rank = int(os.environ.get("RANK", "0"))
        os.environ.setdefault("NCCL_DEBUG_FILE", str(RunDirectory(run).nccl_log(rank)))
    end_with_parent()
    answer_when_asked()
    from phalanx.engine.rank.worker import run_worker

    if run_worker(run, attempt=attempt):
        return 0
    # Without leaving in order: peers may wait inside a reduction that this rank never joins, and
    # see at once that it is gone. What it had to say is written.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _write_to_log(run: Path, attempt: int) -> None:
    """Send all output of this process, native code's too, to the rank's log."""
    log = RunDirectory(run).log_file(int(os.environ.get("RANK", "0")))
    log.parent.mkdir(exist_ok=True)
    with log.open("ab", buffering=0) as file:
        file.write(f"--- attempt {attempt}, pid {os.getpid()}\n".encode())
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
