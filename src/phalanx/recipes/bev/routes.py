"""Folders of recorded routes, as CARLA's PDM-lite and TransFuser++ write them.

    ROUTE/measurements/0000.json[.gz]   pos_global [x, y], theta, speed, command, and either
                                        route [[x, y], ...] or target_point [x, y], both as seen
                                        from the vehicle: x ahead, y to the right
    ROUTE/bev_semantics/0000.png        an image of classes, ahead is up; or
    ROUTE/bev/0000.npy                  a feature, channels x ahead x right

A route is any folder with `measurements` in it, at any depth. Numbers count frames.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from phalanx.recipe import Finding, first_few
from phalanx.recipes.bev.grid import to_ego
from phalanx.recipes.bev.scenarios import COMMANDS, ROUTE_M, WAYPOINT_S, WAYPOINTS

MEASUREMENTS = "measurements"
BEV_FOLDERS = ("bev_semantics", "bev")
BEV_SUFFIXES = (".png", ".npy")
Kind = Literal["measurement", "not finite", "missing", "shape"]


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with one file."""

    kind: Kind
    path: Path
    index: int
    """The frame's number within its route."""
    why: str


@dataclass(frozen=True)
class Route:
    """One recorded drive."""

    folder: Path
    bevs: list[Path]
    positions: np.ndarray
    headings: np.ndarray
    speeds: np.ndarray
    commands: np.ndarray
    ahead: np.ndarray
    """Points of the route at ROUTE_M, as seen from the vehicle."""

    def __len__(self) -> int:
        return len(self.bevs)


class _Row(NamedTuple):
    """One measurement."""

    position: np.ndarray
    heading: float
    speed: float
    command: int
    ahead: np.ndarray


def find_routes(folder: Path) -> list[Path]:
    """All folders with measurements, in the order of their names."""
    return sorted(path.parent for path in folder.rglob(MEASUREMENTS) if path.is_dir())


def read_route(folder: Path) -> tuple[Route | None, list[Problem]]:
    """A route, or all that is wrong with it."""
    files = sorted(p for p in (folder / MEASUREMENTS).iterdir() if _number(p) is not None)
    known = _bev_files(folder)
    problems: list[Problem] = []
    rows: list[_Row] = []
    bevs: list[Path] = []
    for index, path in enumerate(files):
        row = _read_measurement(path, index)
        if isinstance(row, Problem):
            problems.append(row)
        else:
            rows.append(row)
        bev = known.get(_number(path) or 0)
        if bev is None:
            why = f"no {' or '.join(BEV_FOLDERS)} of number {_number(path)} beside it"
            problems.append(Problem("missing", path, index, why))
        else:
            bevs.append(bev)
    if problems or not rows:
        return None, problems
    return (
        Route(
            folder,
            bevs,
            np.array([row.position for row in rows]),
            np.array([row.heading for row in rows]),
            np.array([row.speed for row in rows], np.float32),
            np.array([row.command for row in rows], np.int64),
            np.array([row.ahead for row in rows], np.float32),
        ),
        [],
    )


def _number(path: Path) -> int | None:
    name = path.name.split(".")[0]
    return int(name) if name.isdigit() else None


def _bev_files(folder: Path) -> dict[int, Path]:
    for name in BEV_FOLDERS:
        if (folder / name).is_dir():
            files = sorted((folder / name).iterdir())
            return {
                number: path
                for path in files
                if path.suffix in BEV_SUFFIXES and (number := _number(path)) is not None
            }
    return {}


def _read_measurement(path: Path, index: int) -> _Row | Problem:
    try:
        content = path.read_bytes()
        text = gzip.decompress(content) if path.suffix == ".gz" else content
        values = json.loads(text)
        row = _row(values)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, json.JSONDecodeError) as error:
        return Problem("measurement", path, index, f"it cannot be read: {error}")
    except KeyError as error:
        return Problem("measurement", path, index, f"it has no {error}")
    except (TypeError, ValueError) as error:
        return Problem("measurement", path, index, str(error))
    wrong = [name for name, value in row._asdict().items() if not np.isfinite(value).all()]
    if wrong:
        return Problem("not finite", path, index, f"{', '.join(wrong)}: not a finite number")
    return row


def _row(values: dict[str, Any]) -> _Row:
    command = int(values["command"])
    if not 0 <= command < COMMANDS:
        raise ValueError(f"command = {command}; CARLA's are 1 to {COMMANDS - 1}")
    return _Row(
        _points(values["pos_global"], "pos_global")[0],
        float(values["theta"]),
        float(values["speed"]),
        command,
        _route_ahead(values),
    )


def _route_ahead(values: dict[str, Any]) -> np.ndarray:
    if values.get("route"):
        points = _points(values["route"], "route")
    else:
        points = _points(values["target_point"], "target_point")
    path = np.concatenate([np.zeros((1, 2)), points])
    lengths = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(path, axis=0), axis=1))])
    # Beyond what is told it goes on as it ends.
    is_moving = np.flatnonzero(np.diff(lengths) > 1e-6)
    last = is_moving[-1] if len(is_moving) else 0
    way = path[last + 1] - path[last]
    unit = way / max(float(np.linalg.norm(way)), 1e-6)
    far = np.array(ROUTE_M)
    along = np.stack([np.interp(far, lengths, path[:, axis]) for axis in (0, 1)], -1)
    return np.asarray(along + np.maximum(far - lengths[-1], 0.0)[:, None] * unit)


def _points(value: Any, name: str) -> np.ndarray:
    array = np.asarray(value, np.float64)
    if array.shape[-1:] not in ((2,), (3,)) or array.ndim > 2:
        raise ValueError(f"{name} has the shape {array.shape}: [x, y] is wanted")
    return np.atleast_2d(array[..., :2])


def plans(route: Route, frames_per_s: float) -> np.ndarray:
    """Where the vehicle was at each waypoint's time, as seen from each frame; as many frames as
    have enough after them."""
    after = round(np.ceil(WAYPOINTS * WAYPOINT_S * frames_per_s))
    count = max(0, len(route) - after)
    wanted = WAYPOINT_S * frames_per_s * np.arange(1, WAYPOINTS + 1)
    frames = np.arange(len(route))
    found = np.empty((count, WAYPOINTS, 2), np.float32)
    for index in range(count):
        points = [np.interp(index + wanted, frames, route.positions[:, axis]) for axis in (0, 1)]
        pose = np.array([*route.positions[index], route.headings[index]])
        found[index] = to_ego(np.stack(points, -1), pose)
    return found


_AGAIN = "record them again, or remove these frames with their BEV"
_SAID: dict[Kind, Finding] = {
    "measurement": Finding(
        slug="bev-measurement",
        what="files of measurements that cannot be used: {count}",
        why="",
        fix=_AGAIN,
    ),
    "not finite": Finding(
        slug="bev-not-finite",
        what="files with numbers that are not finite: {count}",
        why="",
        fix=_AGAIN,
    ),
    "missing": Finding(
        slug="bev-missing",
        what="frames without a BEV: {count}",
        why="",
        fix="remove their measurements, or draw their BEV",
    ),
    "shape": Finding(
        slug="bev-shape",
        what="BEV files that are not what the model takes: {count}",
        why="",
        fix="bev_channels=, bev_cells= and bev_kind= as the files are, or draw them again",
    ),
}


def as_findings(problems: list[Problem], folder: Path) -> list[Finding]:
    """One Finding of each kind, with the first files and their frames."""
    kinds: dict[Kind, list[Problem]] = {}
    for problem in problems:
        kinds.setdefault(problem.kind, []).append(problem)
    return [
        replace(
            _SAID[kind],
            what=_SAID[kind].what.format(count=len(several)),
            why=f"options.data = {folder}; {_name(several, folder)}",
        )
        for kind, several in kinds.items()
    ]


def _name(several: list[Problem], folder: Path) -> str:
    return first_few(
        [
            f"`{problem.path.relative_to(folder)}`, frame {problem.index}: {problem.why}"
            for problem in several
        ]
    )
