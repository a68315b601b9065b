"""Ultralytics' own trainer as a contestant: a request in JSON, figures of its last epoch in a file.

python benchmarks/detection/ultralytics_trainer.py '{"data": "data.yaml", ...}' OUT.json
"""

import json
import os
import sys
from pathlib import Path

AUGMENTATION = {
    "mosaic": 1.0,
    "close_mosaic": 5,
    "mixup": 0.1,
    "hsv_h": 0.015,
    "hsv_s": 0.7,
    "hsv_v": 0.4,
    "translate": 0.1,
    "scale": 0.5,
    "fliplr": 0.5,
}
"""By Ultralytics' names, which are Phalanx's."""

SETTINGS = {
    "amp": False,
    "cache": "ram",
    "lrf": 0.01,
    "weight_decay": 0.0005,
    "warmup_epochs": 3.0,
    "warmup_bias_lr": 0.0,
    "plots": False,
    "verbose": False,
    "exist_ok": True,
    "pretrained": False,
}


def main():
    os.environ.setdefault("YOLO_OFFLINE", "true")
    os.environ.setdefault("YOLO_AUTOINSTALL", "false")
    from ultralytics import YOLO

    request, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    model = YOLO("yolo11n.yaml")
    figures = {}

    def keep(trainer):
        if trainer.epoch + 1 == trainer.epochs:
            figures.update(trainer.metrics)

    model.add_callback("on_fit_epoch_end", keep)
    model.train(**{**SETTINGS, **AUGMENTATION, **request})
    names = {"mAP50": "mAP50", "mAP50-95": "mAP50-95", "precision": "precision", "recall": "recall"}
    found = {name: float(figures[f"metrics/{key}(B)"]) for name, key in names.items()}
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
