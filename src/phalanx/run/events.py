"""What happened in a run: one JSON line per event, one file per writer, merged by readers."""

from __future__ import annotations

import errno
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.codec import Json
from phalanx.run.attempt import FILE as ATTEMPT_FILE
from phalanx.run.attempt import Attempt, RunTakenError, read_attempt
from phalanx.run.event_kinds import Body, kind_of, to_body, to_fields

SCHEMA_VERSION = 1
_LATER = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EAGAIN}
_MOST_LATE = 2**20  # bytes of events that wait for room on a disk
EVALUATOR = "evaluate"
"""Writer of the events that `phalanx evaluate` adds to a run."""


@dataclass(frozen=True)
class Event:
    """One thing that happened: who wrote it, when, for which attempt, and what it is."""

    time_s: float
    writer: str
    attempt: int
    run: str | None
    """Id of the run it belongs to; None in files of versions that had none."""
    body: Body
    extra: dict[str, Json] = field(default_factory=dict)
    """Fields of a known kind that only a newer version knows: passed on as they are."""

    @property
    def step(self) -> int | None:
        """The optimizer step it is of, where it says so."""
        step = getattr(self.body, "step", None)
        return step if isinstance(step, int) else None

    def to_line(self) -> str:
        record = {
            "v": SCHEMA_VERSION,
            "t": round(self.time_s, 6),
            "kind": kind_of(self.body),
            "writer": self.writer,
            "attempt": self.attempt,
            **({"run": self.run} if self.run is not None else {}),
            **to_fields(self.body),
            **self.extra,
        }
        return json.dumps(record, separators=(",", ":")) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Event:
        """Return the event of a line; raises ValueError if it holds none."""
        try:
            record = json.loads(line)
            record.pop("v")
            kind, time_s = record.pop("kind"), float(record.pop("t"))
            writer, attempt = record.pop("writer"), record.pop("attempt", 0)
            run = record.pop("run", None)
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"no event: {error!r}") from error
        is_typed = isinstance(kind, str) and isinstance(writer, str) and isinstance(attempt, int)
        if not is_typed or not isinstance(run, str | None):
            raise ValueError("no event: kind, writer, attempt or run is of another type")
        body, extra = to_body(kind, record)
        return cls(time_s, writer, attempt, run, body, extra)


def parse(line: bytes) -> Event | None:
    """Return the event of a line; None for a damaged one, such as half a line of a writer that was
    killed."""
    try:
        return Event.from_line(line.decode())
    except ValueError:
        return None


class EventWriter:
    """Appends events of one writer; a line is written whole, so a reader never sees half of one
    followed by another."""

    def __init__(self, folder: Path, writer: str, *, attempt: int | None = None) -> None:
        """`attempt`: the start of the ranks that events belong to; None for a writer that has no
        part in any, such as `phalanx evaluate`."""
        self._writer = writer
        self._path = folder.parent
        self._is_bound = attempt is not None
        newest = read_attempt(self._path)
        self.identity = Attempt(newest.run if newest is not None else None, attempt or 0)
        """The run and the attempt that events belong to."""
        self._seen: tuple[int, int] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{writer}.jsonl"
        self._file = path.open("ab", buffering=0)
        self._late = b""
        self._lock = threading.Lock()
        if self._file.tell() and not _ends_with_newline(path):
            self._file.write(b"\n")  # the writer before us died in the middle of a line

    @property
    def attempt(self) -> int:
        return self.identity.number

    def check(self) -> None:
        """Raise RunTakenError if the run belongs to a newer attempt than the writer's."""
        if not self._is_bound:
            return
        try:
            about = (self._path / ATTEMPT_FILE).stat()
        except OSError:
            return
        seen = about.st_ino, about.st_mtime_ns
        if seen != self._seen:
            self.identity.check(self._path)
            self._seen = seen

    def begin(self, attempt: Attempt) -> None:
        """Write for this attempt from now on."""
        self.identity, self._is_bound = attempt, True

    def write(self, body: Body) -> Event:
        """Append an event; raises RunTakenError, and writes nothing, if the run belongs to a newer
        attempt."""
        self.check()
        identity = self.identity
        event = Event(time.time(), self._writer, identity.number, identity.run, body)
        with self._lock:  # a rank writes checkpoints, and says so, in a thread of its own
            self._late += event.to_line().encode()
            self._catch_up()
        return event

    def _catch_up(self) -> None:
        """Write what is not written yet. A full disk ends no run: its events come later, the oldest
        of very many not at all."""
        try:
            while self._late:
                self._late = self._late[self._file.write(self._late) :]
        except OSError as error:
            if error.errno not in _LATER:
                raise
            if len(self._late) > _MOST_LATE:
                self._late = self._late[self._late.index(b"\n", -_MOST_LATE // 2) + 1 :]

    def close(self) -> None:
        with self._lock:
            try:
                self.check()
                self._catch_up()
            except RunTakenError:
                pass  # what is late is nobody's any more
            self._file.close()


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


class WriterOrder:
    """Tells events of a run from what somebody else wrote into its files: another run that had the
    same folder, or an attempt that was over when the next one had begun to write."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._name: str | None = None
        self._newest: dict[str, int] = {}

    def is_in_place(self, file: str, event: Event) -> bool:
        """Whether the next event of a file belongs there."""
        if event.run is None:
            return True  # of a version that said neither
        if event.run != self._name:
            claimed = read_attempt(self._run)
            self._name = claimed.run if claimed is not None else event.run
            if event.run != self._name:
                return False
        is_late = event.attempt < self._newest.get(file, 0)
        self._newest[file] = max(event.attempt, self._newest.get(file, 0))
        return not is_late


class EventReader:
    """Reads events as they are appended; call `read` again for what came since."""

    def __init__(self, folder: Path, offsets: dict[Path, int] | None = None) -> None:
        """`offsets`: how far each file has been read before."""
        self._folder = folder
        self._offsets = dict(offsets or {})
        self._order = WriterOrder(folder.parent)

    @property
    def offsets(self) -> dict[Path, int]:
        """How far each file has been read."""
        return dict(self._offsets)

    def read(self) -> list[Event]:
        """New whole events of all writers, by time."""
        events: list[Event] = []
        for path in sorted(self._folder.glob("*.jsonl")):
            offset = self._offsets.get(path, 0)
            with path.open("rb") as file:
                file.seek(offset)
                chunk = file.read()
            whole = chunk.rfind(b"\n") + 1
            self._offsets[path] = offset + whole
            for line in chunk[:whole].splitlines():
                event = parse(line)
                if event is not None and self._order.is_in_place(path.name, event):
                    events.append(event)
        return sorted(events, key=lambda event: event.time_s)


def read_events(folder: Path) -> list[Event]:
    """Every event of a run, by time."""
    return EventReader(folder).read()
