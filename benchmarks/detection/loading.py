"""What a training image costs a core: Phalanx's data beside Ultralytics' own, mosaic on, decoded
images in memory, one thread; milliseconds of processor time, measured in turns.

    .venv-detection/bin/python benchmarks/detection/loading.py [--size 640] [--turns 12]
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np
import torch

from phalanx.recipe import Epoch
from phalanx.recipe.load import load_recipe
from phalanx.recipes.detection.shapes import make_shapes

BATCH = 16


def phalanx_batches(data, size):
    split = load_recipe("detection", {"data": str(data), "image_size": size}).data("train")
    images = [split.load(index) for index in range(len(split))]
    split.load = images.__getitem__

    def fetch(number):
        ids = np.arange(BATCH) + BATCH * number
        return split.__getitems__(ids % len(split), ids, Epoch(0, 99))

    return fetch


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

    def fetch(number):
        return split.collate_fn([split[(BATCH * number + i) % len(split)] for i in range(BATCH)])

    return fetch


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--turns", type=int, default=12)
    given = parser.parse_args()
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data = make_shapes(Path(folder, "shapes"), train=64, test=1, side=given.size)
        contestants = {
            "Phalanx": phalanx_batches(data, given.size),
            "Ultralytics": ultralytics_batches(data, given.size),
        }
        taken = {name: [] for name in contestants}
        for turn in range(given.turns + 1):
            for name, fetch in contestants.items():
                begun = time.process_time()
                fetch(turn)
                taken[name].append((time.process_time() - begun) / BATCH * 1e3)
    for name, (_, *each) in taken.items():  # the first turn makes what is made once
        print(
            f"{name}: {statistics.median(each):.2f} ms an image at {given.size} pixels, "
            f"{min(each):.2f} to {max(each):.2f}"
        )


if __name__ == "__main__":
    main()
