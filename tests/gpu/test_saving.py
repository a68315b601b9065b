"""Checkpoints on a real GPU: copied in the order of its work, written beside training."""

import threading
import time

import pytest
import torch

from phalanx.engine.checkpoint.host_copy import HostCopy
from phalanx.engine.checkpoint.tensors import Content, write_checkpoint
from phalanx.engine.model.shards import Shard
from phalanx.engine.model.tensor_file import TensorFile, part_of
from tests.fixtures.event_lines import read_events
from tests.gpu.test_training import JOB
from tests.ranks.command import latest, phalanx
from tests.ranks.runs import RECIPE, assert_same_bits

NAME = "model.safetensors"


def content_of(tensors, step=1):
    parts = {n: part_of(Shard(t, tuple(t.shape))) for n, t in tensors.items()}
    return Content(step, {NAME: parts}, {"step": step})


@pytest.mark.parametrize("is_strided", [False, True])
def test_weights_may_move_on_at_once(tmp_path, is_strided):
    device, copy = torch.device("cuda", 0), HostCopy(torch.device("cuda", 0))
    weights = torch.zeros(4096, 8192, device=device)
    weights = weights.t() if is_strided else weights
    for value in (1.0, 2.0):
        torch.cuda._sleep(200_000_000)  # the device is behind the host
        weights.fill_(value)
        torch.cuda.set_sync_debug_mode("error" if value == 2 else "default")
        try:
            taken = copy.take(content_of({"w": weights}, step=int(value)))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        weights.fill_(99.0)
        writer = threading.Thread(target=write_checkpoint, args=(tmp_path, taken))
        writer.start()
        writer.join()
        read = TensorFile(tmp_path / f"checkpoint-{int(value)}" / NAME).read("w")
        assert (read == value).all()
        assert copy.stall_s() > 0
    assert weights.max() == 99


def test_taking_again_allocates_nothing():
    device, copy = torch.device("cuda", 0), HostCopy(torch.device("cuda", 0))
    tensors = {str(n): torch.rand(1000, 1000, device=device) for n in range(50)}
    first = copy.take(content_of(tensors))
    pieces = [piece.data_ptr() for part in first.files[NAME].values() for piece in part.pieces]
    assert all(p.is_pinned() for part in first.files[NAME].values() for p in part.pieces)
    first.wait()
    started = time.perf_counter()
    second = copy.take(content_of(tensors))
    second.wait()
    assert time.perf_counter() > started
    again = [piece.data_ptr() for part in second.files[NAME].values() for piece in part.pieces]
    assert again == pieces


def test_checkpoints_while_training_are_those_of_their_step(tmp_path):
    """Written beside training and while it waits: the same bytes."""
    (tmp_path / "job.yaml").write_text(JOB.format(recipe=RECIPE, precision="fp32"))
    runs = []
    for background in ("on", "off"):
        more = ("cast=true", "checkpoint.every=5 steps", f"checkpoint.background={background}")
        assert phalanx("train", "job.yaml", *more, cwd=tmp_path)[0] == 0
        runs.append(latest(tmp_path))
    assert_same_bits(*runs)
    for run in runs:
        saved = [e.data for e in read_events(run.events) if e.kind == "checkpoint"]
        assert [data["step"] for data in saved][-1] == 30
        assert all(data["write_s"] > 0 for data in saved)
