"""What it costs that threads of OpenMP spin while they wait for each other: steps a second of a
small convolution network on all cores, alone and beside other busy processes.

    python benchmarks/waiting_threads.py [--seconds 4] [--rounds 3] [--write]

Ranks get `GOMP_SPINCOUNT=10000` (phalanx.prepare.rank_environment) for what this shows.
"""

import argparse
import functools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from origin import usable_cores
from side_by_side import Table, run_child, take_turns

SETTINGS = {
    "spin as libgomp chooses": {},
    "**10,000 rounds**, what ranks get": {"GOMP_SPINCOUNT": "10000"},
    "1,000 rounds": {"GOMP_SPINCOUNT": "1000"},
    "sleep at once (OMP_WAIT_POLICY=passive)": {"OMP_WAIT_POLICY": "passive"},
}


def measure_steps(seconds):
    """Forward and backward of 12 blocks on 8 samples of 32 x 24 x 24."""
    import torch

    def block():
        convolution = torch.nn.Conv2d(32, 32, 3, padding=1)
        return torch.nn.Sequential(convolution, torch.nn.BatchNorm2d(32), torch.nn.SiLU())

    model = torch.nn.Sequential(*(block() for _ in range(12)))
    batch = torch.randn(8, 32, 24, 24)
    begun, steps = time.perf_counter(), -3  # the first ones allocate
    while steps < 1 or time.perf_counter() - begun < seconds:
        if steps == 0:
            begun = time.perf_counter()
        model(batch).sum().backward()
        model.zero_grad()
        steps += 1
    print(json.dumps(steps / (time.perf_counter() - begun)))


def beside(busy, seconds, rounds):
    """Steps a second of each setting while so many processes keep cores busy."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    argv = [__file__, "--child", "--seconds", seconds]
    contestants = {
        name: functools.partial(run_child, argv, env=setting) for name, setting in SETTINGS.items()
    }
    try:
        return take_turns(contestants, rounds)
    finally:
        for other in others:
            other.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write to benchmarks/results")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        measure_steps(given.seconds)
        return
    cores = len(usable_cores())
    beside_which = (0, cores, 4 * cores)
    found = {busy: beside(busy, given.seconds, given.rounds) for busy in beside_which}
    others = " | ".join(f"{busy} other busy processes" for busy in beside_which)
    table = Table(
        "waiting-threads", "Threads that wait: steps a second, by what they do meanwhile",
        f"| threads that wait | {others} |", "python benchmarks/waiting_threads.py",
    )  # fmt: skip
    for name in SETTINGS:
        each = (found[busy][name] for busy in beside_which)
        table.add(
            name, *(f"{statistics.median(r):.1f} ({min(r):.1f} to {max(r):.1f})" for r in each)
        )
    if given.write:
        table.write()


if __name__ == "__main__":
    main()
