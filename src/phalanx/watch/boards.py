"""TensorBoard on the curves of a run."""

from __future__ import annotations

import subprocess
import sys

from phalanx.errors import Finding, UserError
from phalanx.run.directory import RunDirectory


def start_tensorboard(run: RunDirectory, *, host: str, port: int) -> int:
    """Run TensorBoard until it is interrupted: its exit code."""
    if not any(run.tensorboard.glob("events.out.*")):
        raise UserError(
            Finding(
                slug="no-tensorboard",
                what=f"`{run.path}` has no curves for TensorBoard",
                why=f"no event file in `{run.tensorboard}`: logging.tensorboard is false, or "
                "nothing was logged yet",
                fix=f"phalanx watch {run.path}",
            )
        )
    argv = [sys.executable, "-m", "tensorboard.main", "--logdir", str(run.tensorboard)]
    argv += ["--host", host, *(["--port", str(port)] if port else [])]
    process = subprocess.Popen(argv)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        return 0
