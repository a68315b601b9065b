"""What a training image costs a core: Phalanx's data beside Ultralytics' own, mosaic on, decoded
images in memory, one thread; milliseconds of processor time, measured in turns.

    .venv-detection/bin/python benchmarks/detection/loading.py [--size 640] [--rounds 12] [--write]
"""

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from side_by_side import Table, take_turns

from phalanx.recipe import Epoch
from phalanx.recipe.loading import load_recipe
from phalanx.recipes.detection.shapes import make_shapes

BATCH = 16


def phalanx_batches(data, size):
    split = load_recipe("detection", {"data": str(data), "image_size": size}).data("train")
    images = [split.load(index) for index in range(len(split))]
    split.load = images.__getitem__
    for number in itertools.count():
        ids = np.arange(BATCH) + BATCH * number
        yield split.__getitems__(ids % len(split), ids, Epoch(0, 99))


def ultralytics_batches(data, size):
    os.environ.setdefault("YOLO_OFFLINE", "true")
    from ultralytics.cfg import DEFAULT_CFG, get_cfg
    from ultralytics.data.build import build_yolo_dataset
    from ultralytics.data.utils import check_det_dataset

    settings = {"imgsz": size, "data": str(data), "task": "detect", "cache": "ram"}
    about = check_det_dataset(str(data))
    split = build_yolo_dataset(
        get_cfg(DEFAULT_CFG, settings), about["train"], BATCH, about, mode="train", stride=32
    )
    for number in itertools.count():
        yield split.collate_fn([split[(BATCH * number + i) % len(split)] for i in range(BATCH)])


def milliseconds(batches):
    begun = time.process_time()
    next(batches)
    return (time.process_time() - begun) / BATCH * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--write", action="store_true", help="write to benchmarks/results")
    given = parser.parse_args()
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data = make_shapes(Path(folder, "shapes"), train=64, test=1, side=given.size)
        ours, theirs = phalanx_batches(data, given.size), ultralytics_batches(data, given.size)
        next(ours), next(theirs)  # what is made once
        contestants = {
            "**Phalanx**": lambda: milliseconds(ours),
            "Ultralytics' data set": lambda: milliseconds(theirs),
        }
        turns = take_turns(contestants, given.rounds)
    table = Table(
        "detection-loading", "What a training image costs a core, beside Ultralytics' data",
        f"| {given.size} pixels, mosaic, decoded images in memory | milliseconds of a core |",
        "python benchmarks/detection/loading.py", packages=("ultralytics", "opencv-python"),
    )  # fmt: skip
    for name, each in turns.items():
        table.add(name, f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})")
    if given.write:
        table.write()


if __name__ == "__main__":
    main()
