"""What is planted into ranks: a death at one point of saving, an error of the file system."""

import os
from functools import wraps

from tests.faults.apart import die, is_rank

POINTS = (
    "before data",
    "mid-file",
    "before fsync",
    "before manifest",
    "before rename",
    "after rename",
    "before latest",
    "after latest",
)
AFTER = ("after rename", "before latest", "after latest")
"""Where the new checkpoint is whole already."""


class _Armed:
    """Whether the checkpoint of the step that is meant is being written."""

    step = None
    is_now = False


def _arm(step):
    from phalanx.engine.rank import saving

    write = saving.write_checkpoint

    @wraps(write)
    def watched(folder, content, **rest):
        _Armed.is_now = content.step >= step
        return write(folder, content, **rest)

    saving.write_checkpoint = watched


def _before(module, name, act):
    """Act before a function, while the checkpoint that is meant is written."""
    function = getattr(module, name)

    @wraps(function)
    def acting(*arguments, **rest):
        if _Armed.is_now:
            act(*arguments)
        return function(*arguments, **rest)

    setattr(module, name, acting)


def crash_in_save(point, step, rank=0):
    """Kill a rank at a point of saving a step."""
    if not is_rank(rank):
        return
    from phalanx.engine.checkpoint import tensors as checkpoint
    from phalanx.engine.model import tensor_file
    from phalanx.engine.rank import saving
    from phalanx.run import checkpoints, directory

    _arm(step)

    def half_and_die(file, piece, offset):
        data = tensor_file.as_bytes(piece).tobytes()
        os.pwrite(file, data[: max(1, len(data) // 2)], offset)
        die()

    def die_here(*_):
        die()

    places = {
        "before data": (checkpoint, "_create", die_here),
        "mid-file": (tensor_file, "_write_piece", half_and_die),
        "before fsync": (tensor_file.os, "fsync", die_here),
        "before manifest": (checkpoints, "_write_manifest", die_here),
        "before rename": (directory, "_sync_tree", die_here),
        "after rename": (saving, "publish", die_here),
        "before latest": (checkpoints, "swap_link", die_here),
        "after latest": (checkpoints, "list_checkpoints", die_here),
    }
    _before(*places[point])


def fail_in_save(number, step, times=None, rank=0, call="fsync"):
    """Let a call fail while checkpoints of a step or later are written: so often, or always."""
    if not is_rank(rank):
        return
    from phalanx.engine.model import tensor_file

    _arm(step)
    left = [times]

    def fail(*_):
        if left[0] is None or left[0] > 0:
            left[0] = None if left[0] is None else left[0] - 1
            raise OSError(number, os.strerror(number))

    _before(tensor_file.os, call, fail)


def lie_about_room(step):
    """Let the disk look larger than it is: what fits is found out by writing."""
    from phalanx.engine.checkpoint import tensors as checkpoint

    del step
    checkpoint.check_room = lambda folder, wanted: None
