"""Predicted speed-ups for the machines that five teams describe, beside what they hope for.

    python benchmarks/planner/guides.py [--write]

Several GPUs are not at hand, so nothing is measured here, and nothing is fitted to these figures.
Published measurements that come close are in the last rows. `--write` also keeps the traces that
tests/unit/planner/test_guides.py plans with.
"""

import argparse
import json
import platform
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.nn.functional as F
from attention import VisionTransformer
from denoising import CrossBlock, waves
from points import MODELS
from synthetic import Sized, Synthetic, normal, pixels, scaled
from torch import nn

from phalanx.codec import to_json
from phalanx.job.load import load_job
from phalanx.machine import parse_machine
from phalanx.planner.scaling import scaling_table
from phalanx.recipe import Term
from phalanx.tracing.trace import trace_recipe

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "tests" / "fixtures" / "traces"
RESULTS = ROOT / "benchmarks" / "results"


class SeeingOptions(Sized):
    images: int = 6  # three cameras, now and one moment ago
    size: int = 384
    patch: int = 14
    vision: int = 1152
    vision_depth: int = 27
    actions: int = 64
    of_action: int = 128
    width: int = 1024
    heads: int = 16
    depth: int = 10


class SeeingTransformer(nn.Module):
    """A diffusion transformer of 170M parameters over actions, which looks at what a frozen vision
    transformer of SigLIP's size (so400m-patch14-384) makes of its images in every step."""

    def __init__(self, options):
        super().__init__()
        width, vision = options.width, options.vision
        self.eye = VisionTransformer(
            size=options.size, patch=options.patch, width=vision, heads=16,
            depth=options.vision_depth, classes=1,
        )  # fmt: skip
        self.eye.requires_grad_(requires_grad=False)
        self.width, self.seen = width, nn.Linear(vision, width)
        self.action, self.last = nn.Linear(options.of_action, width), nn.Linear(width, 128)
        self.place = nn.Parameter(torch.zeros(1, options.actions, width))
        self.blocks = nn.ModuleList(CrossBlock(width, options.heads) for _ in range(options.depth))

    def forward(self, noisy, moment, images):
        with torch.no_grad():
            x = self.eye.patches(images.flatten(0, 1)).flatten(2).transpose(1, 2)
            x = self.eye.norm(self.eye.blocks(x + self.eye.place[:, 1:]))
        seen = self.seen(x.unflatten(0, images.shape[:2]).flatten(1, 2))
        x = self.action(noisy) + self.place + waves(moment, self.width)[:, None]
        for block in self.blocks:
            x = block(x, seen)
        return self.last(x)


class SeeingPolicy(Synthetic):
    Options = SeeingOptions
    held = 4

    def model(self):
        return SeeingTransformer(self.options)

    def rows(self, count, generator):
        options = self.options
        images = pixels(count * options.images, options.size, generator)
        return {
            "images": images.unflatten(0, (count, options.images)),
            "actions": normal(count, options.actions, options.of_action, generator=generator),
            "moment": torch.rand(count, generator=generator),
        }

    def loss(self, model, batch, keys):
        actions = batch["actions"]
        found = model(actions, batch["moment"], scaled(batch["images"]))
        total = F.mse_loss(found.float(), actions, reduction="sum") / actions[0].numel()
        return {"noise": Term(total, len(actions))}


# what, machine, recipe, job keys, {ranks: (least, most) that the guide, or a measurement, has}
CASES = [
    (
        "G1, YOLO11n at 640, 16 of each GPU",
        "16x RTX 2080", "Yolo11n", {"batch_per_gpu": 16}, {16: (13.6, 13.6)},
    ),
    (
        "G2, 170M diffusion transformer with its vision encoder, 16 in all",
        "2x RTX 4090", "SeeingPolicy", {"global_batch_size": 16}, {2: (1.8, 1.9)},
    ),
    (
        "G4 and G5, 60M planner, 32 of each GPU",
        "8x A100-80", "BevPlanner60M", {"batch_per_gpu": 32},
        {2: (1.8, 1.9), 4: (3.5, 3.8), 8: (6.5, 7.0)},
    ),
    (
        "340M transformer, 2 of each GPU: well under 4",
        "8x RTX 3090", "Dense340M", {"batch_per_gpu": 2}, {8: (0.0, 4.0)},
    ),
    (
        "published: ResNet-152 and ViT-B on 8 A100, DDP (willgpaik, pytorch-ddp-bench)",
        "8x A100-80", "VitBase", {"batch_per_gpu": 256}, {8: (7.79, 7.84)},
    ),
    (
        "published: ResNet-50 on RTX 3090, 256 of each (server-gear.com, tf_cnn_benchmarks)",
        "8x RTX 3090", "ResNet50", {"batch_per_gpu": 256},
        {2: (1.93, 1.93), 4: (3.61, 3.61), 8: (6.23, 6.23)},
    ),
    (
        "published: ResNet-50 on RTX 3090, 64 of each (the same)",
        "8x RTX 3090", "ResNet50", {"batch_per_gpu": 64},
        {2: (1.78, 1.78), 4: (2.73, 2.73), 8: (3.93, 3.93)},
    ),
]  # fmt: skip


def trace_of(recipe):
    """What planning needs of a recipe in half precision, traced here."""
    file = __file__ if recipe == "SeeingPolicy" else MODELS
    trace, findings = trace_recipe(f"{file}:{recipe}", {})
    assert trace is not None, findings
    return trace


def keep(trace, recipe):
    """Write the part of a trace that the tests plan with."""
    record = to_json(trace) | {"recipe_fingerprint": recipe, "fetch_line": None, "fetch_s": None}
    for name in ("operators", "activation_bytes", "checkpointed_bytes"):
        record[name] = {key: value for key, value in record[name].items() if "bf16" in key}
    record["checkpointed_operators"] = {}
    TRACES.mkdir(parents=True, exist_ok=True)
    (TRACES / f"{recipe}.json").write_text(json.dumps(record) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    lines = [
        "# Predicted speed-ups for machines that are not at hand",
        "",
        f"- date: {datetime.now(UTC):%Y-%m-%d}",
        f"- versions: python {platform.python_version()}, torch {torch.__version__}",
        "- command: python benchmarks/planner/guides.py",
        "",
        "| what | machine | ranks | predicted | between | theirs | efficiency |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    traces = {}
    for what, machine, recipe, keys, theirs in CASES:
        if recipe not in traces:
            traces[recipe] = trace_of(recipe)
            if arguments.write and not what.startswith("published"):
                keep(traces[recipe], recipe)
        job = load_job({"recipe": "guide.py:Guide", "steps": 1000, **keys}).job
        for row in scaling_table(job, parse_machine(machine), traces[recipe], list(theirs)):
            low, high = row.speedup_range
            least, most = theirs[row.ranks]
            hoped = f"{least:g}" if least == most else f"{least:g} to {most:g}"
            lines.append(
                f"| {what} | {machine} | {row.ranks} | {row.speedup:.2f} | {low:.2f} to "
                f"{high:.2f} | {hoped} | {100 * row.efficiency:.0f} % |"
            )
    print("\n".join(lines))
    if arguments.write:
        path = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-guides-predicted.md"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
