"""Films of roll-outs: H.264 in MP4 that every browser plays, and that begins before it is whole."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np

from phalanx.errors import Finding, UserError

_QUALITY = 23  # x264's own constant rate factor


def encode_film(frames: Iterable[np.ndarray], *, fps: float) -> bytes:
    """Frames (height x width x 3, uint8, all of one size) as an MP4 file. Odd sides lose their last
    row or column: yuv420p halves both."""
    try:
        from imageio_ffmpeg import write_frames
    except ImportError as error:
        raise UserError(missing_film_package()) from error
    stream = iter(frames)
    first = next(stream, None)
    if first is None:
        raise ValueError("a film has at least one frame")
    height, width = (side // 2 * 2 for side in first.shape[:2])
    with tempfile.TemporaryDirectory(prefix="phalanx-film-") as folder:
        file = Path(folder, "film.mp4")
        writer = write_frames(
            str(file),
            (width, height),
            fps=fps,
            codec="libx264",
            pix_fmt_in="rgb24",
            pix_fmt_out="yuv420p",
            quality=None,
            macro_block_size=2,  # the default of 16 would stretch the frames
            output_params=["-crf", str(_QUALITY), "-movflags", "+faststart", "-threads", "1"],
            ffmpeg_log_level="error",
        )
        writer.send(None)  # begins
        try:
            for frame in chain([first], stream):
                writer.send(np.ascontiguousarray(frame[:height, :width], dtype=np.uint8))
        finally:
            writer.close()
        return file.read_bytes()


def missing_film_package() -> Finding:
    """Said where films are wanted and cannot be made."""
    return Finding(
        slug="missing-extra",
        what="films need `imageio-ffmpeg`, which is not installed",
        why="it brings the H.264 encoder; it comes with the extras `policy` and `bev`",
        fix="pip install imageio-ffmpeg",
    )
