"""One contestant at one work, in a process of its own; prints its figures as a line of JSON.

    python benchmarks/peers/contestant.py gpt2 phalanx [--seconds 15] [--tiny]

`--tiny` shrinks the work so that it can be tried on a CPU.
"""

import argparse
import json
import os
import sys
import tempfile
from functools import partial
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

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
PACKAGES = ("torch", "transformers", "accelerate", "lightning", "pytorch-lightning", "torchvision")


def measure_loop(arguments):
    """Figures of a loop that runs in this very process."""
    import importlib

    import torch
    from meter import Meter
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
    figures = {"batch": work.batch, **meter.figures()}
    if device == "cuda":
        figures["memory_bytes"] = torch.cuda.max_memory_reserved()
    return figures


def versions_of(packages):
    """Of those that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


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
    if arguments.contestant.startswith("phalanx"):
        from phalanx_run import measure_phalanx

        figures = measure_phalanx(arguments)
    else:
        figures = measure_loop(arguments)
    figures["versions"] = versions_of(PACKAGES)
    print(json.dumps(figures), flush=True)
    sys.stdout.flush()
    os._exit(0)  # loader processes and threads of the others may take their time


if __name__ == "__main__":
    main()
