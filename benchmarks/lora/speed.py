"""Phalanx's lora recipe beside HF Trainer + peft on this machine: tokens a second and memory.

    python benchmarks/lora/speed.py --out lora.jsonl [--budget-s 240] [--only 135m phalanx]
    python benchmarks/lora/report.py lora.jsonl --write

Each contestant runs in a process of its own, one after the other, and is a line of JSON as soon as
it ends; one that fails leaves its error, what the budget does not allow is left out. Those that
compile the whole model come last: that takes over 90 s, and they are ended after `--limit-s`. With
`--together` these set up at the same time and are then measured in turn. `--tiny` tries all of it
on a CPU.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from models import SIZES, write_model, write_rows
from origin import describe_origin
from turns import Turn, choose_turns, run_turns, turn_parser

PACKAGES = ("transformers", "peft", "accelerate", "tokenizers")

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


def plan_turns(arguments, folder):
    order = [("tiny", name, 60) for name in TINY] if arguments.tiny else ORDER
    turns = [
        Turn(
            work,
            name,
            expected_s,
            argv_of(work, name, arguments, folder),
            limit_s=arguments.limit_s if "compiled" in name else None,
            may_wait=name != "phalanx",
        )
        for work, name, expected_s in order
    ]
    return choose_turns(turns, arguments.only, arguments.skip)


def argv_of(work, name, arguments, folder):
    argv = [sys.executable, str(Path(__file__).with_name("one_contestant.py")), work, name]
    argv += ["--seconds", str(arguments.seconds), "--settle-s", str(arguments.settle_s)]
    return [*argv, "--folder", f"{folder}/{work}"]


def main():
    parser = turn_parser(__doc__, budget_s=240, seconds=5.0, settle_s=5.0)
    parser.add_argument("--limit-s", type=float, default=100, help="for one that is compiled whole")
    parser.add_argument(
        "--together", action="store_true", help="peers that are neighbours set up at the same time"
    )
    arguments = parser.parse_args()
    ends = time.monotonic() + arguments.budget_s
    with tempfile.TemporaryDirectory() as folder:
        turns = plan_turns(arguments, folder)
        for work in dict.fromkeys(turn.work for turn in turns):
            write_model(f"{folder}/{work}/model", SIZES[work])
            write_rows(f"{folder}/{work}/rows.jsonl", SIZES[work])
        run_turns(
            turns,
            out=arguments.out,
            about=describe_origin(*PACKAGES),
            ends=ends,
            together=arguments.together,
        )


if __name__ == "__main__":
    main()
