"""Which rate AdamW wants for detection: the preset `large_batch` with rates around its own, at the
batch that the rate is stated for and at four times that, the same epochs each.

    python benchmarks/detection/rates.py --out rates.jsonl --budget-s 400
    python benchmarks/detection/report.py rates.jsonl --write

Run it in the recipe's environment (`make detection`). A line of JSON is written as each training
ends, `--small` is for a CPU.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from at_once import Training, train_all
from origin import CPU_ONLY, describe_origin

from phalanx.recipes.detection.shapes import make_shapes
from phalanx.run.event_kinds import Evaluate
from phalanx.run.events import read_events

RATES = (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.01, 0.04)
WORK = ("epochs", "images", "test_images", "size")
"""The flags that say what is trained, and stand in a record."""
TIMES = 4  # the larger batch
LARGE_RATES = (0.001, 0.002, 0.004, 0.008)
"""None, the square root and all of the larger batch, and more, for a base of 0.001."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON lines are added here")
    parser.add_argument("--budget-s", type=float, default=400, help="seconds for all of it")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--test-images", type=int, default=300)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rates", type=float, nargs="*", default=RATES)
    parser.add_argument("--large-rates", type=float, nargs="*", default=LARGE_RATES)
    parser.add_argument("--cores", type=int, default=2, help="of each training")
    parser.add_argument("--small", action="store_true", help="small enough for a CPU")
    given = parser.parse_args()
    if given.small:
        given.images, given.test_images, given.size, given.batch = 128, 60, 64, 16
        given.seeds, given.cores, given.large_rates = 1, 1, []
    about = describe_origin("ultralytics")
    asked = [
        (batch, rate, seed)
        for seed in range(given.seeds)
        for batch, rates in ((given.batch, given.rates), (TIMES * given.batch, given.large_rates))
        for rate in rates
    ]
    with tempfile.TemporaryDirectory(prefix="rates-") as folder:
        data = make_shapes(
            Path(folder, "shapes"), train=given.images, test=given.test_images, side=given.size
        )
        has_gpu = about["machine"] != CPU_ONLY
        trainings = [
            training(batch, rate, seed, data, given, Path(folder), has_gpu=has_gpu)
            for batch, rate, seed in asked
        ]
        train_all(trainings, out=given.out, about=about, budget_s=given.budget_s)


def name_of(batch, rate):
    return f"batch-{batch}-rate-{rate:g}"


def training(batch, rate, seed, data, given, folder, *, has_gpu):
    name = f"{name_of(batch, rate)}-{seed}"
    words = [
        "detection", "preset=large_batch", f"data={data}", "--imgsz", str(given.size),
        "--batch", str(batch), "--epochs", str(given.epochs), "--seed", str(seed),
        f"optimizer.lr={rate}", f"optimizer.lr_batch={batch}", "--cache", "ram", "--fast", "off",
        "pictures=0", "evaluate.every=null", "checkpoint.every=null", "close_mosaic=20",
        "--output", str(folder), "--name", name,
    ]  # fmt: skip
    # What is compiled takes longer to compile than this to train; a graph is quick to make.
    words += (
        ["--gpus", "1", "loader.workers=1", "cuda_graph=on"]
        if has_gpu
        else ["--cpu", "1", "loader.workers=0"]
    )

    def figures():
        events = read_events(folder / name / "events")
        metrics = [e.body.metrics for e in events if isinstance(e.body, Evaluate)][-1]
        return {key: metrics[key] for key in ("mAP50", "mAP50-95")}

    argv = [sys.executable, "-m", "phalanx", "train", *words]
    work = {name: getattr(given, name) for name in WORK}
    facts = {"batch": batch, "rate": rate, "work": work}
    log = folder / f"{name}.log"
    return Training(name_of(batch, rate), seed, given.cores, argv, figures, log, facts=facts)


if __name__ == "__main__":
    main()
