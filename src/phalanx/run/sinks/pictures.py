"""Pictures and videos of a run as TensorBoard takes them: encoded, with their size."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

_LARGEST = 32 * 2**20
_FRAMES = 48
_WIDTH = 320
_LONGEST_S = 60.0


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
    """TensorBoard shows no video but moving GIFs. The package that recipes make films with turns
    them into one; None without it."""
    try:
        from imageio_ffmpeg import count_frames_and_secs, get_ffmpeg_exe
    except ImportError:
        return None
    try:
        count, _ = count_frames_and_secs(str(path))
        every = max(1, -(-count // _FRAMES))
        kept = f"select=not(mod(n\\,{every})),scale=min({_WIDTH}\\,iw):-1,split[a][b]"
        colours = "[a]palettegen[c];[b][c]paletteuse"
        command = [get_ffmpeg_exe(), "-v", "error", "-nostdin", "-i", str(path), "-vf"]
        command += [f"{kept};{colours}", "-fps_mode", "vfr", "-loop", "0", "-f", "gif", "-"]
        data = subprocess.run(command, capture_output=True, check=True, timeout=_LONGEST_S).stdout
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError):
        return None
    if data[:4] != b"GIF8" or len(data) < 10:
        return None
    width, height = struct.unpack("<HH", data[6:10])
    return Picture(data, width, height)
