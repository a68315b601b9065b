"""Folders of routes as CARLA's PDM-lite writes them, with a drive whose way is known."""

import gzip
import json

import numpy as np

RADIUS_M, SPEED, FRAMES_PER_S = 40.0, 6.0, 4.0


def pose(frame):
    """On a circle to the right: x, y, heading."""
    angle = SPEED * frame / FRAMES_PER_S / RADIUS_M
    return 100 + RADIUS_M * np.sin(angle), 50 + RADIUS_M * (1 - np.cos(angle)), angle


def seen_from(frame, points):
    x, y, heading = pose(frame)
    offset = np.asarray(points) - (x, y)
    cosine, sine = np.cos(heading), np.sin(heading)
    return np.stack(
        [offset[..., 0] * cosine + offset[..., 1] * sine,
         offset[..., 1] * cosine - offset[..., 0] * sine], -1,
    )  # fmt: skip


def measurement(frame):
    ahead = [pose(frame + k * FRAMES_PER_S / SPEED)[:2] for k in range(1, 21)]  # each metre
    x, y, heading = pose(frame)
    return {
        "pos_global": [x, y],
        "theta": heading,
        "speed": SPEED,
        "command": 4,
        "route": seen_from(frame, ahead).tolist(),
        "target_point": [10.0, 0.0],
    }


def semantics(frame, side=64, classes=5):
    """Class 1 along the middle; class 2 where the frame's number says."""
    image = np.zeros((side, side), np.uint8)
    image[:, side // 2 - 4 : side // 2 + 4] = 1
    image[frame % side, 0] = 2
    image[-1, -1] = classes - 1  # the nearest cell on the right
    return image


def write_routes(folder, *, routes=3, frames=30, kind="image", zipped=True):
    from PIL import Image

    for number in range(routes):
        route = folder / "town" / f"route_{number}"
        (route / "measurements").mkdir(parents=True)
        bevs = route / ("bev_semantics" if kind == "image" else "bev")
        bevs.mkdir()
        for frame in range(frames):
            text = json.dumps(measurement(frame)).encode()
            name = f"{frame:04d}.json" + (".gz" if zipped else "")
            content = gzip.compress(text) if zipped else text
            (route / "measurements" / name).write_bytes(content)
            if kind == "image":
                Image.fromarray(semantics(frame)).save(bevs / f"{frame:04d}.png")
            else:
                feature = np.full((5, 16, 16), 0.1 * frame, np.float32)
                np.save(bevs / f"{frame:04d}.npy", feature)
    return folder
