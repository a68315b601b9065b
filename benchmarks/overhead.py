"""What Phalanx's loop costs per step over a plain torch loop, on a CPU with a tiny model.

    .venv-peers/bin/python benchmarks/overhead.py [--ranks 2] [--epochs 6] [--rounds 5] [--write]

The peers are in the table where they are installed (`make peers`).

Same model, data, batch of 64 per rank, optimizer (fused AdamW), clipping and schedule; one core and
one thread per rank. The plain loop fetches by a vectorised index and does nothing else: no logging,
no evaluation, no checkpoints; on several ranks it is DDP started by torchrun. Phalanx has them all
on, and its supervisor shares the core. Both report the time of windows of ten steps, and take
turns. The windows of all rounds are put together; the tenth that was disturbed least counts,
because what else the machine does only ever adds to a time.

What events and telemetry cost is timed apart: reading a loss and a norm, the memory of the process
and an event's line, which a run does every `logging.every` = 10 steps.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from origin import usable_cores
from peers.on_a_core import PEERS, peer_turns
from side_by_side import Table, run_child, take_turns, train

from phalanx.engine.process.telemetry import memory_bytes
from phalanx.recipe.loading import load_recipe
from phalanx.run.event_kinds import Step
from phalanx.run.events import EventWriter

BATCH, LR, CLIP, WINDOW = 64, 1e-3, 1.0, 10
RECIPE = f"{Path(__file__).parent / 'tiny.py'}:Tiny"
SETTINGS = [
    *("--precision", "fp32", "--lr", LR, "optimizer.lr_rule=none"),
    *(f"optimizer.clip_norm={CLIP}", "schedule.name=cosine", "schedule.warmup=5%"),
]


def plain_loop(epochs, width):
    """Microseconds per step of each window of a hand-written loop, on one rank or under DDP."""
    torch.set_num_threads(1)
    recipe = load_recipe(RECIPE, {"width": width})
    model, data = recipe.model(), recipe.data("train").arrays
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=LR, fused=True)
    size = len(data["x"])
    total = epochs * math.ceil(size / BATCH / ranks)
    warmup = int(0.05 * total)
    step, windows, since = 0, [], time.perf_counter()
    for epoch in range(epochs):
        order = torch.randperm(size, generator=torch.Generator().manual_seed(epoch))
        for start in range(rank * BATCH, size, BATCH * ranks):
            ids = order[start : start + BATCH]
            x, y = data["x"][ids], data["y"][ids]
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
                windows.append(1e6 * (now - since) / WINDOW)
                since = now
    return windows if rank == 0 else None


def phalanx(arguments, ranks, *more):
    """The same of `phalanx train`, from its events."""
    settings = [f"options.width={arguments.width}", *SETTINGS, *more]
    sizes = ["--cpu", ranks, "--batch-size", BATCH * ranks]
    trained = train(
        [RECIPE, "--epochs", arguments.epochs * ranks, *sizes, *settings],
        cores=usable_cores()[-ranks:],
    )
    return [1e6 * BATCH * ranks / event.body.samples_per_s for event in trained.steps]


def plain(arguments, ranks):
    """The same of the plain loop, in a process of its own."""
    argv = [__file__, "--plain", "--epochs", arguments.epochs * ranks, "--width", arguments.width]
    if ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        argv = [*launcher, *argv]
    return run_child(argv, cores=usable_cores()[-ranks:])


def undisturbed(rounds):
    """Microseconds per step: the tenth of all windows that was quickest, and half of them."""
    windows = [time for windows in rounds for time in windows[len(windows) // 5 :]]
    deciles = statistics.quantiles(windows, n=10)
    return deciles[0], deciles[4]


def alone(arguments, command):
    table = Table(
        "overhead",
        "Overhead per step over a plain loop",
        "| what | us per step, quickest tenth of windows | median | over the plain loop |",
        command,
        packages=[package for package, _ in PEERS.values()],
    )
    turns = take_turns(
        {
            "plain loop": lambda: plain(arguments, 1),
            "phalanx train": lambda: phalanx(arguments, 1),
        }
        | peer_turns(usable_cores()[-1:]),
        arguments.rounds,
    )
    base = undisturbed(turns["plain loop"])[0]
    for name, rounds in turns.items():
        quick, median = undisturbed(rounds)
        table.add(name, f"{quick:.1f}", f"{median:.1f}", f"{quick - base:+.1f}")
    logged_us, step_us = time_logging(), undisturbed(turns["phalanx train"])[0]
    table.say(
        f"\nEvents and telemetry take {logged_us:.1f} us per logged step: one in {WINDOW}, so "
        f"{100 * logged_us / WINDOW / step_us:.2f} % of a step of {step_us:.0f} us."
    )
    return table


def time_logging():
    """Microseconds that a logged step takes for being logged: the quickest tenth."""
    loss, norm, cpu = torch.rand(()), torch.rand(()), torch.device("cpu")
    times = []
    with tempfile.TemporaryDirectory() as folder:
        writer = EventWriter(Path(folder), "rank-0")
        for step in range(2000):
            started = time.perf_counter()
            (value,) = torch.stack([loss.to(torch.float32)]).tolist()
            writer.write(
                Step(
                    step=step,
                    epoch=round(step / 1024, 6),
                    samples=64 * step,
                    loss=value,
                    terms={"loss": value},
                    lr=LR,
                    grad_norm=float(norm),
                    samples_per_s=round(64 / 3e-4, 3),
                    memory_bytes=memory_bytes(cpu),
                    loss_scale=None,
                )
            )
            times.append(1e6 * (time.perf_counter() - started))
        writer.close()
    return statistics.quantiles(times, n=10)[0]


def together(arguments, command):
    ranks = arguments.ranks
    table = Table(
        f"{ranks}-ranks",
        f"{ranks} CPU ranks over gloo: how DDP scales, plain and in Phalanx",
        f"| what | us per step on 1 rank | on {ranks} ranks | efficiency | by medians |",
        command,
    )
    turns = take_turns(
        {
            ("plain loop", 1): lambda: plain(arguments, 1),
            ("phalanx train", 1): lambda: phalanx(arguments, 1),
            ("plain loop", ranks): lambda: plain(arguments, ranks),
            ("phalanx train", ranks): lambda: phalanx(arguments, ranks),
        },
        arguments.rounds,
    )
    for name in ("plain loop", "phalanx train"):
        one, many = undisturbed(turns[name, 1]), undisturbed(turns[name, ranks])
        table.add(
            name, f"{one[0]:.0f}", f"{many[0]:.0f}",
            f"{one[0] / many[0]:.2f}", f"{one[1] / many[1]:.2f}",
        )  # fmt: skip
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--width", type=int, default=None)
    parser.add_argument("--write", action="store_true", help="write to benchmarks/results")
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    # Over gloo an exchange takes longer than a tiny model's step: a wider one on several ranks.
    arguments.width = arguments.width or (64 if arguments.ranks == 1 else 1024)
    if arguments.plain:
        windows = plain_loop(arguments.epochs, arguments.width)
        if windows is not None:
            print(json.dumps(windows))
        return
    command = (
        f"python benchmarks/overhead.py --ranks {arguments.ranks} --epochs {arguments.epochs} "
        f"--rounds {arguments.rounds} --width {arguments.width}"
    )
    table = (alone if arguments.ranks == 1 else together)(arguments, command)
    if arguments.write:
        table.write()


if __name__ == "__main__":
    main()
