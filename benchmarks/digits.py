"""The digits recipe: `phalanx train` beside a plain torch loop, in one run on this machine.

    python benchmarks/digits.py [--epochs 40] [--write]

Same model, data, batch, optimizer, clipping and schedule. Phalanx's figures come from the events of
a plain `phalanx train`; the plain loop is what a person writes for one device. With --write the
table lands in benchmarks/results/ with date, machine, versions and command.
"""

import argparse
import math
import statistics
import time

import torch
from origin import usable_cores
from side_by_side import Table, train

from phalanx.recipe.loading import load_recipe
from phalanx.run.event_kinds import Evaluate

BATCH = 64


def plain_loop(epochs, device, precision):
    """Median samples per second of a hand-written loop, without evaluation and saving."""
    recipe = load_recipe("digits", {})
    model = recipe.model().to(device)
    data = recipe.data("train")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, fused=True)
    steps = epochs * math.ceil(len(data) / BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    rates = []
    for epoch in range(epochs):
        order = torch.randperm(len(data)).numpy()
        _wait(device)
        started = time.perf_counter()
        for start in range(0, len(data), BATCH):
            ids = order[start : start + BATCH]
            batch = data.__getitems__(ids, ids + epoch)
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
                term = recipe.loss(model, batch, None)["cross_entropy"]
                loss = term.sum / term.weight
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            schedule.step()
        _wait(device)
        rates.append(len(data) / (time.perf_counter() - started))
    return statistics.median(rates[1:]), None, None


def _wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def phalanx(epochs, arguments):
    """Median samples per second, seconds to the first logged step, final accuracy."""
    quiet = ["evaluate.every=null", "checkpoint.every=null"]
    trained = train(["digits", "--epochs", epochs, *arguments, *quiet])
    evaluations = [e.body for e in trained.events if isinstance(e.body, Evaluate)]
    return trained.rate(), trained.first_step_s, evaluations[-1].metrics["accuracy"]


def measure(epochs):
    """Rows: what, samples/s, ratio to the plain loop, seconds to the first step, accuracy."""
    if torch.cuda.is_available():
        settings = [("cuda", p, ["--gpus", "1"], 1) for p in ("fp32", "tf32", "bf16", "fp16")]
    else:
        settings = [("cpu", "fp32", ["--cpu", "1"], 1), ("cpu", "fp32", ["--cpu", "2"], 2)]
    for device, precision, arguments, ranks in settings:
        threads = max(1, len(usable_cores()) // ranks)
        torch.set_num_threads(threads)
        plain, _, _ = plain_loop(epochs, device, precision)
        yield f"plain loop, {device}, {precision}, {threads} threads", plain, 1.0, None, None
        got = phalanx(epochs, [*arguments, "--precision", precision])
        name = f"phalanx, {device}, {precision}, {ranks} rank{'s' * (ranks > 1)}"
        yield name, got[0], got[0] / plain, got[1], got[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--write", action="store_true", help="write to benchmarks/results")
    arguments = parser.parse_args()
    table = Table(
        "digits",
        "digits: phalanx train beside a plain torch loop",
        "| what | samples/s | of the plain loop | start to first logged step | accuracy |",
        f"python benchmarks/digits.py --epochs {arguments.epochs}",
    )
    for name, rate, ratio, first_s, accuracy in measure(arguments.epochs):
        first = f"{first_s:.1f} s" if first_s else ""
        reached = f"{accuracy:.4f}" if accuracy else ""
        table.add(name, f"{rate:,.0f}", f"{ratio:.2f}", first, reached)
    if arguments.write:
        table.write()


if __name__ == "__main__":
    main()
