"""One contestant of run_gpu.py that is not Phalanx: a request in JSON, its figures in a file.

python benchmarks/detection/speed.py '{"contestant": "ultralytics", ...}' OUT.json
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch


class Windows:
    """Images a second in windows of about a second, after a while of settling."""

    def __init__(self, batch, *, settle_s, seconds):
        self._batch, self._settle, self._seconds = batch, settle_s, seconds
        self._begun = self._mark = None
        self._since = 0
        self.rates = []

    def step(self):
        """One step was given to the device; True when enough was measured."""
        now = time.perf_counter()
        self._begun = self._begun or now
        if now - self._begun < self._settle:
            return False
        self._since += 1
        if self._mark is None:
            wait()
            self._mark, self._since = time.perf_counter(), 0
        elif now - self._mark >= min(1.0, self._seconds / 4):
            wait()
            now = time.perf_counter()
            self.rates.append(self._batch * self._since / (now - self._mark))
            self._mark, self._since = now, 0
        return now - self._begun > self._settle + self._seconds and len(self.rates) > 2

    def figures(self):
        memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
        return {
            "samples_per_s": statistics.harmonic_mean(self.rates),
            "slowest": min(self.rates),
            "quickest": max(self.rates),
            "windows": len(self.rates),
            "memory_bytes": memory,
        }


def wait():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def train_ultralytics(request, windows, finish):
    """Its trainer as it is; the process ends within an epoch, once enough was measured."""
    from ultralytics import YOLO

    model = YOLO("yolo11n.yaml")

    def after(trainer):
        if windows.step():
            finish()

    model.add_callback("on_train_batch_end", after)
    name = request["contestant"]
    model.train(
        data=request["data"], imgsz=request["size"], batch=request["batch"], epochs=1000,
        workers=request["workers"], cache="ram", optimizer="AdamW", lr0=0.001,
        # bf16, as Phalanx has it there; fp16, its default, begins with a download.
        amp=False if request["tiny"] else "bf16",
        device="cpu" if request["tiny"] else 0, val=False, plots=False, save=False,
        pretrained=False, close_mosaic=0, verbose=False, project=str(Path(sys.argv[2]).parent),
        deterministic=name == "ultralytics", compile=name == "ultralytics-compiled",
    )  # fmt: skip


def recipe_of(request):
    from phalanx.recipe.load import load_recipe

    return load_recipe("detection", {"data": request["data"], "image_size": request["size"]})


def compute(request, windows, finish):
    """Forward, backward and AdamW on one batch that stays on the device."""
    from types import SimpleNamespace

    from phalanx.recipe import Epoch

    recipe = recipe_of(request)
    device = "cpu" if request["tiny"] else "cuda"
    ids = np.arange(request["batch"])
    batch = recipe.data("train").__getitems__(ids % 16, ids, Epoch(0, 99))
    model = recipe.model().to(device).to(memory_format=torch.channels_last).train()
    model.args = SimpleNamespace(box=7.5, cls=0.5, dfl=1.5)
    there = batch["classes"] >= 0
    boxes = batch["boxes"][there]
    labels = {
        "img": (batch["image"].to(device).float() / 255),
        "batch_idx": torch.from_numpy(ids)[:, None].expand_as(there)[there].float().to(device),
        "cls": batch["classes"][there].float().to(device),
        "bboxes": torch.cat([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1).to(
            device
        ),
    }
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], fused=device == "cuda"
    )
    while True:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss, _ = model(labels)
        loss.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if windows.step():
            finish()


def loading(request, windows, finish):
    """The recipe's data through torch's loader processes, decoded images kept in memory."""
    from torch.utils.data import DataLoader, Dataset

    from phalanx.recipe import Epoch

    data = recipe_of(request).data("train")
    images = [data.load(index) for index in range(len(data))]
    data.load = images.__getitem__
    data._augmenter._load = data._loaded
    batch = request["batch"]

    class Batches(Dataset):
        def __len__(self):
            return 10**6

        def __getitem__(self, number):
            ids = (np.arange(batch) + batch * number) % len(data)
            return data.__getitems__(ids, ids + number * 7919, Epoch(0, 99))

    loader = DataLoader(
        Batches(), batch_size=None, num_workers=request["workers"], prefetch_factor=4,
        pin_memory=not request["tiny"],
    )  # fmt: skip
    for _ in loader:
        if windows.step():
            finish()


def main():
    request, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    windows = Windows(request["batch"], settle_s=request["settle_s"], seconds=request["seconds"])

    def finish():
        out.write_text(json.dumps(windows.figures()))
        os._exit(0)  # loader processes and trainers would take a while

    work = {"compute": compute, "loading": loading}.get(request["contestant"], train_ultralytics)
    work(request, windows, finish)


if __name__ == "__main__":
    main()
