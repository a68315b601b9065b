"""Predicted against measured peak memory on this GPU, one short `phalanx train` per point.

    python benchmarks/memory.py [--write] [--jobs 6]

Predicted is the plan's own figure (`memory_bytes` in plan.json), measured is what torch's allocator
held at its peak (`memory_bytes` in the last step event). The processes of several points share the
GPU at the same time, which does not change what each of them allocates.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import torch

from phalanx.run.event_kinds import Step
from phalanx.run.events import read_events

ROOT = Path(__file__).parents[1]
LEARNERS = ROOT / "tests" / "fixtures" / "recipes" / "learners.py"
RESULTS = Path(__file__).parent / "results"

GPT = ("SequenceRecipe", "width=768 heads=12 depth=12 length=512 symbols=50257 samples=256")
SMALL = ("SequenceRecipe", "width=256 heads=8 depth=4 length=256 symbols=1000 samples=256")
CONV = ("BarRecipe", "size=128 width=64 samples=512")
SHARED = "devices.gpus=[0,0] devices.backend=gloo"

# name, recipe and options, micro-batch, further settings
POINTS = [
    ("decoder 124M", GPT, 8, "precision=bf16 activation_checkpointing=off"),
    ("decoder 124M", GPT, 8, "precision=bf16 activation_checkpointing=on"),
    ("decoder 124M", GPT, 16, "precision=bf16 activation_checkpointing=off"),
    ("decoder 124M", GPT, 16, "precision=bf16 activation_checkpointing=on"),
    ("decoder 124M", GPT, 8, "precision=fp32 activation_checkpointing=off"),
    ("decoder 124M", GPT, 8, "precision=fp32 activation_checkpointing=on"),
    ("decoder 124M", GPT, 8, "precision=fp16 activation_checkpointing=off"),
    ("decoder 124M", GPT, 8, "precision=tf32 activation_checkpointing=on"),
    ("decoder 124M", GPT, 8, "precision=bf16 optimizer.name=sgd"),
    ("decoder 124M", GPT, 8, "precision=bf16 ema.decay=0.999"),
    ("decoder 4M", SMALL, 32, "precision=bf16 activation_checkpointing=off"),
    ("decoder 4M", SMALL, 32, "precision=bf16 activation_checkpointing=on"),
    ("decoder 4M", SMALL, 128, "precision=fp32 activation_checkpointing=on"),
    ("convolutions", CONV, 64, "precision=bf16 activation_checkpointing=off"),
    ("convolutions", CONV, 64, "precision=bf16 activation_checkpointing=on"),
    ("convolutions", CONV, 64, "precision=fp32 activation_checkpointing=off"),
    ("convolutions", CONV, 128, "precision=fp32 activation_checkpointing=on"),
    ("decoder 124M, fsdp", GPT, 8, f"{SHARED} strategy=fsdp precision=bf16"),
    ("decoder 124M, fsdp", GPT, 8, f"{SHARED} strategy=fsdp precision=fp32"),
    ("decoder 124M, ddp", GPT, 8, f"{SHARED} strategy=ddp precision=bf16"),
]


def measure(point):
    """(predicted, measured) bytes of one point."""
    _, (recipe, options), micro, settings = point
    ranks = 2 if SHARED in settings else 1
    argv = [sys.executable, "-m", "phalanx", "train", f"{LEARNERS}:{recipe}", "--steps", "4"]
    argv += ["--batch-size", str(micro * ranks), *options.split(), *settings.split()]
    argv += ["checkpoint.every=null", "evaluate.every=null", "logging.every=1"]
    argv += ["evaluate.batch_size=1", "logging.tensorboard=false"]
    if ranks == 1:
        argv += ["devices.gpus=[0]"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            return None, done.stderr[-2000:]
        run = Path(folder, "runs", "latest")
        plan = json.loads((run / "plan.json").read_text())
        found = [event.body for event in read_events(run / "events")]
        steps = [body for body in found if isinstance(body, Step)]
    return plan["predicted"]["memory_bytes"]["value"], max(step.memory_bytes for step in steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=6, help="points measured at a time")
    parser.add_argument("--write", action="store_true", help="write to benchmarks/results")
    arguments = parser.parse_args()
    lines = [
        "# Peak memory: predicted by the plan, measured by torch's allocator",
        "",
        f"- date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"- machine: {torch.cuda.get_device_name(0)}, {len(os.sched_getaffinity(0))} CPU cores",
        f"- versions: python {platform.python_version()}, torch {torch.__version__}",
        "- command: python benchmarks/memory.py",
        "",
        "| model | micro-batch | settings | predicted MiB | measured MiB | error |",
        "|---|--:|---|--:|--:|--:|",
    ]
    print("\n".join(lines), flush=True)
    errors = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for point, (predicted, measured) in zip(POINTS, pool.map(measure, POINTS), strict=True):
            name, _, micro, settings = point
            settings = settings.replace(SHARED, "2 ranks on one GPU").strip()
            if predicted is None:
                print(f"FAILED {name} {settings}: {measured}", flush=True)
                continue
            errors.append(predicted / measured - 1)
            lines.append(
                f"| {name} | {micro} | {settings} | {predicted / 2**20:,.0f} | "
                f"{measured / 2**20:,.0f} | {100 * errors[-1]:+.1f} % |"
            )
            print(lines[-1], flush=True)
    sizes = [abs(error) for error in errors]
    lines.append("")
    lines.append(
        f"{len(sizes)} points: median |error| {100 * statistics.median(sizes):.1f} %, "
        f"worst {100 * max(sizes):.1f} %."
    )
    print(lines[-1], flush=True)
    if arguments.write:
        path = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-memory-runs-gpu.md"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
