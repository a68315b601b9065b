"""Copies of what a checkpoint holds: of one moment, in memory that is used again."""

import threading

import pytest
import torch

from phalanx.engine.checkpoint.host_copy import HostCopy, HostMemoryError
from phalanx.engine.checkpoint.tensors import Content, write_checkpoint
from phalanx.engine.model.shards import Shard
from phalanx.engine.model.tensor_file import TensorFile, part_of
from phalanx.engine.process.background import Background
from phalanx.machine.facts import Memory

CPU = torch.device("cpu")
NAME = "model.safetensors"


def content_of(tensors, *, step=1, mine=lambda name: True):
    parts = {
        name: part_of(Shard(tensor, tuple(tensor.shape), is_mine=mine(name)))
        for name, tensor in tensors.items()
    }
    return Content(step, {NAME: parts}, {"step": step})


@pytest.mark.parametrize("chunk", [64 * 2**20, 256])
def test_weights_may_move_on_once_they_are_copied(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr("phalanx.engine.checkpoint.host_copy.CHUNK_BYTES", chunk)
    monkeypatch.setattr("phalanx.engine.model.tensor_file.CHUNK_BYTES", chunk)
    tensors = {
        "wide": torch.rand(50, 7),
        "turned": torch.rand(9, 31).t(),
        "images": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "half": torch.rand(33).bfloat16(),
        "count": torch.tensor(7),
        "flags": torch.tensor([True, False, True]),
        "nothing": torch.empty(0, 4),
    }
    copy = HostCopy(CPU)
    for step in (1, 2):
        expected = {name: tensor.clone() for name, tensor in tensors.items()}
        taken = copy.take(content_of(tensors, step=step))
        for tensor in tensors.values():
            tensor.zero_()
        path = write_checkpoint(tmp_path, taken)
        file = TensorFile(path / NAME)
        for name, tensor in expected.items():
            assert torch.equal(file.read(name), tensor), name
        for name in ("wide", "turned", "images", "half"):
            tensors[name].add_(step)


def test_memory_is_used_again_and_found_for_what_is_new():
    copy = HostCopy(CPU)
    one = copy.take(content_of({"a": torch.ones(100)}))
    more = copy.take(content_of({"a": torch.ones(100), "b": torch.ones(10)}))
    again = copy.take(content_of({"a": torch.zeros(100), "b": torch.zeros(10)}))
    places = [part.pieces[0].data_ptr() for part in more.files[NAME].values()]
    assert places[0] == one.files[NAME]["a"].pieces[0].data_ptr()
    assert places == [part.pieces[0].data_ptr() for part in again.files[NAME].values()]
    assert len(set(places)) == 2


def test_what_another_rank_writes_is_not_copied():
    taken = HostCopy(CPU).take(
        content_of({"a": torch.ones(5), "b": torch.ones(6)}, mine=lambda name: name == "a")
    )
    parts = taken.files[NAME]
    assert parts["a"].pieces[0].tolist() == [1] * 5
    assert parts["b"].pieces == []
    assert parts["b"].shape == (6,)


@pytest.mark.parametrize(("writers", "is_enough"), [(1, True), (8, False)])
def test_memory_that_is_not_there_is_not_taken(monkeypatch, writers, is_enough):
    free = Memory(total_bytes=10**9, available_bytes=2_000_000, physical_bytes=10**9)
    monkeypatch.setattr("phalanx.engine.checkpoint.host_copy.probe_memory", lambda limits: free)
    copy = HostCopy(CPU, writers=writers)
    content = content_of({"a": torch.ones(100_000)})
    if is_enough:
        copy.take(content)
        return
    with pytest.raises(HostMemoryError, match=r"390.6 KiB .* each of 8 ranks here.* 1.9 MiB"):
        copy.take(content)


def test_one_piece_of_work_at_a_time():
    background, may_end, seen = Background(), threading.Event(), []
    assert background.wait() == 0
    background.start(lambda: (may_end.wait(30), seen.append("first")))
    assert background.is_busy
    threading.Timer(0.05, may_end.set).start()
    background.start(lambda: seen.append("second"))
    assert seen[0] == "first"
    background.wait()
    assert seen == ["first", "second"]
    assert not background.is_busy
