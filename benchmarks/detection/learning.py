"""What Phalanx's detection recipe learns beside Ultralytics' own trainer: the same images, epochs,
batch, augmentation, optimizer and rates, some seeds each, on one rank and on two.

    python benchmarks/detection/learning.py --out learning.jsonl --seeds 5
    python benchmarks/detection/report.py learning.jsonl --write

Run it in the recipe's environment (`make detection`). A line of JSON is written as each training
ends; what is in the file already is not trained again. Both evaluate the averaged weights of the
last epoch with Ultralytics' metrics.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from side_by_side import commit_of_tree, versions
from ultralytics_trainer import AUGMENTATION

from phalanx.recipes.detection.shapes import make_shapes
from phalanx.run.events import read_events

HERE = Path(__file__).parent
CONTESTANTS = ("phalanx-1", "ultralytics", "phalanx-2")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--test-images", type=int, default=80)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--only", nargs="*", default=CONTESTANTS)
    given = parser.parse_args()
    done = set()
    if given.out.exists():
        lines = map(json.loads, given.out.read_text().splitlines())
        done = {(line["contestant"], line["seed"]) for line in lines if "mAP50-95" in line}
    work = {k: v for k, v in vars(given).items() if k not in ("out", "seeds", "only")}
    with tempfile.TemporaryDirectory(prefix="learning-") as folder:
        data = make_shapes(
            Path(folder, "shapes"), train=given.images, test=given.test_images, side=given.size
        )
        for seed in range(given.seeds):
            for contestant in given.only:
                if (contestant, seed) in done:
                    continue
                record = train(contestant, seed, data, given, Path(folder))
                record = {"contestant": contestant, "seed": seed, "work": work, **record}
                print(json.dumps(record), flush=True)
                with given.out.open("a") as file:
                    file.write(json.dumps({**record, "about": about()}) + "\n")


def about():
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "versions": versions("torch", "ultralytics"),
        "commit": commit_of_tree(),
        "command": " ".join(sys.argv),
    }


def train(contestant, seed, data, given, folder):
    started = time.perf_counter()
    if contestant == "ultralytics":
        figures = train_ultralytics(seed, data, given, folder)
    else:
        figures = train_phalanx(seed, data, given, folder, ranks=int(contestant[-1]))
    return {**figures, "seconds": round(time.perf_counter() - started, 1)}


def train_phalanx(seed, data, given, folder, *, ranks):
    name = f"phalanx-{ranks}-{seed}"
    job = {
        "recipe": "detection",
        "name": name,
        "output": str(folder),
        "seed": seed,
        "epochs": given.epochs,
        "global_batch_size": given.batch,
        "micro_batch_size": given.batch // ranks,
        # Ultralytics takes the statistics of BatchNorm over the images of a GPU.
        "sync_batchnorm": False,
        "devices": {"cpu": ranks},
        "optimizer": {
            "name": "adamw",
            "lr": given.lr,
            "weight_decay": 0.0005,
            "betas": [0.9, 0.999],
            "clip_norm": 10.0,
        },
        "schedule": {"name": "linear", "warmup": "3 epochs", "min_lr_ratio": 0.01},
        "ema": {"decay": 0.9999, "ramp": 2000, "buffers": True},
        "evaluate": {"every": None, "batch_size": 2 * given.batch},
        "options": {
            "data": str(data),
            "model": "yolo11n",
            "image_size": given.size,
            "pictures": 0,
            **AUGMENTATION,
        },
    }
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(job))
    run([sys.executable, "-m", "phalanx", "train", str(file)])
    events = [event for event in read_events(folder / name / "events") if event.kind == "evaluate"]
    metrics = events[-1].data["metrics"]
    return {key: metrics[key] for key in ("mAP50", "mAP50-95", "precision", "recall")}


def train_ultralytics(seed, data, given, folder):
    out = folder / f"ultralytics-{seed}.json"
    request = {
        "data": str(data),
        "epochs": given.epochs,
        "batch": given.batch,
        "nbs": given.batch,  # an optimizer step after each batch
        "imgsz": given.size,
        "seed": seed,
        "optimizer": "AdamW",
        "lr0": given.lr,
        "momentum": 0.9,
        "device": "cpu",
        "workers": 0,
        "project": str(folder),
        "name": f"ultralytics-{seed}",
        "val": False,  # after the last epoch alone
    }
    script = HERE / "ultralytics_trainer.py"
    run([sys.executable, str(script), json.dumps(request), str(out)])
    return json.loads(out.read_text())


def run(command):
    # Cores are shared with whatever else runs: threads that spin take them from it.
    env = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{command[:4]} ended with {done.returncode}:\n{done.stdout[-3000:]}"
            f"\n{done.stderr[-3000:]}"
        )


if __name__ == "__main__":
    main()
