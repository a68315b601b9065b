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

import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from origin import describe_origin
from turns import Turn, choose_turns, run_turns, turn_parser

HERE = Path(__file__).parent
PACKAGES = ("transformers", "accelerate", "lightning", "pytorch-lightning", "torchvision")

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


def plan_turns(arguments):
    """Phalanx and the limits of every work first, then the rest in their order."""
    turns = [
        Turn(
            work,
            contestant,
            expected_s,
            argv_of(work, contestant, arguments),
            may_wait=work != "resnet" and contestant in TOGETHER,
        )
        for work, contestants in ORDER.items()
        for contestant, expected_s in contestants.items()
    ]
    return choose_turns(turns, arguments.only, arguments.skip)


def argv_of(work, contestant, arguments):
    argv = [sys.executable, str(HERE / "contestant.py"), work, contestant]
    argv += ["--seconds", str(arguments.seconds), "--settle-s", str(arguments.settle_s)]
    argv += ["--tiny"] if arguments.tiny else []
    return argv + (["--folder", arguments.folder] if work == "resnet" else [])


def main():
    parser = turn_parser(__doc__, budget_s=570, seconds=15.0, settle_s=15.0)
    parser.add_argument("--folder", default=str(Path(tempfile.gettempdir()) / "phalanx-photos"))
    parser.add_argument("--photos", type=int, default=2048)
    parser.add_argument(
        "--share-caches", action="store_true", help="of compiled code, to save time"
    )
    parser.add_argument("--together", action="store_true", help="set up peers at the same time")
    arguments = parser.parse_args()
    ends = time.monotonic() + arguments.budget_s
    turns = plan_turns(arguments)
    if any(turn.work == "resnet" for turn in turns):
        photos = [str(HERE / "photos.py"), arguments.folder, "--count", str(arguments.photos)]
        subprocess.run([sys.executable, *photos], check=True)
    run_turns(
        turns,
        out=arguments.out,
        about=describe_origin(*PACKAGES),
        ends=ends,
        together=arguments.together,
        share_caches=arguments.share_caches,
    )


if __name__ == "__main__":
    main()
