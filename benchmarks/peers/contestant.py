"""One contestant at one work, in a process of its own; prints its figures as a line of JSON.

    python benchmarks/peers/contestant.py gpt2 phalanx [--seconds 15] [--tiny]

`--tiny` shrinks the work so that it can be tried on a CPU.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from meter import Meter, tell

HERE = Path(__file__).parent

# Every loop that is not Phalanx's: module, function, what it is called with.
LOOPS = {
    "plain": ("plain", "plain_loop", {}),
    "plain-compiled": ("plain", "tuned_loop", {}),
    "plain-graphs": ("plain", "tuned_loop", {"mode": "reduce-overhead"}),
    "whole-step-graph": ("plain", "graph_loop", {}),
    "hf-trainer": ("frameworks", "hf_trainer", {"compile": False}),
    "hf-trainer-compiled": ("frameworks", "hf_trainer", {"compile": True}),
    "accelerate": ("frameworks", "accelerate", {"compile": False}),
    "accelerate-compiled": ("frameworks", "accelerate", {"compile": True}),
    "lightning": ("frameworks", "lightning", {"compile": False}),
    "lightning-compiled": ("frameworks", "lightning", {"compile": True}),
    "compute-limit": ("photo_limits", "compute_limit", {}),
    "decode-limit": ("photo_limits", "decode_limit", {}),
    "decode-limit-drafted": ("photo_limits", "decode_limit", {"is_drafted": True}),
    "plain-photos-compiled": ("photo_limits", "compiled_from_folder", {}),
}

# What makes a work small enough to be tried on a CPU, on Phalanx's command line.
TINY = {
    "gpt2": "symbols=97 length=32 width=32 heads=2 depth=2 samples=256 test_samples=8",
    "policy": "width=32 heads=2 depth=2 of_observation=16 samples=256 test_samples=8",
    "resnet": "width=8 depths=[1,1,1,1] image_size=64",
}
FURTHER = {
    "phalanx": "",
    "phalanx-drafted": "is_drafted=true",
    "phalanx-second-start": "",
    "phalanx-first-step": "logging.every=1",
}


def measure_loop(arguments):
    """Figures of a loop that runs in this very process."""
    import importlib

    import torch
    from works import find_work

    device = "cuda" if torch.cuda.is_available() else "cpu"
    work = find_work(arguments.work)
    if arguments.tiny:
        work.shrunk()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    module, name, settings = LOOPS[arguments.contestant]
    run = partial(getattr(importlib.import_module(module), name), **settings)
    with tempfile.TemporaryDirectory() as output:
        more = {"output": output} if module == "frameworks" else {}
        if work.rows is None:
            more["folder"] = arguments.folder
        meter = Meter(
            work.batch,
            window=work.window,
            device=device,
            seconds=arguments.seconds,
            gate=arguments.gate,
        )
        run(work, device, meter, **more)
    return meter.figures()


def measure_phalanx(arguments):
    from phalanx_run import measure_command

    work, name = arguments.work, arguments.contestant
    words = [str(HERE / f"{work}.yaml"), *FURTHER[name].split()]
    if work == "resnet":
        words.append(f"folder={arguments.folder}")
    if arguments.tiny:
        words += ["--cpu", "1", "--batch-size", "4", *TINY[work].split()]
    is_start = name in ("phalanx-second-start", "phalanx-first-step")
    return measure_command(words, arguments, is_start=is_start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work")
    parser.add_argument("contestant")
    parser.add_argument("--seconds", type=float, default=15.0, help="measured, after settling")
    parser.add_argument("--settle-s", type=float, default=15.0, help="Phalanx only: not measured")
    parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
    parser.add_argument("--folder", help="photographs, for resnet")
    parser.add_argument("--threads", type=int, help="torch's threads")
    parser.add_argument("--gate", help="folder: wait there for one's turn, once settled")
    arguments = parser.parse_args()
    is_phalanx = arguments.contestant.startswith("phalanx")
    tell((measure_phalanx if is_phalanx else measure_loop)(arguments))


if __name__ == "__main__":
    main()
