"""Predicted memory beside what torch's allocator reached on a GPU, and what checkpointing costs.

    python benchmarks/memory.py

Each row is a plain run of a few steps on one GPU: the prediction is the plan's `memory_bytes`, the
measurement the peak of `torch.cuda.max_memory_allocated` in the run's events.
"""

import argparse
import tempfile
from pathlib import Path

import torch

import phalanx
from phalanx.run.events import read_events

RECIPES = Path(__file__).with_name("memory_recipes.py")
STEPS = 12

CASES = [
    ("GptRecipe", {"attention": "fused"}, 8),
    ("GptRecipe", {"attention": "explicit"}, 8),
    ("GptRecipe", {"attention": "torch"}, 8),
    ("GptRecipe", {"width": 2048, "depth": 16, "heads": 16, "vocab": 8192}, 4),
    ("ConvRecipe", {}, 128),
]


def measure(recipe, options, batch, precision, checkpointing, folder):
    """Predicted and measured bytes, samples per second, losses."""
    result = phalanx.train(
        f"{RECIPES}:{recipe}",
        steps=STEPS,
        global_batch_size=2 * batch,
        micro_batch_size=batch,
        gradient_accumulation=2,
        precision=precision,
        activation_checkpointing=checkpointing,
        determinism="resume",
        devices={"gpus": [0]},
        options=options,
        optimizer={"clip_norm": 1.0},
        logging={"every": 1, "tensorboard": False},
        checkpoint={"every": None},
        output=str(folder),
    )
    run = Path(result.run)
    steps = [event.data for event in read_events(run / "events") if event.kind == "step"]
    predicted = phalanx.plan(run / "job.yaml").memory_bytes.value
    rates = sorted(step["samples_per_s"] for step in steps[2:])
    losses = [step["loss"] for step in steps]
    return predicted, steps[-1]["memory_bytes"], rates[len(rates) // 2], losses


def main():
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    lines = [
        "| model | precision | checkpointing | predicted MiB | measured MiB | off by | samples/s |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for recipe, options, batch in CASES:
            for precision in ("fp32", "bf16"):
                losses = {}
                for word in ("off", "on"):
                    predicted, measured, rate, losses[word] = measure(
                        recipe, options, batch, precision, word, Path(folder)
                    )
                    off = 100 * (predicted / measured - 1)
                    name = f"{recipe} {options or ''} x {batch}"
                    lines.append(
                        f"| {name} | {precision} | {word} | {predicted / 2**20:,.0f} "
                        f"| {measured / 2**20:,.0f} | {off:+.1f} % | {rate:,.0f} |"
                    )
                    print(lines[-1], flush=True)
                print("    same losses:", losses["off"] == losses["on"], losses["on"][-1])
    print(torch.__version__, torch.cuda.get_device_name())
    print("\n".join(lines))


if __name__ == "__main__":
    main()
