"""What happened in a run: one JSON line per event, one file per writer, merged by readers."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.run.attempt import FILE as ATTEMPT_FILE
from phalanx.run.attempt import Attempt, RunTakenError, read_attempt

SCHEMA_VERSION = 1
_LATER = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EAGAIN}
_MOST_LATE = 2**20  # bytes of events that wait for room on a disk
EVALUATOR = "evaluate"
"""Writer of the events that `phalanx evaluate` adds to a run."""

KINDS: dict[str, dict[str, str]] = {
    "attempt": {
        "ranks": "how many ranks",
        "revision": "plan revision they read; absent for a launched script",
    },
    "nodes": {
        "members": "each node of several in words: number, host, address, interface, speed",
        "settings": "what the ranks of each are told about the network, with reasons",
    },
    "start": {
        "rank": "rank of the writer; of a launched script: the rank that was started",
        "world": "number of ranks",
        "pid": "process id",
        "device": "where it computes",
        "backend": "how ranks talk, or none",
        "step": "optimizer steps already done",
        "resumed_from": "checkpoint it loaded, or null",
        "source": "`launch`: device and backend are those a script takes as a rule; else absent",
    },
    "preparing": {"what": "what takes a while before the first step: compiling, comparing"},
    "step": {
        "step": "optimizer steps done",
        "epoch": "passes over the data done, with fraction",
        "samples": "samples consumed since the run began",
        "loss": "sum of the terms",
        "terms": "each named term of the loss over the global batch",
        "lr": "learning rate of this step",
        "grad_norm": "gradient norm before clipping, or null: in fp16 and with DeepSpeed it is "
        "found only where gradients are clipped",
        "samples_per_s": "samples per second since the last such event",
        "data_wait": "share of that time in which the writer waited for samples",
        "memory_bytes": "peak device memory of the writer, or resident host memory on CPU",
        "alloc_retries": "how often the device's allocator gave back what it kept and tried again",
        "major_faults": "pages of the writer that had to be read from disk",
        "loss_scale": "fp16 loss scale, or null",
        "total_steps": "how many there will be, where a script's output says so",
        "source": "`output` or `file`: read from what a launched script printed or wrote; "
        "what it does not say is null; else absent",
    },
    "skipped": {
        "step": "number of the optimizer step, which changed nothing: the loss or a gradient was "
        "not finite; in fp16 also while the loss scale is found",
        "epoch": "passes over the data done before it",
        "ids": "samples of its global batch, at most 4096 of them",
        "in_a_row": "so many until here",
        "total": "so many since the run began",
    },
    "usage": {
        "rank": "the rank that is meant, with what it started",
        "step": "the last step that was logged, or null",
        "cpu_percent": "of the CPU since the last sample, 100 is one core",
        "memory_bytes": "resident host memory; shared pages count in each process",
        "gpu": "the driver's number of its GPU; absent on CPU, as are the next four",
        "gpu_percent": "share of the time in which a kernel ran",
        "gpu_memory_bytes": "memory in use on that GPU, of all processes",
        "gpu_power_w": "power drawn",
        "gpu_temperature_c": "temperature",
    },
    "pace": {
        "seconds": "time that the figures are of",
        "parts": "names of the figures of each rank: parts of a step as the heartbeat counts them; "
        "`none` is outside of steps",
        "alone": "those of them in which a rank waits for no other one",
        "ranks": "of each rank: its number, the steps it made, seconds in each part",
    },
    "evaluate": {
        "step": "optimizer steps done",
        "epoch": "passes over the data done",
        "metrics": "figures over the whole test split",
        "samples": "samples evaluated over all ranks",
        "is_best": "whether the deciding metric is the best so far",
        "seconds": "time taken",
        "source": "as for `step`",
    },
    "evaluated": {
        "step": "optimizer steps behind the weights that `phalanx evaluate` looked at, or null",
        "file": "the weights, relative to the run directory",
        "weights": "`raw` or `average`",
        "metrics": "figures over the whole test split, or over all tasks of a benchmark",
        "samples": "samples evaluated over all ranks; null for a benchmark",
        "seconds": "time taken",
        "is_same": "whether training recorded the same to the last bit; null: it recorded nothing",
        "benchmark": "the benchmark that was run instead of the test split, or null",
        "tasks": "each of its tasks: successes, episodes, 95 % interval, other figures",
        "baselines": "by name, how others did in the same tasks, such as an expert",
    },
    "checkpoint": {
        "step": "optimizer steps done",
        "path": "folder relative to the run directory",
        "bytes": "size on disk",
        "seconds": "time training stood still: for the copy to host memory, or for all of it",
        "waited_s": "of waiting before that, for the checkpoint before to be written",
        "write_s": "time it took to write, beside training",
        "is_best": "whether `best` points at it",
    },
    "samples": {
        "step": "optimizer steps done; absent in the ranks of `phalanx evaluate`",
        "samples": "what the model made of a few test samples: given, made, wanted",
    },
    "media": {
        "step": "as for `samples`",
        "name": "what it shows, as the recipe calls it",
        "file": "a picture (.png, .jpg) or a film (.mp4), relative to the run directory",
        "caption": "a line about it, or nothing",
    },
    "exported": {
        "step": "optimizer steps of the checkpoint it was made of",
        "path": "folder relative to the run directory",
        "bytes": "size on disk",
        "seconds": "time taken",
    },
    "measuring": {"what": "what `bench` measures from here on"},
    "device": {"calibration": "what `bench` measured of the device"},
    "measured": {
        "micro_batch": "samples per forward on one rank",
        "step": "time by part and memory of a step, or null",
        "missing": "why there is none: `memory` ran out, too few `samples`",
        "notes": "what to keep in mind about the figures",
    },
    "finding": {"finding": "a Finding: slug, what, why, fix, severity"},
    "dropped": {
        "rung": "what is off from here on: compile, channels_last or cuda_graph",
        "reason": "the slug of the Finding that says it, and why",
    },
    "compared": {"rungs": "what gave the gradients of the recipe as it is written"},
    "hang": {
        "rank": "the rank that the others wait for, or null",
        "because": "what says that it is this one",
        "phase": "where it is: start, compile, step, evaluate, save or export",
        "part": "and within a step: data, agree, forward, backward or update",
        "step": "optimizer steps it has done",
        "place": "the same in words",
        "line": "file, line and function it is at, or null when it did not answer",
        "silent_s": "how long it had not moved",
        "limit_s": "how long it may",
        "limit_reason": "where that limit is from: a job key, or what a step takes",
        "file": "where every rank was: stacks, state, collectives",
    },
    "stop": {"reason": "why the run is asked to stop early"},
    "revision": {
        "revision": "plan revision from here on; the next attempt reads it",
        "reason": "why the plan is changed, and what that means for the curve",
        "changes": "each value that changes by name: micro_batch_size, accumulation, ...; old, new",
        "step": "optimizer steps done when it became necessary, or null",
    },
    "death": {
        "rank": "a rank that did not end in order; one event for each, the first first",
        "exit_code": "how it ended; negative: the signal that killed it",
        "was_ended": "whether it was ended because another one had died before",
        "phase": "where it was, as last heard: start, compile, step, evaluate, save or export; "
        "absent for a launched script, as is the next",
        "step": "optimizer steps it had done",
        "oom_kills": "processes that the kernel ended here for want of memory, since "
        "the attempt began; null where that is not told",
    },
    "outcome": {
        "status": "finished, stopped, failed or killed",
        "step": "optimizer steps done",
        "phase": "where it failed: start, settle, step, evaluate or save; null otherwise",
        "from_outside": "what ended it from outside, so that another start may help: `loader` "
        "(a loader process was killed), `connection` (to another rank); else null",
        "memory": "when memory ran out: device, tried_bytes, free_bytes, total_bytes, idle_bytes",
        "reason": "in words",
        "findings": "what is wrong, when it failed",
        "exit_code": "exit code the command line gives",
    },
}
"""Every kind of event with its fields; docs/reference/events.md is made from this."""


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    kind: str
    time_s: float
    writer: str
    attempt: int = 0
    data: dict[str, Any] = field(default_factory=dict)
    run: str | None = None
    """Id of the run it belongs to; None in files of versions that had none."""

    def to_line(self) -> str:
        record = {
            "v": SCHEMA_VERSION,
            "t": round(self.time_s, 6),
            "kind": self.kind,
            "writer": self.writer,
            "attempt": self.attempt,
            **({"run": self.run} if self.run is not None else {}),
            **self.data,
        }
        return json.dumps(record, separators=(",", ":")) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Event:
        record = json.loads(line)
        record.pop("v")
        return cls(
            kind=record.pop("kind"),
            time_s=record.pop("t"),
            writer=record.pop("writer"),
            attempt=record.pop("attempt", 0),
            run=record.pop("run", None),
            data=record,
        )


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

    def write(self, kind: str, **data: Any) -> Event:
        """Append an event; raises RunTakenError, and writes nothing, if the run belongs to a newer
        attempt."""
        assert set(data) <= set(KINDS[kind]), f"undocumented fields in event {kind}"
        self.check()
        identity = self.identity
        event = Event(kind, time.time(), self._writer, identity.number, data, identity.run)
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
        if event.run is None or not isinstance(event.attempt, int):
            return True  # of a version that said neither, or damaged: not judged here
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
            found = _parse(chunk[:whole])
            events.extend(e for e in found if self._order.is_in_place(path.name, e))
        return sorted(events, key=lambda event: event.time_s)


def _parse(chunk: bytes) -> Iterator[Event]:
    for line in chunk.splitlines():
        try:
            yield Event.from_line(line.decode())
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # half a line of a writer that was killed


def read_events(folder: Path) -> list[Event]:
    """Every event of a run, by time."""
    return EventReader(folder).read()
