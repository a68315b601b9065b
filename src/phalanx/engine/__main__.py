"""The engine's processes: `python -m phalanx.engine RUN_DIR` is a rank,
`python -m phalanx.engine trace REQUEST RESULT` answers what a recipe is."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

from phalanx.run.directory import RunDirectory


def main(argv: list[str]) -> int:
    if argv[0] == "trace":
        from phalanx.engine.trace import run_trace

        run_trace(Path(argv[1]), Path(argv[2]))
        return 0
    run, attempt = Path(argv[0]), int(os.environ.get("PHALANX_ATTEMPT", "0"))
    _write_to_log(run, attempt)
    _end_with_parent()
    from phalanx.engine.worker import run_worker

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


def _end_with_parent() -> None:
    """Ask Linux for SIGTERM when the supervisor dies: no rank outlives it, and it saves first."""
    if sys.platform == "linux":
        parent_death_signal = 1  # PR_SET_PDEATHSIG, prctl(2)
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
