"""Weights & Biases, when the job asks for it: curves, pictures, videos, the job itself.

The key is wandb's own business: it reads WANDB_API_KEY or its own file; nothing here sees it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import MediaWritten
from phalanx.run.events import Event
from phalanx.run.media import find_media
from phalanx.run.reading import read_yaml
from phalanx.run.sinks.curves import scalars


@dataclass(frozen=True)
class WandbSettings:
    """Where curves go in wandb."""

    project: str
    entity: str | None
    """A team; None: the user's own."""
    mode: str
    """online or offline."""


class WandbSink:
    """One run of wandb for one run directory; a run that continues goes on in it."""

    def __init__(self, run: RunDirectory, asked: WandbSettings) -> None:
        import wandb

        self._run = run
        self._wandb: Any = wandb
        settings = wandb.Settings(console="off", disable_git=True, disable_code=True, silent=True)
        self._live: Any = wandb.init(
            project=asked.project,
            entity=asked.entity,
            name=run.name,
            id=_identifier(run),
            resume=None if asked.mode == "offline" else "allow",  # wandb: offline it cannot resume
            mode="offline" if asked.mode == "offline" else "online",
            dir=str(run.path),
            config=read_yaml(run.job_file),
            settings=settings,
        )
        for prefix in ("train", "test", "evaluated", "speed", "system", "media"):
            self._live.define_metric(f"{prefix}/*", step_metric="step")

    def take(self, event: Event) -> None:
        record: dict[str, Any] = {**scalars(event)}
        if isinstance(event.body, MediaWritten):
            record |= self._media(event.body)
        if record:
            # Events of several writers come in any order: wandb's own count would refuse some.
            self._live.log({"step": event.step or 0, **record})

    def _media(self, media: MediaWritten) -> dict[str, Any]:
        path = find_media(self._run, media.file)
        if path is None:
            return {}
        if path.suffix.lower() == ".mp4":
            made = self._wandb.Video(str(path), caption=media.caption, format="mp4")
        else:
            made = self._wandb.Image(str(path), caption=media.caption)
        return {f"media/{media.name}": made}

    def close(self) -> None:
        self._live.finish()


def _identifier(run: RunDirectory) -> str:
    """The same for a run that continues; wandb takes letters, digits, `-` and `_`."""
    kept = "".join(c if c.isalnum() and c.isascii() else "-" for c in run.name)
    return f"{kept[:48]}-{os.stat(run.path).st_ino:x}"  # noqa: PTH116
