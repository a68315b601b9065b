"""How long training stands still for a checkpoint: written beside it, and while it waits.

    .venv/bin/python benchmarks/checkpoint_stall.py [--megabytes 100] [--rounds 3] [--gpu] [--write]

`tiny.py` with layers wide enough for so many megabytes of weights, and AdamW, whose state makes a
checkpoint three times that. Both save every ten steps, in turns. The figures are those of the
`checkpoint` events: `seconds` training stood still for (on CUDA not less than the copies held the
GPU), `waited_s` for the one before to be on disk, `write_s` until it was published. The first
saving of a run, which finds the memory, is given apart. The last saving of a run is left out of the
shares: there is nothing left to train meanwhile.

A third run leaves it to `checkpoint.every = auto` with an epoch of ten steps, and is long enough
(`--auto-s`) to have several.
"""

import argparse
import math
import statistics
import sys
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from side_by_side import Table, take_turns, train

from phalanx.run.event_kinds import Checkpoint

RECIPE = f"{Path(__file__).parent / 'tiny.py'}:Tiny"
COLUMNS, CLASSES, BATCH, EVERY = 32, 10, 4, 10


def run(arguments, *settings, steps=None):
    width = int(arguments.megabytes * 2**20 / 4 / (COLUMNS + CLASSES + 1))
    devices = ["--gpus", 1] if arguments.gpu else ["--cpu", 1]
    return train(
        [
            *(RECIPE, "--steps", steps or arguments.steps, "--batch-size", BATCH, *devices),
            *(f"options.width={width}", f"options.samples={BATCH * EVERY}", "evaluate.every=null"),
            *("--precision", "fp32", "logging.tensorboard=false", "logging.every=1", *settings),
        ]
    )


def figures(trained):
    """Of one run: stalls in seconds, and what share of the time between first and last they are."""
    saved = [e.body for e in trained.events if isinstance(e.body, Checkpoint)]
    steps = trained.steps
    span = steps[-1].time_s - steps[0].time_s
    before_end = saved[:-1]
    stood = sum(one.seconds + one.waited_s for one in before_end)
    return {
        "count": len(saved),
        "first": saved[0].seconds,
        "stall": statistics.median(one.seconds for one in saved[1:]),
        "waited": statistics.median(one.waited_s for one in saved[1:]),
        "write": statistics.median(one.write_s for one in saved[1:]),
        "bytes": saved[-1]["bytes"],
        "share": stood / span,
        "step": span / (len(steps) - 1),
        "usual_step": statistics.median(b.time_s - a.time_s for a, b in pairwise(steps)),
        "span": span,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--auto-s", type=float, default=90, help="of the run that chooses itself")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    table = Table(
        "checkpoint-stall",
        f"Training stands still for a checkpoint of {3 * arguments.megabytes:.0f} MB",
        "| saving | stall, ms | first, ms | waited, ms | written after, ms | share of the time "
        "| checkpoints | usual step, ms |",
        "python benchmarks/checkpoint_stall.py " + " ".join(sys.argv[1:]),
    )
    every = f"checkpoint.every={EVERY} steps"
    turns = take_turns(
        {
            "beside training": lambda: run(arguments, every, "checkpoint.background=on"),
            "training waits": lambda: run(arguments, every, "checkpoint.background=off"),
        },
        arguments.rounds,
    )
    found = {name: [figures(trained) for trained in rounds] for name, rounds in turns.items()}
    step_s = min(each["usual_step"] for rounds in found.values() for each in rounds)
    steps = math.ceil(arguments.auto_s / step_s)
    found["beside, every = auto"] = [figures(run(arguments, steps=steps))]
    for name, rounds in found.items():

        def middle(key, rounds=rounds):
            return statistics.median(each[key] for each in rounds)

        table.add(
            name,
            *(f"{1e3 * middle(key):.1f}" for key in ("stall", "first", "waited", "write")),
            f"{100 * middle('share'):.2f} %",
            f"{middle('count'):.0f} in {middle('span'):.0f} s",
            f"{1e3 * middle('usual_step'):.1f}",
        )
    if not arguments.gpu:
        table.say(
            "\nOn a CPU the writer shares the cores with training: steps meanwhile take longer, "
            "which is no part of the share."
        )
    if arguments.write:
        table.write()


if __name__ == "__main__":
    main()
