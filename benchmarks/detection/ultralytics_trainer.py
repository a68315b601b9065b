"""Ultralytics' own trainer as a contestant: a request in JSON, figures of its last epoch in a file.

python benchmarks/detection/ultralytics_trainer.py '{"data": "data.yaml", ...}' OUT.json
"""

import json
import os
import sys
from pathlib import Path

WITHOUT_NETWORK = {"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false"}

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
    os.environ.update(WITHOUT_NETWORK)
    from ultralytics.models.yolo.detect import DetectionTrainer

    try:
        import matplotlib  # noqa: F401
    except ImportError:  # a font for plots that are not drawn
        import ultralytics.data.utils

        ultralytics.data.utils.check_font = lambda *given: None

    class Trainer(DetectionTrainer):
        def save_model(self):
            """Nothing: only figures are wanted, and polars, which it takes, may not be there."""
            return False

    request, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    figures, losses = {}, []

    def keep(trainer):
        losses.append([round(float(value), 4) for value in trainer.tloss.values()])
        if trainer.epoch + 1 == trainer.epochs:
            figures.update(trainer.metrics)

    trainer = Trainer(overrides={**SETTINGS, **AUGMENTATION, **request})
    trainer.add_callback("on_fit_epoch_end", keep)
    trainer.train()
    names = {"mAP50": "mAP50", "mAP50-95": "mAP50-95", "precision": "precision", "recall": "recall"}
    found = {name: float(figures[f"metrics/{key}(B)"]) for name, key in names.items()}
    out.write_text(json.dumps({**found, "losses": losses}))


if __name__ == "__main__":
    main()
