"""One contestant at one size, in a process of its own; prints its figures as a line of JSON.

python benchmarks/lora/one_contestant.py 135m phalanx --folder FOLDER [--seconds 5] [--settle-s 5]
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from meter import Meter, tell
from models import SIZES

SETTINGS = {
    "hf-trainer": {"compile": False, "checkpointing": False},
    "hf-trainer-checkpointed": {"compile": False, "checkpointing": True},
    "hf-trainer-compiled": {"compile": True, "checkpointing": False},
}


def options_of(folder, size):
    """What is said to Phalanx's recipe; the peers read the same rows through it."""
    from peft_trainer import ALPHA, R

    return {
        "model": str(Path(folder) / "model"),
        "weights": "random",
        "data": str(Path(folder) / "rows.jsonl"),
        "max_length": size.length,
        "test_share": 0.01,  # it is evaluated at the start, before anything is measured
        "completions": 0,
        "r": R,
        "alpha": ALPHA,
    }


def measure_phalanx(size, arguments):
    from phalanx_run import measure_command

    words = ["lora", *(f"{k}={v}" for k, v in options_of(arguments.folder, size).items())]
    words += ["--steps", "100000", f"global_batch_size={size.batch}"]
    if arguments.work == "tiny":
        words += ["--cpu", "1"]
    figures = measure_command(words, arguments)
    figures["command"] = figures["command"].replace(str(arguments.folder), "FOLDER")
    return figures


def measure_peer(size, arguments):
    import torch
    from peft_trainer import train

    from phalanx.recipes.lora.options import LoraOptions
    from phalanx.recipes.lora.recipe import LoraRecipe

    device = "cuda" if torch.cuda.is_available() else "cpu"
    recipe = LoraRecipe(LoraOptions(**options_of(arguments.folder, size)))
    meter = Meter(
        size.batch, window=5, device=device, seconds=arguments.seconds, gate=arguments.gate
    )
    with tempfile.TemporaryDirectory() as output:
        train(
            Path(arguments.folder) / "model",
            size,
            recipe.data("train"),
            meter,
            output=output,
            **SETTINGS[arguments.contestant],
        )
    return meter.figures()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", choices=SIZES)
    parser.add_argument("contestant", choices=("phalanx", *SETTINGS))
    parser.add_argument("--folder", required=True, help="with the model's files and the rows")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured, after settling")
    parser.add_argument("--settle-s", type=float, default=5.0, help="Phalanx only: not measured")
    parser.add_argument("--gate", help="folder: wait there for one's turn, once settled")
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is to be had there, or waited for
    size = SIZES[arguments.work]
    is_phalanx = arguments.contestant == "phalanx"
    figures = (measure_phalanx if is_phalanx else measure_peer)(size, arguments)
    tell({**figures, "tokens_per_s": figures["samples_per_s"] * size.length})


if __name__ == "__main__":
    main()
