"""Contestants in turn, each in a session of its own with a limit; a line of JSON as each ends.

    turns = [Turn("6m", "accelerate", expected_s=45, argv=[...]), ...]
    run_turns(choose_turns(turns, only, skip), out=Path("policy.jsonl"), ends=monotonic_s)

A contestant prints its figures as its last line, in JSON. One that fails leaves its error, and what
the budget does not allow is left out. Whatever is a limit, or whose start is timed, has the machine
for itself. Those that may wait can set up at the same time, wait once they have settled, and are
then measured in turn: a process that waits takes nothing but memory.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from records import append_record
from sessions import end_session, start_session


@dataclass
class Turn:
    """One contestant at one work."""

    work: str
    contestant: str
    expected_s: float
    argv: list[str]
    limit_s: float | None = None
    """When it is ended; None: after three times what is expected."""
    may_wait: bool = False
    """Sets up beside others; takes `--gate FOLDER`."""
    facts: dict = field(default_factory=dict)
    """What its record says beside its figures."""


def turn_parser(doc, *, budget_s, seconds, settle_s):
    """What every such benchmark takes; each adds its own."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON lines are added here")
    parser.add_argument("--budget-s", type=float, default=budget_s, help="seconds for all of it")
    parser.add_argument("--only", nargs="*", default=[], help="works or contestants")
    parser.add_argument("--skip", nargs="*", default=[], help="works or contestants")
    parser.add_argument("--seconds", type=float, default=seconds, help="measured, each")
    parser.add_argument("--settle-s", type=float, default=settle_s, help="before")
    parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
    return parser


def choose_turns(turns, only, skip):
    """Those that are wanted, by their works and contestants."""
    known = {turn.work for turn in turns}
    names = known | {turn.contestant for turn in turns}
    if unknown := (set(only) | set(skip)) - names:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(names))}")
    works, contestants = set(only) & known, set(only) - known
    return [
        turn
        for turn in turns
        if (not works or turn.work in works)
        and (not contestants or turn.contestant in contestants)
        and turn.work not in skip
        and turn.contestant not in skip
    ]


def run_turns(turns, *, out, about, ends, env=None, together=False, share_caches=False):
    """Until all had their turn, or `ends` on the monotonic clock has come."""
    with tempfile.TemporaryDirectory() as caches:

        def start(turn, **more):
            settings = _cache_settings(turn, Path(caches), is_shared=share_caches)
            return Contestant(turn, Path(caches), env={**(env or {}), **settings}, **more)

        for record in _take(list(turns), start, ends, together=together):
            append_record(out, record, about)
            print(one_line(record), flush=True)


def _take(turns, start, ends, *, together):
    def left_s():
        return ends - time.monotonic()

    while turns:
        group = list(takewhile(lambda turn: together and turn.may_wait, turns)) or turns[:1]
        turns = turns[len(group) :]
        needed_s = max(turn.expected_s for turn in group)
        if left_s() < 0.8 * needed_s:
            for turn in group:
                yield _record_of(turn) | {"left_out": True}
            continue
        if len(group) == 1:
            limit_s = group[0].limit_s or 3 * needed_s
            yield start(group[0]).finish(min(left_s(), limit_s))
            continue
        started = [start(turn, is_gated=True) for turn in group]
        try:
            for contestant in started:
                contestant.settle(left_s() - 20)
            for contestant in started:
                yield contestant.finish(max(1.0, min(left_s(), needed_s)))
        finally:
            for contestant in started:
                contestant.leave_nothing()


def _record_of(turn):
    return {"work": turn.work, "contestant": turn.contestant, **turn.facts}


class Contestant:
    """A process that takes its turn."""

    def __init__(self, turn, folder, *, env, is_gated=False):
        self.turn = turn
        self._folder, self._is_gated = Path(tempfile.mkdtemp(dir=folder)), is_gated
        argv = turn.argv + (["--gate", str(self._folder)] if is_gated else [])
        self._started_s = time.time()
        with (self._folder / "said").open("w") as out, (self._folder / "errors").open("w") as err:
            self._process = start_session(argv, env=env, stdout=out, stderr=err)

    def settle(self, limit_s):
        """Until it waits for its turn, or ends, or the time is over."""
        until = time.monotonic() + limit_s
        while self._process.poll() is None and not (self._folder / "ready").exists():
            if time.monotonic() > until:
                break
            time.sleep(0.05)

    def finish(self, limit_s):
        """Its turn: what it printed, or what went wrong, as a record."""
        began_s = time.time()
        (self._folder / "go").touch()
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        except BaseException:
            self.leave_nothing()
            raise
        took_s = round(time.time() - began_s, 1)
        self.leave_nothing()
        record = _record_of(self.turn) | {"took_s": took_s, "expected_s": self.turn.expected_s}
        said, complained = (
            (self._folder / name).read_text(errors="replace") for name in ("said", "errors")
        )
        if code != 0:
            why = f"over {limit_s:.0f} s" if code is None else f"exit code {code}"
            return record | {"error": f"{why}: {(said + complained)[-3000:]}"}
        figures = json.loads(said.splitlines()[-1])
        for moment in ("first_step", "tenth_step"):
            at = figures.pop(f"{moment}_at", None)
            if at is not None and not self._is_gated:  # beside others, a start says nothing
                figures[f"{moment}_s"] = at - self._started_s
        return record | figures

    def leave_nothing(self):
        end_session(self._process)


def _cache_settings(turn, caches, *, is_shared):
    """Environment that keeps temporary files and compiled code in a folder. Phalanx chooses its own
    place for code, so it only gets another cache folder of the user."""
    is_phalanx = turn.contestant.startswith("phalanx")
    folder = caches / turn.work
    folder /= "phalanx" if is_phalanx else "others" if is_shared else turn.contestant
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    temporary = {"TMPDIR": str(folder / "tmp")}
    if is_phalanx:
        return {**temporary, "XDG_CACHE_HOME": str(folder)}
    return {
        **temporary,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def one_line(record):
    name = f"{record['work']:7} {record['contestant']:22}"
    if record.get("left_out"):
        return f"{name} left out: the budget is spent"
    if "error" in record:
        return f"{name} FAILED after {record['took_s']} s: {record['error'][-600:]}"
    rate = f"{record['samples_per_s']:,.0f} samples/s" if "samples_per_s" in record else ""
    first = record.get("first_step_s") or record.get("first_event_s") or 0
    return f"{name} {rate:>20}, first {first:.1f} s, took {record['took_s']} s"
