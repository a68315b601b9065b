"""Starts the process that writes curves for other tools, and ends it with the run."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress

from phalanx.codec import to_json
from phalanx.errors import Finding
from phalanx.job.schema import Logging
from phalanx.run.directory import RunDirectory
from phalanx.run.sinks.process import SinkSettings
from phalanx.run.sinks.wandb import WandbSettings

_PATIENCE_S = 60.0  # after the last event: wandb may have much to send


def sinks_of(logging: Logging) -> SinkSettings:
    """What a job asks for."""
    wandb = None
    if logging.wandb:
        wandb = WandbSettings(logging.wandb, logging.wandb_entity, logging.wandb_mode)
    return SinkSettings(tensorboard=logging.tensorboard, is_eager=True, wandb=wandb)


class SinkProcess:
    """Of one run."""

    def __init__(self, run: RunDirectory, settings: SinkSettings) -> None:
        self._run = run
        with (run.logs / "sinks.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "phalanx.run.sinks.process",
                    str(run.path),
                    json.dumps(to_json(settings)),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def close(self) -> list[Finding]:
        """Let it finish: what there is to say of it."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            code = self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return [self._finding(f"it did not end within {_PATIENCE_S:.0f} s of the last event")]
        if code == 0:
            with suppress(OSError):
                if (self._run.logs / "sinks.log").stat().st_size == 0:
                    (self._run.logs / "sinks.log").unlink()
            return []
        return [self._finding(f"its process ended with exit code {code}")]

    def _finding(self, why: str) -> Finding:
        return Finding(
            slug="curves-incomplete",
            what="curves for other tools (results.csv, TensorBoard, wandb) are not complete; "
            "training is not touched by this",
            why=f"{why}; `{self._run.logs / 'sinks.log'}`",
            fix=f"phalanx watch {self._run.path} reads the events, which are complete",
            severity="warning",
        )
