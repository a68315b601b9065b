"""Sinks in a process of their own: fed to the last event, once, and in nobody's way."""

import csv
import json
import struct
import subprocess
import sys
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import IMAGES, TENSORS, EventAccumulator

from phalanx.codec import from_json, to_json
from phalanx.job.schema import Logging
from phalanx.run.sinks.pictures import read_picture
from phalanx.run.sinks.process import Sinks, SinkSettings
from phalanx.run.sinks.wandb import WandbSettings
from phalanx.supervise import sinks as launch_sinks
from phalanx.supervise.sinks import SinkProcess, sinks_of
from tests.unit.watch.run_folder import Run

EVERYTHING = SinkSettings(tensorboard=True)


def png(width=3, height=2):
    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    rows = b"".join(b"\x00" + bytes(3 * width) for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def some_run(tmp_path):
    made = Run(tmp_path)
    made.begin()
    for step in (10, 20):
        made.step(step)
        made.evaluate(step, step / 100)
    return made


def rows(made):
    with made.run.results_file.open() as file:
        return [row["step"] for row in csv.DictReader(file)]


def test_the_process_writes_everything_and_ends_with_its_input(tmp_path):
    made = some_run(tmp_path)
    folder = made.run.path / "media" / "step-20"
    folder.mkdir(parents=True)
    (folder / "boxes.png").write_bytes(png())
    made.write(
        "media", 9.0, "rank-0", step=20, name="boxes", file="media/step-20/boxes.png", caption="c"
    )
    process = SinkProcess(made.run, EVERYTHING)
    made.step(30)
    assert process.close() == []
    assert rows(made) == ["10", "20"]
    board = EventAccumulator(str(made.run.tensorboard), {IMAGES: 0, TENSORS: 0})
    board.Reload()
    assert [event.step for event in board.Scalars("train/loss")] == [10, 20, 30]
    (image,) = board.Images("media/boxes")
    assert (image.width, image.height, image.encoded_image_string) == (3, 2, png())
    cells = board.Tensors("plan")[0].tensor_proto.string_val
    assert b"4 GPUs are free" in cells, "the plan's reasons"
    assert not (made.run.logs / "sinks.log").exists(), "an empty log is no log"


def test_tensorboard_shows_a_film_as_a_moving_picture(tmp_path):
    made = some_run(tmp_path)
    made.film(20)
    assert SinkProcess(made.run, EVERYTHING).close() == []
    board = EventAccumulator(str(made.run.tensorboard), {IMAGES: 0})
    board.Reload()
    (image,) = board.Images("media/drive")
    assert (image.width, image.height) == (96, 64)
    with Image.open(BytesIO(image.encoded_image_string)) as gif:
        assert (gif.format, gif.n_frames) == ("GIF", 30)  # every second one: at most 48
        gif.seek(29)
        last = np.asarray(gif.convert("L"))
    assert last[32, 60] > 200
    assert last[32, 20] < 50


def test_a_run_that_continues_is_not_written_twice(tmp_path):
    made = some_run(tmp_path)
    for _ in range(2):
        sinks = Sinks(made.run, SinkSettings(tensorboard=False))
        sinks.turn()
        sinks.close()
    made.evaluate(30, 0.3)
    sinks = Sinks(made.run, SinkSettings(tensorboard=False))
    assert sinks.turn() == 1
    sinks.close()
    assert rows(made) == ["10", "20", "30"]


def test_a_run_of_an_older_version_goes_on_after_what_it_has(tmp_path):
    made = some_run(tmp_path)
    made.run.results_file.write_text("step,accuracy\n10,0.1\n20,0.2\n")
    sinks = Sinks(made.run, SinkSettings(tensorboard=False))
    made.evaluate(30, 0.3)
    assert sinks.turn() == 1
    assert rows(made) == ["10", "20", "30"]


def test_one_sink_that_fails_leaves_the_others_alone(tmp_path, capfd):
    made = some_run(tmp_path)
    made.run.tensorboard.write_text("a file where a folder should be")
    sinks = Sinks(made.run, EVERYTHING)
    sinks._reader._offsets.clear()
    sinks.turn()
    sinks.close()
    assert sinks.failures == ["TensorBoardSink"]
    assert rows(made) == ["10", "20"]
    assert "Error" in capfd.readouterr().err


def test_a_sink_that_hangs_ends_with_a_warning_and_never_the_run(tmp_path, monkeypatch):
    made = some_run(tmp_path)
    monkeypatch.setattr(launch_sinks, "_PATIENCE_S", 0.2)
    real = subprocess.Popen
    stuck = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(
        launch_sinks.subprocess, "Popen", lambda argv, **given: real(stuck, **given)
    )
    (finding,) = SinkProcess(made.run, EVERYTHING).close()
    assert (finding.slug, finding.severity) == ("curves-incomplete", "warning")


def test_a_process_that_dies_is_told(tmp_path):
    made = some_run(tmp_path)
    process = SinkProcess(made.run, EVERYTHING)
    process._process.kill()
    (finding,) = process.close()
    assert "exit code -9" in finding.why


def test_the_job_says_what_is_fed():
    assert sinks_of(Logging()).wandb is None
    asked = sinks_of(Logging(tensorboard=False, wandb="p", wandb_mode="offline"))
    assert asked.wandb == WandbSettings("p", None, "offline")
    assert from_json(SinkSettings, to_json(asked)) == asked


def test_wandb_offline_gets_the_curves_and_no_file_has_the_key(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    key = "0123456789abcdef" * 2 + "01234567"
    monkeypatch.setenv("WANDB_API_KEY", key)
    made = some_run(tmp_path)
    made.film(20)
    settings = SinkSettings(tensorboard=False, wandb=WandbSettings("p", None, "offline"))
    process = SinkProcess(made.run, settings)
    assert process.close() == []
    (record,) = made.run.path.glob("wandb/offline-run-*/*.wandb")
    data = record.read_bytes()
    assert b"train/loss" in data
    assert b"accuracy" in data
    (film,) = made.run.path.glob("wandb/offline-run-*/files/media/videos/**/*.mp4")
    assert film.read_bytes() == (made.run.media / "step-20" / "drive.mp4").read_bytes()
    for path in made.run.path.rglob("*"):
        if path.is_file():
            assert key.encode() not in path.read_bytes(), path


def test_sizes_are_read_from_pictures(tmp_path):
    jpeg = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08\x00\x02\x00\x03" + bytes(12)
    for name, data, size in (
        ("a.png", png(5, 4), (5, 4)),
        ("a.jpg", jpeg, (3, 2)),
        ("b.png", b"\x89PNG\r\n\x1a\n", None),
        ("b.jpg", b"\xff\xd8\xff", None),
        ("c.png", b"<svg onload=alert(1)>", None),
        ("d.mp4", b"no video", None),
    ):
        (tmp_path / name).write_bytes(data)
        found = read_picture(tmp_path / name)
        assert (found[1:] if found else None) == size, name
    assert read_picture(tmp_path / "nothing.png") is None


def test_a_place_that_is_damaged_is_not_believed(tmp_path):
    made = some_run(tmp_path)
    (made.run.events / "sinks.json").write_text(json.dumps({"offsets": {"rank-0.jsonl": "x"}}))
    assert Sinks(made.run, SinkSettings(tensorboard=False)).turn() > 3
