"""Images a second of Phalanx's detection recipe beside Ultralytics' own trainer, on one GPU.

    python benchmarks/detection/run_gpu.py --out detection.jsonl --budget-s 560
    python benchmarks/detection/report.py detection.jsonl --write

yolo11n at 640 pixels, decoded images kept in memory, 16 loader processes, mosaic on, AdamW, bf16,
batches of 64 and 256. Each contestant has a process of its own, one after the other, and is a line
of JSON as soon as it ends; one that fails leaves its error, and what the budget does not allow is
left out. `--tiny` tries all of it on a CPU.

- phalanx: a plain `phalanx train detection`, watched through its events and ended by Ctrl-C
- phalanx-eager: the same with `--fast off`; phalanx-compiled: with `compile=on`
- ultralytics: its defaults; -free: with deterministic=False; -compiled: with compile=True
- compute: Ultralytics' model and loss, forward, backward and update on one batch, channels last
- loading: Phalanx's loader processes alone
"""

import json
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import yaml
from origin import describe_origin
from phalanx_run import phalanx_argv
from turns import Turn, choose_turns, run_turns, turn_parser
from ultralytics_trainer import WITHOUT_NETWORK

# Seconds that each is expected to take on an H200.
ORDER = (
    ("phalanx", 64, 70),
    ("ultralytics", 64, 45),
    ("phalanx", 256, 75),
    ("ultralytics", 256, 50),
    ("loading", 64, 25),
    ("compute", 64, 25),
    ("ultralytics-free", 64, 45),
    ("phalanx-eager", 64, 50),
    ("phalanx-compiled", 64, 110),
    ("compute", 256, 25),
    ("ultralytics-free", 256, 50),
    ("ultralytics-compiled", 64, 110),
)
FLAGS = {
    "phalanx": [],
    "phalanx-eager": ["--fast", "off"],
    "phalanx-compiled": ["compile=on"],
}


def write_data(folder, *, images, size):
    """Generated shapes as JPEG at the training size."""
    for kind in ("images", "labels"):
        for split in ("train", "val"):
            (folder / kind / split).mkdir(parents=True)
    work = [(folder, "train" if n < images else "val", n, size) for n in range(images + 64)]
    with ProcessPoolExecutor() as pool:
        list(pool.map(_write_one, work, chunksize=8))
    names = {0: "circle", 1: "square", 2: "triangle", 3: "cross"}
    about = {"path": str(folder), "train": "images/train", "val": "images/val", "names": names}
    (folder / "data.yaml").write_text(yaml.safe_dump(about))


def _write_one(given):
    import cv2

    from phalanx.recipe.keys import generator
    from phalanx.recipes.detection.shapes import draw

    folder, split, number, size = given
    image, rows = draw(generator(number), 160)  # drawn small: a large one takes a second
    image = cv2.resize(image, (size, size), interpolation=cv2.INTER_CUBIC)
    cv2.imwrite(str(folder / "images" / split / f"{number:05d}.jpg"), image)
    lines = [" ".join(f"{v:g}" for v in row) + "\n" for row in rows]
    (folder / "labels" / split / f"{number:05d}.txt").write_text("".join(lines))


def argv_of(name, batch, data, arguments):
    if name in FLAGS:
        words = [
            "detection", f"data={data}", "model=yolo11n", "--imgsz", str(arguments.size),
            "--batch", str(batch), "--steps", "100000", "--cache", "ram",
            f"loader.workers={arguments.workers}", "pictures=0", "evaluate.every=null",
            "checkpoint.every=null", "determinism=fast", *FLAGS[name],
        ]  # fmt: skip
        words += ["--cpu", "1"] if arguments.tiny else ["--gpus", "1"]
        return phalanx_argv(words, arguments)
    request = {
        "contestant": name, "batch": batch, "data": str(data), "size": arguments.size,
        "workers": arguments.workers, "seconds": arguments.seconds, "tiny": arguments.tiny,
        "settle_s": arguments.settle_s,
    }  # fmt: skip
    return [sys.executable, str(Path(__file__).with_name("speed.py")), json.dumps(request)]


def plan_turns(data, arguments):
    turns = []
    for name, given, expected_s in ORDER:
        batch = 4 if arguments.tiny else given
        argv = argv_of(name, batch, data, arguments)
        facts = {"batch": batch}
        limit_s = None if name in FLAGS else arguments.limit_s
        turns.append(Turn(str(given), name, expected_s, argv, limit_s=limit_s, facts=facts))
    return choose_turns(turns, arguments.only, arguments.skip)


def main():
    parser = turn_parser(__doc__, budget_s=560, seconds=15.0, settle_s=12.0)
    parser.add_argument("--limit-s", type=float, default=170, help="for one that is not Phalanx")
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--workers", type=int, default=16)
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.images, arguments.size, arguments.workers = 16, 64, 1
        arguments.seconds = arguments.settle_s = 1.0
    ends = time.monotonic() + arguments.budget_s
    with tempfile.TemporaryDirectory() as folder:
        turns = plan_turns(Path(folder, "shapes", "data.yaml"), arguments)
        started = time.monotonic()
        write_data(Path(folder, "shapes"), images=arguments.images, size=arguments.size)
        print(f"{arguments.images} images in {time.monotonic() - started:.1f} s", flush=True)
        about = describe_origin("ultralytics")
        run_turns(turns, out=arguments.out, about=about, ends=ends, env=WITHOUT_NETWORK)


if __name__ == "__main__":
    main()
