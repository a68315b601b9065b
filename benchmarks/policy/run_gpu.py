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

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))

from phalanx_run import measure_command
from run_gpu import describe_machine

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


def measure(name, size, batch, data, arguments):
    if name in FLAGS:
        words = [
            "policy", f"data={data}", f"size={size}", "text_encoder=none", "--batch-size",
            str(batch), "--steps", "100000", "evaluate.every=null", *FLAGS[name],
        ]  # fmt: skip
        words += ["--cpu", "1"] if arguments.tiny else ["--gpus", "1"]
        given = SimpleNamespace(settle_s=arguments.settle_s, seconds=arguments.seconds)
        return measure_command(words, given)
    request = {
        "data": str(data), "size": size, "batch": batch, "seconds": arguments.seconds,
        "workers": arguments.workers, "compile": name.endswith("compiled"),
    }  # fmt: skip
    argv = [sys.executable, str(Path(__file__).with_name("accelerate_loop.py"))]
    done = subprocess.run(
        [*argv, json.dumps(request)], capture_output=True, text=True, timeout=arguments.limit_s,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON lines are added here")
    parser.add_argument("--budget-s", type=float, default=560, help="seconds for all of it")
    parser.add_argument("--limit-s", type=float, default=170, help="for one of them")
    parser.add_argument("--only", nargs="*", default=[], help="contestants, or sizes")
    parser.add_argument("--seconds", type=float, default=15.0, help="measured, each")
    parser.add_argument("--settle-s", type=float, default=12.0, help="before")
    parser.add_argument("--workers", type=int, default=4, help="Accelerate's loader processes")
    parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.seconds = arguments.settle_s = 1.0
        arguments.workers = 1
    ends = time.monotonic() + arguments.budget_s
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    about = describe_machine() | {"command": "python " + " ".join(words)}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "swings")
        write_data(data, episodes=16 if arguments.tiny else 512, steps=128)
        for name, asked, expected_s in ORDER:
            if arguments.only and not {name, asked} & set(arguments.only):
                continue
            if not arguments.tiny and time.monotonic() + expected_s > ends:
                print(f"{name} {asked}: left out, {expected_s} s are more than is left")
                continue
            size, batch = ("tiny", 8) if arguments.tiny else (asked, BATCHES[asked])
            started = time.monotonic()
            try:
                figures = measure(name, size, batch, data, arguments)
            except (Exception, SystemExit) as error:
                figures = {"error": str(error)[-3000:]}
            record = {"work": asked, "contestant": name, "batch": batch, **figures}
            record["took_s"] = round(time.monotonic() - started, 1)
            rate = figures.get("samples_per_s")
            print(name, asked, f"{rate:,.0f} samples/s" if rate else figures["error"], flush=True)
            with arguments.out.open("a") as file:
                file.write(json.dumps({**record, "about": about}) + "\n")


if __name__ == "__main__":
    main()
