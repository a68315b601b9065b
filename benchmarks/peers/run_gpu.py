"""Phalanx and its peers on this machine, one after the other, each in a process of its own.

    python benchmarks/peers/run_gpu.py --out peers.jsonl --budget-s 560 --only gpt2
    python benchmarks/peers/report.py peers.jsonl --write

A line of JSON is written as each ends; one that fails leaves its error. The most telling come
first, and what the budget does not allow is left out. Where there is no GPU, `--tiny` tries every
contestant at a size that a CPU does in seconds.
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from side_by_side import commit_of_tree

HERE = Path(__file__).parent

PEERS = ("hf-trainer", "accelerate", "lightning")

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
        **{f"{peer}-compiled": 95 for peer in PEERS},
    },
    "policy": {
        "phalanx": 100,
        "whole-step-graph": 60,
        "plain": 35,
        "phalanx-second-start": 30,
        **dict.fromkeys(PEERS, 40),
        "plain-compiled": 50,
        "plain-graphs": 55,
        **{f"{peer}-compiled": 60 for peer in PEERS},
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
        **{f"{peer}-compiled": 90 for peer in PEERS},
    },
}


@dataclass
class Turn:
    """One contestant at one work."""

    work: str
    contestant: str
    expected_s: float


def plan_turns(only, skip):
    """Phalanx and the limits of every work first, then the rest in their order."""
    turns = [
        Turn(work, contestant, expected_s)
        for work, contestants in ORDER.items()
        for contestant, expected_s in contestants.items()
    ]
    names = {turn.work for turn in turns} | {turn.contestant for turn in turns}
    if unknown := (set(only) | set(skip)) - names:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(names))}")
    works, contestants = set(only) & set(ORDER), set(only) - set(ORDER)
    return [
        turn
        for turn in turns
        if (not works or turn.work in works)
        and (not contestants or turn.contestant in contestants)
        and turn.work not in skip
        and turn.contestant not in skip
    ]


def run_turn(turn, arguments, caches, limit_s):
    """What the contestant printed, or what went wrong, as a record."""
    argv = [sys.executable, str(HERE / "contestant.py"), turn.work, turn.contestant]
    argv += ["--seconds", str(arguments.seconds), "--settle-s", str(arguments.settle_s)]
    argv += ["--tiny"] if arguments.tiny else []
    argv += ["--folder", arguments.folder] if turn.work == "resnet" else []
    is_phalanx = turn.contestant.startswith("phalanx")
    shared = "phalanx" if is_phalanx else "others" if arguments.share_caches else turn.contestant
    env = {**os.environ, **cache_settings(caches / turn.work / shared, is_phalanx=is_phalanx)}
    started_s = time.time()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            argv, stdout=out, stderr=err, env=env, start_new_session=True, text=True
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        leave_nothing(process)
        out.seek(0)
        err.seek(0)
        said, complained = out.read(), err.read()
    record = {"work": turn.work, "contestant": turn.contestant}
    record |= {"took_s": round(time.time() - started_s, 1), "expected_s": turn.expected_s}
    if code == 0:
        figures = json.loads(said.splitlines()[-1])
        for moment in ("first_step", "tenth_step"):
            if (at := figures.pop(f"{moment}_at", None)) is not None:
                figures[f"{moment}_s"] = at - started_s
        return record | figures
    why = f"over {limit_s:.0f} s" if code is None else f"exit code {code}"
    return record | {"error": f"{why}: {(said + complained)[-3000:]}"}


def cache_settings(folder, *, is_phalanx):
    """Environment that keeps compiled code in a folder. Phalanx chooses its own place, so it only
    gets another cache folder of the user and another temporary folder."""
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    if is_phalanx:
        return {"XDG_CACHE_HOME": str(folder), "TMPDIR": str(folder / "tmp")}
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def leave_nothing(process):
    """End whatever the contestant started."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            break
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            continue
        time.sleep(0.5)


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
    parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
    arguments = parser.parse_args()
    begun = time.monotonic()
    turns = plan_turns(arguments.only, arguments.skip)
    if any(turn.work == "resnet" for turn in turns):
        photos = [str(HERE / "photos.py"), arguments.folder, "--count", str(arguments.photos)]
        subprocess.run([sys.executable, *photos], check=True)
    about = describe_machine() | {"command": "python " + " ".join(sys.argv)}
    with tempfile.TemporaryDirectory() as caches, arguments.out.open("a") as out:
        for turn in turns:
            left_s = arguments.budget_s - (time.monotonic() - begun)
            if left_s < 0.8 * turn.expected_s:
                record = {"work": turn.work, "contestant": turn.contestant, "left_out": True}
            else:
                limit_s = min(left_s, 3 * turn.expected_s)
                record = run_turn(turn, arguments, Path(caches), limit_s)
            out.write(json.dumps(record | {"about": about}) + "\n")
            out.flush()
            print(one_line(record), flush=True)


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
