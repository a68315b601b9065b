"""What Phalanx's detection recipe learns beside Ultralytics' own trainer: the same images, epochs,
batch, augmentation, optimizer and rates, some seeds each, on one rank and on two.

    python benchmarks/detection/learning.py --out learning.jsonl --seeds 5 --budget-s 540
    python benchmarks/detection/report.py learning.jsonl --write

Run it in the recipe's environment (`make detection`). As many as there are cores for are trained
at a time. With a GPU all share it, also the two ranks of one training, which then talk by gloo
(NCCL refuses two ranks on a GPU). A line of JSON is written as each training ends; what is in the
file already is not trained again. All evaluate the averaged weights of the last epoch with
Ultralytics' metrics, in fp32.
"""

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from at_once import Training, train_all
from origin import CPU_ONLY, describe_origin
from ultralytics_trainer import AUGMENTATION

from phalanx.recipes.detection.shapes import make_shapes
from phalanx.run.event_kinds import Evaluate, Step
from phalanx.run.events import read_events

HERE = Path(__file__).parent
CONTESTANTS = ("phalanx-2", "phalanx-1", "ultralytics")
"""In the order of what they take: the longest first."""
LEAST_WARMUP = 100
WORK = ("model", "epochs", "images", "test_images", "size", "batch", "lr", "close_mosaic")
"""The flags that say what is trained, and stand in a record."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON lines are added here")
    parser.add_argument("--budget-s", type=float, default=540, help="seconds for all of it")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--model", default="yolo11n", help="a name, or a .yaml")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--images", type=int, default=320)
    parser.add_argument("--test-images", type=int, default=300)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--close-mosaic", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=CONTESTANTS)
    parser.add_argument("--cores", type=int, default=2, help="of each training")
    parser.add_argument("--workers", type=int, default=1, help="loader processes on a GPU, each")
    given = parser.parse_args()
    about = describe_origin("ultralytics")
    with tempfile.TemporaryDirectory(prefix="learning-") as folder:
        data = make_shapes(
            Path(folder, "shapes"), train=given.images, test=given.test_images, side=given.size
        )
        make = Maker(data, given, Path(folder), has_gpu=about["machine"] != CPU_ONLY)
        order = in_order(given.only, given.seeds)
        trainings = [make.training(contestant, seed) for contestant, seed in order]
        train_all(trainings, out=given.out, about=about, budget_s=given.budget_s)


def in_order(contestants, seeds):
    """Two ranks first, which take longest; the others in turns, so that what is cut off by a budget
    is missing from both sides."""
    slow = [name for name in CONTESTANTS if name in contestants and name == "phalanx-2"]
    quick = [name for name in CONTESTANTS if name in contestants and name != "phalanx-2"]
    pairs = [(name, seed) for name in slow for seed in range(seeds)]
    return pairs + [(name, seed) for seed in range(seeds) for name in quick]


def losses_by_epoch(events):
    """Means of box, cls and dfl over the steps of each epoch, as Ultralytics' trainer has them."""
    found = {}
    for event in events:
        if isinstance(event.body, Step):
            epoch = math.ceil(event.body.epoch)
            found.setdefault(epoch, []).append(list(event.body.terms.values()))
    return [[round(fmean(column), 4) for column in zip(*found[e], strict=True)] for e in found]


class Maker:
    """The same work as a command of each contestant."""

    def __init__(self, data, given, folder, *, has_gpu):
        self._data, self._given, self._folder = data, given, folder
        self._has_gpu = has_gpu

    def training(self, contestant, seed):
        name = f"{contestant}-{seed}"
        if contestant == "ultralytics":
            argv, figures = self._ultralytics(name, seed)
        else:
            argv, figures = self._phalanx(name, seed, ranks=int(contestant[-1]))
        log = self._folder / f"{name}.log"
        # Two ranks take two cores at least, whatever the others have.
        cores = max(self._given.cores, 2 if contestant == "phalanx-2" else 1)
        work = {name: getattr(self._given, name) for name in WORK}
        return Training(contestant, seed, cores, argv, figures, log, facts={"work": work})

    def _phalanx(self, name, seed, *, ranks):
        given = self._given
        on_gpu = self._has_gpu
        # Ultralytics' warm-up: 3 epochs, and 100 steps at least.
        warmup = max(3 * -(-given.images // given.batch), LEAST_WARMUP)
        job = {
            "recipe": "detection",
            "name": name,
            "output": str(self._folder),
            "seed": seed,
            "epochs": given.epochs,
            "global_batch_size": given.batch,
            "micro_batch_size": given.batch // ranks,
            # Ultralytics takes the statistics of BatchNorm over the images of a GPU.
            "sync_batchnorm": False,
            "devices": {"gpus": [0] * ranks, "backend": "gloo"} if on_gpu else {"cpu": ranks},
            "precision": "fp32",
            "fast": "off",  # what is compiled takes longer to compile than this to train
            "cuda_graph": "on" if on_gpu and ranks == 1 else "auto",  # gloo's sums cannot be in one
            "loader": {"workers": given.workers if on_gpu else 0, "cache": "ram"},
            "optimizer": {
                "name": "adamw",
                "lr": given.lr,
                "weight_decay": 0.0005,
                "betas": [0.9, 0.999],
                "clip_norm": 10.0,
            },
            "schedule": {"name": "linear", "warmup": f"{warmup} steps", "min_lr_ratio": 0.01},
            "ema": {"decay": 0.9999, "ramp": 2000, "buffers": True},
            "evaluate": {"every": None, "batch_size": 2 * given.batch},
            "checkpoint": {"every": None},
            "options": {
                "data": str(self._data),
                "model": given.model,
                "image_size": given.size,
                "pictures": 0,
                **AUGMENTATION,
                "close_mosaic": given.close_mosaic,
            },
        }
        file = self._folder / f"{name}.yaml"
        file.write_text(json.dumps(job))

        def figures():
            events = list(read_events(self._folder / name / "events"))
            metrics = [e.body.metrics for e in events if isinstance(e.body, Evaluate)][-1]
            found = {key: metrics[key] for key in ("mAP50", "mAP50-95", "precision", "recall")}
            return {**found, "losses": losses_by_epoch(events)}

        return [sys.executable, "-m", "phalanx", "train", str(file)], figures

    def _ultralytics(self, name, seed):
        given = self._given
        out = self._folder / f"{name}.json"
        request = {
            "data": str(self._data),
            "model": given.model if "." in given.model else f"{given.model}.yaml",
            "epochs": given.epochs,
            "batch": given.batch,
            "nbs": given.batch,  # an optimizer step after each batch
            "imgsz": given.size,
            "seed": seed,
            "optimizer": "AdamW",
            "lr0": given.lr,
            "momentum": 0.9,
            "close_mosaic": given.close_mosaic,
            "device": 0 if self._has_gpu else "cpu",
            "workers": given.workers if self._has_gpu else 0,
            "project": str(self._folder),
            "name": name,
            "val": False,  # after the last epoch alone
            # With it, adding up at places takes minutes for a step at large batches.
            "deterministic": False,
        }
        script = HERE / "ultralytics_trainer.py"
        argv = [sys.executable, str(script), json.dumps(request), str(out)]
        return argv, lambda: json.loads(out.read_text())


if __name__ == "__main__":
    main()
