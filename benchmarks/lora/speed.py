"""Phalanx's lora recipe beside HF Trainer + peft on this machine: tokens a second and memory.

    python benchmarks/lora/speed.py --out lora.jsonl [--budget-s 240] [--only 135m phalanx]
    python benchmarks/lora/report.py lora.jsonl --write

Each contestant runs in a process of its own, one after the other, and is a line of JSON as soon as
it ends; one that fails leaves its error, what the budget does not allow is left out. Those that
compile the whole model come last: that takes over 90 s, and they are ended after `--limit-s`. With
`--together` these set up at the same time and are then measured in turn. `--tiny` tries all of it
on a CPU.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))

from models import SIZES, write_model, write_rows
from run_gpu import Turn, choose_turns, describe_machine, run_all, write_records

# Seconds that each is expected to take on an H200, for the budget.
ORDER = (
    ("135m", "phalanx", 60),
    ("135m", "hf-trainer", 25),
    ("1b", "phalanx", 70),
    ("1b", "hf-trainer", 30),
    ("1b", "hf-trainer-checkpointed", 30),
    ("135m", "hf-trainer-compiled", 100),
    ("1b", "hf-trainer-compiled", 100),
)
TINY = ("phalanx", "hf-trainer", "hf-trainer-checkpointed", "hf-trainer-compiled")


def turns_of(arguments):
    order = [("tiny", name, 60) for name in TINY] if arguments.tiny else ORDER
    turns = [
        Turn(work, name, expected_s, arguments.limit_s if "compiled" in name else None)
        for work, name, expected_s in order
    ]
    return choose_turns(turns, arguments.only, arguments.skip)


def command_of(turn, arguments):
    return [
        *(
            sys.executable,
            str(Path(__file__).with_name("one_contestant.py")),
            turn.work,
            turn.contestant,
        ),
        *("--folder", f"{arguments.folder}/{turn.work}"),
        *("--seconds", str(arguments.seconds), "--settle-s", str(arguments.settle_s)),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON lines are added here")
    parser.add_argument("--budget-s", type=float, default=240, help="seconds for all of it")
    parser.add_argument("--limit-s", type=float, default=100, help="for one that is compiled whole")
    parser.add_argument("--only", nargs="*", default=[], help="sizes or contestants")
    parser.add_argument("--skip", nargs="*", default=[], help="sizes or contestants")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured, each")
    parser.add_argument("--settle-s", type=float, default=5.0, help="before, for Phalanx")
    parser.add_argument(
        "--together", action="store_true", help="peers that are neighbours set up at the same time"
    )
    parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
    arguments = parser.parse_args()
    arguments.share_caches = False
    ends = time.monotonic() + arguments.budget_s
    turns = turns_of(arguments)
    about = describe_machine() | {"command": "python " + " ".join(sys.argv)}
    with tempfile.TemporaryDirectory() as folder:
        arguments.folder = folder
        for work in dict.fromkeys(turn.work for turn in turns):
            write_model(f"{folder}/{work}/model", SIZES[work])
            write_rows(f"{folder}/{work}/rows.jsonl", SIZES[work])
        caches = Path(folder, "caches")
        caches.mkdir()
        write_records(run_all(turns, arguments, caches, ends, command_of), arguments.out, about)


if __name__ == "__main__":
    main()
