"""A few numbers per tensor: equal for equal tensors, different for any other, and shards add up."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from phalanx.engine.model import fingerprint
from phalanx.engine.model.fingerprint import fingerprints, part_label
from phalanx.engine.model.shards import shard_of


def make(tensor, name="weight"):
    return fingerprints({name: shard_of(tensor, is_first=True)})[name]


def test_norm_and_distance_are_those_of_the_tensors():
    a, b = torch.randn(2, 50, 40, generator=torch.Generator().manual_seed(0)).double()
    assert make(a).norm == pytest.approx(a.norm().item())
    # Three products estimate the distance; the norm bounds it from below.
    assert 0.1 < make(a).distance(make(b)) / (a - b).norm().item() < 3
    assert make(a).distance(make(a.clone())) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_every_dtype_is_read(dtype):
    values = torch.tensor([0, 1, 1, 0, 1])
    assert make(values.to(dtype)).squares == 3


def test_complex_sparse_empty_and_missing_tensors_are_read():
    z = torch.complex(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    assert make(z).squares == 30
    assert make(z).distance(make(z.conj().resolve_conj())) > 0.1
    dense = torch.tensor([0.0, 3.0, 0.0])
    assert make(dense.to_sparse()) == make(dense)
    assert make(torch.empty(0)).squares == 0
    assert fingerprints({"a": None})["a"] is None


def test_steps_of_equal_size_in_other_directions_do_not_cancel():
    # What Adam does in its first step: +lr or -lr for each element. Products with random signs
    # would show nothing for half of all such pairs.
    base = torch.zeros(16)
    for i in range(16):
        for j in range(i):
            a, b = base.clone(), base.clone()
            a[i], a[j], b[i], b[j] = 1.0, 1.0, -1.0, -1.0
            assert make(a).norm == make(b).norm
            assert make(a).distance(make(b)) > 1e-3
    swapped = torch.arange(16.0)
    swapped[[3, 4]] = swapped[[4, 3]]
    assert make(swapped).distance(make(torch.arange(16.0))) > 1e-3


def test_a_difference_of_one_part_in_a_billion_is_seen():
    a = torch.randn(1000, dtype=torch.float64)
    b = a.clone()
    b[7] += 1e-9
    assert 1e-10 < make(a).distance(make(b)) < 1e-8


def test_names_have_vectors_of_their_own():
    x = torch.ones(100)
    assert make(x, "a").projections != make(x, "b").projections


def test_large_tensors_are_read_in_chunks(monkeypatch):
    x = torch.randn(7, 11, dtype=torch.float64)
    whole = make(x)
    monkeypatch.setattr(fingerprint, "_CHUNK", 5)
    assert make(x).distance(whole) < 1e-12


@pytest.fixture
def as_rank():
    """Be some rank of a world that is not there."""

    def become(rank, world):
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)

    yield become
    dist.destroy_process_group()


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("rows", [7, 2])  # 7 over 3 ranks are 3, 3, 1; of 2 one rank has none
def test_fingerprints_of_shards_add_up(as_rank, world, rows):
    whole = torch.randn(rows, 5, dtype=torch.float64)
    total, labels = None, set()
    for rank in range(world):
        as_rank(rank, world)
        mesh = init_device_mesh("cpu", (world,))
        pieces = [*whole.chunk(world), *[whole[:0]] * world]
        sharded = DTensor.from_local(
            pieces[rank], mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=(5, 1)
        )
        labels.add(part_label(shard_of(sharded, is_first=True)))
        total = make(sharded) if total is None else total + make(sharded)
    assert total.distance(make(whole)) < 1e-12
    assert len(labels) == world


def test_a_replicated_dtensor_is_whole(as_rank):
    as_rank(1, 2)
    whole = torch.randn(3, 2)
    held = DTensor.from_local(whole, init_device_mesh("cpu", (2,)), [Replicate()], run_check=False)
    assert part_label(shard_of(held, is_first=True)) == ""
    assert make(held) == make(whole)
