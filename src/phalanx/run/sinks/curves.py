"""Curves, samples and pictures for other tools, fed from the events by a process of their own
(sink_process.py): TensorBoard files and `results.csv`."""

from __future__ import annotations

import csv
import errno
from pathlib import Path
from typing import Any, Protocol

from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import (
    AttemptStarted,
    Evaluate,
    Evaluated,
    MediaWritten,
    RankStarted,
    Samples,
    Step,
    Usage,
)
from phalanx.run.events import Event
from phalanx.run.media import find_media
from phalanx.run.plan_record import read_plan_record
from phalanx.run.sinks.pictures import read_picture


class Sink(Protocol):
    """Something that follows a run's events."""

    def take(self, event: Event) -> None: ...

    def close(self) -> None: ...


def scalars(event: Event) -> dict[str, float]:
    """The figures an event carries, named as curves."""
    match event.body:
        case Step() as step:
            curves = _step(step)
        case Evaluate(metrics=metrics):
            curves = {f"test/{name}": value for name, value in metrics.items()}
        case Evaluated() as found:  # by `phalanx evaluate`: no part of the curves of training
            group = f"evaluated/{found.benchmark}" if found.benchmark else "evaluated"
            curves = {f"{group}/{name}": value for name, value in found.metrics.items()}
        case Usage() as usage:
            curves = _usage(usage)
        case _:
            curves = {}
    return {name: value for name, value in curves.items() if value is not None}


def _step(step: Step) -> dict[str, float | None]:
    terms = step.terms if len(step.terms) > 1 else {}
    return {
        "train/loss": step.loss,
        "train/lr": step.lr,
        **{f"train/{name}": value for name, value in terms.items()},
        "train/grad_norm": step.grad_norm,
        "train/loss_scale": step.loss_scale,
        "speed/samples_per_s": step.samples_per_s,
        "system/memory_gib": (step.memory_bytes or 0) / 2**30 or None,
    }


def _usage(usage: Usage) -> dict[str, float | None]:
    gpu_memory = usage.gpu_memory_bytes
    figures = {
        "cpu_percent": usage.cpu_percent,
        "gpu_percent": usage.gpu_percent,
        "gpu_power_w": usage.gpu_power_w,
        "memory_gib": usage.memory_bytes / 2**30,
        "gpu_memory_gib": gpu_memory / 2**30 if gpu_memory is not None else None,
    }
    return {f"system/rank_{usage.rank}/{name}": value for name, value in figures.items()}


class TensorBoardSink:
    """TensorBoard event files, written with TensorBoard's own writer; the first event that has a
    curve opens them."""

    def __init__(self, folder: Path, run: RunDirectory | None = None) -> None:
        """`run`: whose plan and pictures go there too."""
        self._folder = folder
        self._run = run
        self._writer: Any = None
        self._revision: Any = None

    def open(self) -> None:
        """Import TensorBoard, which takes a second, and begin a file."""
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._record: Any = Record
        self._summary: Any = Summary
        self._tensor: Any = TensorProto
        self._shape: Any = TensorShapeProto
        self._text: Any = create_summary_metadata("", "")
        self._writer = EventFileWriter(str(self._folder), flush_secs=5)

    def take(self, event: Event) -> None:
        curves = scalars(event)
        if self._writer is None:
            if not curves and not isinstance(event.body, Samples | MediaWritten):
                return
            self.open()
        values = [self._summary.Value(tag=t, simple_value=v) for t, v in curves.items()]
        match event.body:
            case Samples(samples=samples):
                rows = [[one.given, one.made, one.wanted] for one in samples]
                values.append(self._table("test/samples", [["given", "made", "wanted"], *rows]))
            case MediaWritten() as media:
                values += self._media(media)
            case AttemptStarted() | RankStarted() | Step():
                values += self._plan()
        if values:
            self._writer.add_event(
                self._record(
                    wall_time=event.time_s,
                    step=event.step or 0,  # a script's output may not say
                    summary=self._summary(value=values),
                )
            )

    def _plan(self) -> list[Any]:
        """The plan as a table of choices and reasons, once for each revision."""
        plan = read_plan_record(self._run) if self._run is not None else {}
        if plan.get("revision") == self._revision:
            return []
        self._revision = plan.get("revision")
        rows = [
            [name, str(choice["value"]), str(choice["reason"])]
            for name, choice in plan.items()
            if isinstance(choice, dict) and {"value", "reason"} <= set(choice)
        ]
        return [self._table("plan", [["", "choice", "because"], *rows])] if rows else []

    def _media(self, media: MediaWritten) -> list[Any]:
        path = find_media(self._run, media.file) if self._run is not None else None
        picture = read_picture(path) if path is not None else None
        if picture is None:
            return []
        image = self._summary.Image(
            height=picture.height, width=picture.width, encoded_image_string=picture.data
        )
        return [self._summary.Value(tag=f"media/{media.name}", image=image)]

    def _table(self, tag: str, rows: list[list[str]]) -> Any:
        """Strings in two dimensions, which the text page shows as a table."""
        size = [self._shape.Dim(size=n) for n in (len(rows), len(rows[0]))]
        tensor = self._tensor(
            dtype="DT_STRING",
            string_val=[cell.encode(errors="replace") for row in rows for cell in row],
            tensor_shape=self._shape(dim=size),
        )
        return self._summary.Value(tag=tag, metadata=self._text, tensor=tensor)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class CsvSink:
    """`results.csv`: one row per evaluation, to follow with `tail -f` or open in a spreadsheet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last_loss: float | None = None

    def take(self, event: Event) -> None:
        if isinstance(event.body, Step):
            self._last_loss = event.body.loss
        if not isinstance(event.body, Evaluate):
            return
        row = {
            "time": round(event.time_s, 3),
            "epoch": event.body.epoch,
            "step": event.body.step,
            "train_loss": self._last_loss,
            **event.body.metrics,
        }
        try:
            self._append(row)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # A full disk costs rows, which the events hold too, and no run.

    def _append(self, row: dict[str, Any]) -> None:
        header = self._header()
        with self._path.open("a", newline="", encoding="utf-8") as file:
            # A run that continues keeps the columns it began with.
            writer = csv.DictWriter(file, header or list(row), restval="", extrasaction="ignore")
            if not header:
                writer.writeheader()
            writer.writerow(row)

    def _header(self) -> list[str]:
        if not self._path.exists():
            return []
        with self._path.open(newline="", encoding="utf-8") as file:
            return next(csv.reader(file), [])

    def close(self) -> None:
        return
