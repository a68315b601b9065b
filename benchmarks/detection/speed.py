"""One contestant of run_gpu.py that is not Phalanx: a request in JSON, its figures as a last line.

python benchmarks/detection/speed.py '{"contestant": "ultralytics", ...}'
"""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from meter import Meter, tell


def train_ultralytics(request, meter):
    """Its trainer as it is; the process ends within an epoch, once enough was measured."""
    from ultralytics import YOLO

    model = YOLO("yolo11n.yaml")

    def after(trainer):
        if meter.step():
            tell(meter.figures())

    model.add_callback("on_train_batch_end", after)
    name = request["contestant"]
    model.train(
        data=request["data"], imgsz=request["size"], batch=request["batch"], epochs=1000,
        workers=request["workers"], cache="ram", optimizer="AdamW", lr0=0.001,
        # bf16, as Phalanx has it there; fp16, its default, begins with a download.
        amp=False if request["tiny"] else "bf16",
        device="cpu" if request["tiny"] else 0, val=False, plots=False, save=False,
        pretrained=False, close_mosaic=0, verbose=False, project=tempfile.mkdtemp(),
        deterministic=name == "ultralytics", compile=name == "ultralytics-compiled",
    )  # fmt: skip


def recipe_of(request):
    from phalanx.recipe.loading import load_recipe

    return load_recipe("detection", {"data": request["data"], "image_size": request["size"]})


def compute(request, meter):
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
        if meter.step():
            tell(meter.figures())


def loading(request, meter):
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
        if meter.step():
            tell(meter.figures())


def main():
    request = json.loads(sys.argv[1])
    meter = Meter(
        request["batch"],
        window=2,
        device="cpu" if request["tiny"] else "cuda",
        seconds=request["seconds"],
        settle_s=request["settle_s"],
    )
    work = {"compute": compute, "loading": loading}.get(request["contestant"], train_ultralytics)
    work(request, meter)


if __name__ == "__main__":
    main()
