"""Pictures and videos of a run as TensorBoard takes them: encoded, with their size."""

from __future__ import annotations

import struct
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

_LARGEST = 32 * 2**20
_FRAMES = 48
_WIDTH = 320


class Picture(NamedTuple):
    """A picture as a browser reads it."""

    data: bytes
    width: int
    height: int


def read_picture(path: Path) -> Picture | None:
    """A PNG or JPEG as it is, a video as a moving GIF; None when it is neither, or damaged."""
    try:
        if path.stat().st_size > _LARGEST:
            return None
        if path.suffix.lower() == ".mp4":
            return _moving(path)
        data = path.read_bytes()
    except OSError:
        return None
    size = _png_size(data) or _jpeg_size(data)
    return Picture(data, *size) if size is not None else None


def _png_size(data: bytes) -> tuple[int, int] | None:
    if data[:8] != b"\x89PNG\r\n\x1a\n" or len(data) < 24:
        return None
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """From the frame header, ITU T.81: markers C0 to CF but C4, C8 and CC."""
    if data[:2] != b"\xff\xd8":
        return None
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + length
    return None


def _moving(path: Path) -> Picture | None:
    """TensorBoard shows no video but moving GIFs. Needs OpenCV and Pillow, which recipes that make
    videos bring along."""
    try:
        import cv2
        from PIL import Image
    except ImportError:
        return None
    video = cv2.VideoCapture(str(path))
    try:
        count = max(1, int(video.get(cv2.CAP_PROP_FRAME_COUNT)))
        per_s = video.get(cv2.CAP_PROP_FPS) or 10.0
        every = max(1, -(-count // _FRAMES))
        frames = []
        for number in range(count):
            is_read, frame = video.read()
            if not is_read:
                break
            if number % every == 0:
                picture = Image.fromarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))
                picture.thumbnail((_WIDTH, _WIDTH))
                frames.append(picture)
    finally:
        video.release()
    if not frames:
        return None
    out = BytesIO()
    wait_ms = int(1000 * every / per_s)
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=wait_ms, loop=0)
    return Picture(out.getvalue(), *frames[0].size)
