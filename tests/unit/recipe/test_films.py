"""Films are H.264 that browsers play, with every frame in them."""

import sys

import numpy as np
import pytest

from phalanx.errors import UserError
from phalanx.recipe import encode_film


def frames(count, height, width):
    for index in range(count):
        frame = np.zeros((height, width, 3), np.uint8)
        frame[:, : width * index // count] = (200, 40, 90)
        yield frame


def test_a_film_is_h264_with_all_its_frames(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="needs: imageio-ffmpeg")
    content = encode_film(frames(25, 65, 98), fps=10)
    film = tmp_path / "film.mp4"
    film.write_bytes(content)
    # faststart: the index stands before the pictures, so that a browser begins at once
    assert 0 < content.index(b"moov") < content.index(b"mdat")
    reader = ffmpeg.read_frames(str(film))
    about = next(reader)
    assert (about["codec"], about["fps"], about["source_size"]) == ("h264", 10.0, (98, 64))
    assert about["pix_fmt"].startswith("yuv420p")
    decoded = [np.frombuffer(frame, np.uint8).reshape(64, 98, 3) for frame in reader]
    assert len(decoded) == 25
    assert np.abs(decoded[24][30, 10].astype(int) - (200, 40, 90)).max() < 30
    assert decoded[0].max() < 30


def test_without_its_encoder_there_is_a_finding(monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UserError, match="imageio-ffmpeg"):
        encode_film(frames(2, 16, 16), fps=10)
