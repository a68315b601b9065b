"""What channels last and cuDNN's search for kernels do to convolutional models, side by side.

    python benchmarks/planner/layouts.py --out layouts.jsonl [--budget-s 300] [--no-search]

A plain step of each model (autocast, fused AdamW) in both layouts, with and without the search,
each in a process of its own. A line is written as each ends.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

from measure import in_a_child
from points import MODELS

LONGEST_S = 90
STEPS = 10
WORKS = [
    ("ConvVae", "tf32", 192),
    ("SegmentationUnet", "bf16", 96),
    ("ResNet50", "bf16", 256),
    ("Yolo11n", "bf16", 64),
    ("MobileNet", "bf16", 128),
    ("EfficientNetB0", "fp16", 128),
    ("ConvNextTiny", "bf16", 64),
    ("Unet64", "bf16", 32),
]


def measure_layout(name, precision, micro, layout, search):
    """Runs in the child: seconds of the first step, milliseconds of later ones, and memory."""
    import torch

    from phalanx.engine.data.micro_batches import Fetcher, Request, move
    from phalanx.engine.strategies.precision import Precision
    from phalanx.planner.schema.micro_batches import Slot
    from phalanx.recipe.loading import load_recipe

    device = torch.device("cuda", 0)
    arithmetic = Precision(precision, device, is_channels_last=layout == "nhwc")
    arithmetic.configure()
    torch.backends.cudnn.benchmark = search
    recipe = load_recipe(f"{MODELS}:{name}", {})
    fetcher = Fetcher(recipe, recipe.data("train"), seed=0, is_shuffled=True)
    fetched = move(fetcher[Request(0, Slot(0, 0, micro), is_training=True)], device)
    model = arithmetic.lay_out(recipe.model().to(device))
    batch = arithmetic.convert_batch(fetched.batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step():
        with arithmetic.autocast():
            terms = recipe.loss(model, batch, fetched.keys)
            loss = sum(term.sum for term in terms.values()) / micro
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def wait(since):
        torch.cuda.synchronize()
        return time.perf_counter() - since

    begun = time.perf_counter()
    step()
    first_s = wait(begun)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    for _ in range(STEPS):
        step()
    return {
        "first_s": round(first_s, 2),
        "ms": round(1000 * wait(begun) / STEPS, 2),
        "gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget-s", type=float, default=300)
    parser.add_argument("--no-search", action="store_true", help="only without cuDNN's search")
    arguments = parser.parse_args()
    begun = time.monotonic()
    searches = (False,) if arguments.no_search else (True, False)
    with arguments.out.open("a", encoding="utf-8") as out:
        for work, layout, search in itertools.product(WORKS, ("nchw", "nhwc"), searches):
            if time.monotonic() - begun > arguments.budget_s:
                print("time is up", flush=True)
                break
            named = dict(zip(("name", "precision", "micro"), work, strict=True))
            named |= {"layout": layout, "search": search}
            answer = in_a_child(measure_layout, *work, layout, search, limit_s=LONGEST_S)
            line = json.dumps(named | answer)
            out.write(line + "\n")
            out.flush()
            print(line, flush=True)


if __name__ == "__main__":
    main()
