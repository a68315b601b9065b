"""What Phalanx's loop costs per step over a plain torch loop, on a CPU with a tiny model.

    python benchmarks/overhead.py [--epochs 8] [--rounds 5] [--write]

Same model, data, batch of 64, optimizer (fused AdamW), clipping and schedule; one core, one thread.
The plain loop fetches by a vectorised index and does nothing else: no logging, no evaluation, no
checkpoints. Phalanx has them all on. Both report the median of windows of ten steps; they take
turns, and the least of the rounds counts for each, because other work only ever adds to a time.
"""

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from peers.on_a_core import PEERS, peer_turns
from side_by_side import Table, run_child, take_turns, train, usable_cores

from phalanx.recipe.load import load_recipe

BATCH, LR, CLIP, WINDOW = 64, 1e-3, 1.0, 10
RECIPE = f"{Path(__file__).parent / 'tiny.py'}:Tiny"
SETTINGS = [
    *("--cpu", "1", "--batch-size", BATCH, "--precision", "fp32", "--lr", LR),
    *(f"optimizer.clip_norm={CLIP}", "schedule.name=cosine", "schedule.warmup=5%"),
]


def plain_loop(epochs):
    """Median microseconds per step of a hand-written loop on one device."""
    torch.set_num_threads(1)
    recipe = load_recipe(RECIPE, {})
    model, data = recipe.model(), recipe.data("train")
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=LR, fused=True)
    size = len(data)
    total = epochs * math.ceil(size / BATCH)
    warmup = int(0.05 * total)
    step, windows, since = 0, [], time.perf_counter()
    for _ in range(epochs):
        order = torch.randperm(size)
        for start in range(0, size, BATCH):
            ids = order[start : start + BATCH]
            x, y = data.x[ids], data.y[ids]
            if step < warmup:
                lr = LR * (step + 1) / warmup
            else:
                lr = LR * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2
            for group in optimizer.param_groups:
                group["lr"] = lr
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step % WINDOW == 0:
                now = time.perf_counter()
                windows.append((now - since) / WINDOW)
                since = now
    return 1e6 * statistics.median(windows[len(windows) // 5 :])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write to benchmarks/results")
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plain:
        print(json.dumps(plain_loop(arguments.epochs)))
        return
    core = usable_cores()[-1:]
    child = [__file__, "--plain", "--epochs", arguments.epochs]
    job = [RECIPE, "--epochs", arguments.epochs, *SETTINGS]
    table = Table(
        "overhead",
        "Overhead per step over a plain loop",
        "| what | us per step, least | median of rounds | over the plain loop |",
        f"python benchmarks/overhead.py --epochs {arguments.epochs} --rounds {arguments.rounds}",
        packages=[package for package, _ in PEERS.values()],
    )
    turns = take_turns(
        {
            "plain loop": lambda: run_child(child, cores=core),
            "phalanx train": lambda: 1e6 * BATCH / train(job, cores=core).rate(),
        }
        | peer_turns(core),
        arguments.rounds,
    )
    least = min(turns["plain loop"])
    for name, times in turns.items():
        over = min(times) - least
        table.add(name, f"{min(times):.1f}", f"{statistics.median(times):.1f}", f"{over:+.1f}")
    if arguments.write:
        table.write()


if __name__ == "__main__":
    main()
