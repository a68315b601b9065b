"""Samples a second of Phalanx's policy recipe beside the same model in stock Accelerate, one GPU.

    python benchmarks/policy/run_gpu.py --out policy.jsonl --budget-s 560
    python benchmarks/policy/report.py policy.jsonl --write

The model is the recipe's own at 6M and 170M, states alone, chunks of 16 actions of 14 numbers; the
data is made by this script in the recipe's format, without a simulator. bf16, AdamW, clipping, a
schedule and an average of the weights for all. Each contestant has a process of its own, one after
the other, and is a line of JSON as soon as it ends; one that fails leaves its error, and what the
budget does not allow is left out. `--tiny` tries all of it on a CPU.

- phalanx: a plain `phalanx train policy`, watched through its events and ended by Ctrl-C
- phalanx-eager: the same with `--fast off`
- accelerate: a loop as its guide writes one, 4 loader processes; -compiled: with its own switch for
  torch.compile
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from origin import describe_origin
from phalanx_run import phalanx_argv
from turns import Turn, choose_turns, run_turns, turn_parser

from phalanx.recipes.policy.demonstrations import Episode, Task, write_demonstrations

BATCHES = {"6m": 64, "170m": 256}
# Seconds that each is expected to take on an H200.
ORDER = (
    ("phalanx", "6m", 90),
    ("accelerate", "6m", 45),
    ("phalanx", "170m", 100),
    ("accelerate", "170m", 55),
    ("accelerate-compiled", "6m", 70),
    ("accelerate-compiled", "170m", 90),
    ("phalanx-eager", "6m", 60),
    ("phalanx-eager", "170m", 60),
)
FLAGS = {"phalanx": [], "phalanx-eager": ["--fast", "off"]}
STATE_SIZE = ACTION_SIZE = 14  # two arms of seven joints


def write_data(folder, *, episodes, steps):
    """Arms that swing: smooth states, and actions that follow from them."""
    generator = np.random.default_rng(0)

    def swing():
        for number in range(episodes):
            pace = generator.uniform(0.02, 0.2, STATE_SIZE)
            start = generator.uniform(0, 6, STATE_SIZE)
            angle = start + pace * np.arange(steps)[:, None]
            yield Episode(number % 2, np.sin(angle), pace * np.cos(angle))

    tasks = [Task("swing", "swing the arms"), Task("sway", "sway the arms")]
    write_demonstrations(folder, swing(), tasks, about={"fps": 25, "source": "made up"})


def argv_of(name, work, batch, data, arguments):
    size = "tiny" if arguments.tiny else work
    if name in FLAGS:
        words = [
            "policy", f"data={data}", f"size={size}", "text_encoder=none", "--batch-size",
            str(batch), "--steps", "100000", "evaluate.every=null", *FLAGS[name],
        ]  # fmt: skip
        words += ["--cpu", "1"] if arguments.tiny else ["--gpus", "1"]
        return phalanx_argv(words, arguments)
    request = {
        "data": str(data), "size": size, "batch": batch, "seconds": arguments.seconds,
        "workers": arguments.workers, "compile": name.endswith("compiled"),
    }  # fmt: skip
    script = Path(__file__).with_name("accelerate_loop.py")
    return [sys.executable, str(script), json.dumps(request)]


def plan_turns(data, arguments):
    turns = []
    for name, work, expected_s in ORDER:
        batch = 8 if arguments.tiny else BATCHES[work]
        argv = argv_of(name, work, batch, data, arguments)
        limit_s = None if name in FLAGS else arguments.limit_s
        turns.append(Turn(work, name, expected_s, argv, limit_s=limit_s, facts={"batch": batch}))
    return choose_turns(turns, arguments.only, arguments.skip)


def main():
    parser = turn_parser(__doc__, budget_s=560, seconds=15.0, settle_s=12.0)
    parser.add_argument("--limit-s", type=float, default=170, help="for one that is not Phalanx")
    parser.add_argument("--workers", type=int, default=4, help="Accelerate's loader processes")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.seconds = arguments.settle_s = 1.0
        arguments.workers = 1
    ends = time.monotonic() + arguments.budget_s
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "swings")
        turns = plan_turns(data, arguments)
        write_data(data, episodes=16 if arguments.tiny else 512, steps=128)
        run_turns(turns, out=arguments.out, about=describe_origin("accelerate"), ends=ends)


if __name__ == "__main__":
    main()
