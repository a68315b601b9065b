"""The process that feeds sinks from the event files: `python -m phalanx.run.sinks.process RUN`.

Beside the supervisor, so that a disk, a network or a library that stalls stalls neither a step nor
the watch over the ranks. It ends when its standard input does, after the last event.
"""

from __future__ import annotations

import json
import select
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.codec import from_json
from phalanx.run.directory import RunDirectory, write_atomic
from phalanx.run.events import EventReader
from phalanx.run.sinks.curves import CsvSink, Sink, TensorBoardSink
from phalanx.run.sinks.wandb import WandbSettings, WandbSink

_POLL_S = 0.5
_KEEP_EVERY = 20  # turns


@dataclass(frozen=True)
class SinkSettings:
    """What is to be fed."""

    tensorboard: bool = True
    is_eager: bool = False
    """Whether curves are sure to come: TensorBoard takes a second to import."""
    wandb: WandbSettings | None = None


class Sinks:
    """All sinks of a run; one that fails is left out, the others go on."""

    def __init__(self, run: RunDirectory, settings: SinkSettings) -> None:
        self._run = run
        self._reader = EventReader(run.events, _kept(run))
        self._sinks: list[Sink] = [CsvSink(run.results_file)]
        self.failures: list[str] = []
        if settings.tensorboard:
            board = TensorBoardSink(run.tensorboard, run)
            self._sinks.append(board)
            if settings.is_eager:
                self._try(board, "open")
        if settings.wandb is not None:
            try:
                self._sinks.append(WandbSink(run, settings.wandb))
            except Exception as error:
                self._say("wandb", error)

    def turn(self) -> int:
        """Feed what is new: how many events."""
        events = self._reader.read()
        for event in events:
            for sink in list(self._sinks):
                self._try(sink, "take", event)
        return len(events)

    def _try(self, sink: Sink, what: str, *given: Any) -> None:
        try:
            getattr(sink, what)(*given)
        except Exception as error:
            self._sinks = [one for one in self._sinks if one is not sink]
            self._say(type(sink).__name__, error)

    def _say(self, name: str, error: Exception) -> None:
        self.failures.append(name)
        traceback.print_exception(error)  # to logs/sinks.log

    def keep_place(self) -> None:
        """Remember what was fed: a run that continues goes on from there."""
        offsets = {path.name: offset for path, offset in self._reader.offsets.items()}
        with suppress(OSError):
            write_atomic(_place_file(self._run), json.dumps({"offsets": offsets}))

    def close(self) -> None:
        for sink in list(self._sinks):
            self._try(sink, "close")
        self.keep_place()


def _place_file(run: RunDirectory) -> Path:
    return run.events / "sinks.json"


def _kept(run: RunDirectory) -> dict[Path, int]:
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads(_place_file(run).read_text(encoding="utf-8"))
        return {run.events / str(name): int(n) for name, n in record["offsets"].items()}
    if run.results_file.exists() or run.tensorboard.exists():
        # Fed by a version that kept no place: what is there has been.
        return {path: path.stat().st_size for path in run.events.glob("*.jsonl")}
    return {}


def main(argv: list[str]) -> int:
    """Feed until standard input ends."""
    # Ctrl-C and a scheduler's signal reach every process of the group: the supervisor answers them.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    sinks = Sinks(RunDirectory(Path(argv[0])), from_json(SinkSettings, json.loads(argv[1])))
    turns = 0
    while not select.select([sys.stdin], [], [], _POLL_S)[0]:
        turns += 1
        if sinks.turn() and turns % _KEEP_EVERY == 0:
            sinks.keep_place()
    sinks.turn()
    sinks.close()
    return 1 if sinks.failures else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
