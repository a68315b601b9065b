"""Phalanx and its peers on this machine, each in a process of its own, measured one at a time.

    python benchmarks/peers/run_gpu.py --out peers.jsonl --budget-s 560 --only gpt2
    python benchmarks/peers/report.py peers.jsonl --write

A line of JSON is written as each ends; one that fails leaves its error. The most telling come
first, and what the budget does not allow is left out. Where there is no GPU, `--tiny` tries every
contestant at a size that a CPU does in seconds.

Whatever is a limit, or whose start is timed, has the machine for itself. With `--together` the
others set up at the same time, wait once they have settled, and are then measured in turn: a
process that waits takes nothing but memory.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from side_by_side import commit_of_tree

HERE = Path(__file__).parent

PEERS = ("hf-trainer", "accelerate", "lightning")
COMPILED = tuple(f"{peer}-compiled" for peer in PEERS)
# Sets up beside others. Not with pictures: processes that wait would decode ahead.
TOGETHER = {*PEERS, *COMPILED, "plain-compiled", "plain-graphs"}

# Seconds that each contestant takes on an H200, for the budget. Phalanx and the limits first, then
# the best that people use, then the rest.
ORDER = {
    "gpt2": {
        "phalanx": 130,
        "plain-compiled": 90,
        "phalanx-second-start": 40,
        "plain": 40,
        "phalanx-first-step": 40,
        **dict.fromkeys(PEERS, 45),
        **dict.fromkeys(COMPILED, 95),
    },
    "policy": {
        "phalanx": 100,
        "whole-step-graph": 60,
        "plain": 35,
        "phalanx-second-start": 30,
        **dict.fromkeys(PEERS, 40),
        "plain-compiled": 50,
        "plain-graphs": 55,
        **dict.fromkeys(COMPILED, 60),
    },
    "resnet": {
        "phalanx": 110,
        "compute-limit": 70,
        "decode-limit": 35,
        "plain-photos-compiled": 80,
        "phalanx-drafted": 110,
        "decode-limit-drafted": 35,
        **dict.fromkeys(PEERS, 50),
        "plain": 50,
        **dict.fromkeys(COMPILED, 90),
    },
}


@dataclass
class Turn:
    """One contestant at one work."""

    work: str
    contestant: str
    expected_s: float
    limit_s: float | None = None
    """When it is ended; None: after three times what is expected."""


def plan_turns(only, skip):
    """Phalanx and the limits of every work first, then the rest in their order."""
    turns = [
        Turn(work, contestant, expected_s)
        for work, contestants in ORDER.items()
        for contestant, expected_s in contestants.items()
    ]
    return choose_turns(turns, only, skip)


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


class Contestant:
    """A process that takes its turn."""

    def __init__(self, turn, arguments, caches, *, command, is_gated=False):
        self.turn = turn
        self._folder, self._is_gated = Path(tempfile.mkdtemp(dir=caches)), is_gated
        argv = command(turn, arguments) + (["--gate", str(self._folder)] if is_gated else [])
        env = {**os.environ, **cache_settings(turn, arguments, caches)}
        self._started_s = time.time()
        with (self._folder / "said").open("w") as out, (self._folder / "errors").open("w") as err:
            self._process = subprocess.Popen(
                argv, stdout=out, stderr=err, env=env, start_new_session=True
            )

    def settle(self, limit_s):
        """Until it waits for its turn, or ends, or the time is over."""
        until = time.monotonic() + limit_s
        while self._process.poll() is None and not (self._folder / "ready").exists():
            if time.monotonic() > until:
                break
            time.sleep(0.05)

    def finish(self, limit_s):
        """Its turn: what it printed, or what went wrong, as a record."""
        turn, began_s = self.turn, time.time()
        (self._folder / "go").touch()
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        self.leave_nothing()
        said, complained = ((self._folder / name).read_text() for name in ("said", "errors"))
        record = {"work": turn.work, "contestant": turn.contestant}
        record |= {"took_s": round(time.time() - began_s, 1), "expected_s": turn.expected_s}
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
        """End whatever it started."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, how)
            except ProcessLookupError:
                break
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                continue
            time.sleep(0.5)


def command_of(turn, arguments):
    argv = [sys.executable, str(HERE / "contestant.py"), turn.work, turn.contestant]
    argv += ["--seconds", str(arguments.seconds), "--settle-s", str(arguments.settle_s)]
    argv += ["--tiny"] if arguments.tiny else []
    return argv + (["--folder", arguments.folder] if turn.work == "resnet" else [])


def cache_settings(turn, arguments, caches):
    """Environment that keeps compiled code in a folder. Phalanx chooses its own place, so it only
    gets another cache folder of the user and another temporary folder."""
    is_phalanx = turn.contestant.startswith("phalanx")
    shared = "phalanx" if is_phalanx else "others" if arguments.share_caches else turn.contestant
    folder = caches / turn.work / shared
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    if is_phalanx:
        return {"XDG_CACHE_HOME": str(folder), "TMPDIR": str(folder / "tmp")}
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def describe_machine():
    import torch

    is_gpu = torch.cuda.is_available()
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "machine": torch.cuda.get_device_name(0) if is_gpu else "CPU only",
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit_of_tree(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON lines are added here")
    parser.add_argument("--budget-s", type=float, default=570, help="seconds for all of it")
    parser.add_argument("--only", nargs="*", default=[], help="works or contestants")
    parser.add_argument("--skip", nargs="*", default=[], help="works or contestants")
    parser.add_argument("--seconds", type=float, default=15.0, help="measured, each")
    parser.add_argument("--settle-s", type=float, default=15.0, help="before, for Phalanx")
    parser.add_argument("--folder", default=str(Path(tempfile.gettempdir()) / "phalanx-photos"))
    parser.add_argument("--photos", type=int, default=2048)
    parser.add_argument(
        "--share-caches", action="store_true", help="of compiled code, to save time"
    )
    parser.add_argument("--together", action="store_true", help="set up peers at the same time")
    parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
    arguments = parser.parse_args()
    ends = time.monotonic() + arguments.budget_s
    turns = plan_turns(arguments.only, arguments.skip)
    if any(turn.work == "resnet" for turn in turns):
        photos = [str(HERE / "photos.py"), arguments.folder, "--count", str(arguments.photos)]
        subprocess.run([sys.executable, *photos], check=True)
    about = describe_machine() | {"command": "python " + " ".join(sys.argv)}
    with tempfile.TemporaryDirectory() as caches:
        records = run_all(turns, arguments, Path(caches), ends, command_of)
        write_records(records, arguments.out, about)


def write_records(records, path, about):
    """Each as it comes: a run that is ended early keeps what it has."""
    with path.open("a", encoding="utf-8") as out:
        for record in records:
            out.write(json.dumps(record | {"about": about}) + "\n")
            out.flush()
            print(one_line(record), flush=True)


def run_all(turns, arguments, caches, ends, command):
    """A record of each as it ends; neighbours that may set up together do. `command` gives what
    starts a turn."""

    def may_wait(turn):
        return arguments.together and turn.work != "resnet" and turn.contestant in TOGETHER

    def left_s():
        return ends - time.monotonic()

    turns = list(turns)
    while turns:
        group = list(takewhile(may_wait, turns)) or turns[:1]
        turns = turns[len(group) :]
        needed_s = max(turn.expected_s for turn in group)
        if left_s() < 0.8 * needed_s:
            for turn in group:
                yield {"work": turn.work, "contestant": turn.contestant, "left_out": True}
            continue
        if len(group) == 1:
            alone = Contestant(group[0], arguments, caches, command=command)
            yield alone.finish(min(left_s(), group[0].limit_s or 3 * needed_s))
            continue
        started = [
            Contestant(turn, arguments, caches, command=command, is_gated=True) for turn in group
        ]
        try:
            for contestant in started:
                contestant.settle(left_s() - 20)
            for contestant in started:
                yield contestant.finish(max(1.0, min(left_s(), needed_s)))
        finally:
            for contestant in started:
                contestant.leave_nothing()


def one_line(record):
    name = f"{record['work']:7} {record['contestant']:22}"
    if record.get("left_out"):
        return f"{name} left out: the budget is spent"
    if "error" in record:
        return f"{name} FAILED after {record['took_s']} s: {record['error'][-600:]}"
    rate = f"{record['samples_per_s']:,.0f} samples/s" if "samples_per_s" in record else ""
    first = record.get("first_step_s") or record.get("first_event_s") or 0
    return f"{name} {rate:>20}, first {first:.1f} s, took {record['took_s']} s"


if __name__ == "__main__":
    main()
