"""safetensors files written and read in ranges: the same bytes as the reference implementation's,
whatever the cut."""

from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file, save_file

from phalanx.engine.model.shards import Shard
from phalanx.engine.model.tensor_file import TensorFile, write_tensors

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def tensors():
    generator = torch.Generator().manual_seed(0)
    made = {str(t): torch.randint(0, 2, (3, 5), generator=generator).to(t) for t in DTYPES}
    made["scalar"] = torch.tensor(2.5)
    made["empty"] = torch.empty(0, 4)
    made["transposed"] = torch.rand(4, 3, generator=generator).t()
    made["flat"] = torch.rand(101, generator=generator)
    return made


def whole(made):
    return {name: Shard(tensor, tuple(tensor.shape)) for name, tensor in made.items()}


def test_the_reference_implementation_reads_what_is_written(tmp_path):
    made = tensors()
    write_tensors(tmp_path / "file.safetensors", whole(made))
    read = load_file(tmp_path / "file.safetensors")
    assert read.keys() == made.keys()
    for name, tensor in made.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor), name


def test_it_reads_what_the_reference_implementation_writes(tmp_path):
    made = {name: tensor.contiguous() for name, tensor in tensors().items()}
    save_file(made, tmp_path / "file.safetensors", metadata={"format": "pt"})
    file = TensorFile(tmp_path / "file.safetensors")
    assert set(file.names) == made.keys()
    for name, tensor in made.items():
        assert torch.equal(file.read(name), tensor), name
        assert file.read(name).dtype == tensor.dtype


@pytest.mark.parametrize("cuts", [[0, 15], [0, 7, 15], [0, 5, 10, 15], [0, 0, 1, 15, 15]])
def test_any_cut_reads_back(tmp_path, cuts):
    one = torch.rand(3, 5)
    write_tensors(tmp_path / "file.safetensors", whole({"x": one}))
    file = TensorFile(tmp_path / "file.safetensors")
    parts = []
    for start, stop in pairwise(cuts):
        parts.append(torch.full((stop - start,), 9.0))
        file.read_into("x", Shard(parts[-1], (3, 5), start))
    assert torch.equal(torch.cat(parts), one.flatten())


def test_reading_converts_the_type_and_keeps_the_layout(tmp_path):
    one = torch.rand(4, 3)
    write_tensors(tmp_path / "file.safetensors", whole({"x": one}))
    target = torch.empty(3, 4, dtype=torch.float64).t()
    TensorFile(tmp_path / "file.safetensors").read_into("x", Shard(target, (4, 3)))
    assert torch.equal(target, one.double())
    assert not target.is_contiguous()


def test_more_than_one_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr("phalanx.engine.model.tensor_file.CHUNK_BYTES", 64)
    one = torch.rand(7, 11)
    write_tensors(tmp_path / "file.safetensors", whole({"x": one}))
    assert torch.equal(TensorFile(tmp_path / "file.safetensors").read("x"), one)
    half = torch.empty(40, dtype=torch.float64)
    TensorFile(tmp_path / "file.safetensors").read_into("x", Shard(half, (7, 11), 20))
    assert torch.equal(half, one.double().flatten()[20:60])


def test_another_shape_is_refused(tmp_path):
    write_tensors(tmp_path / "file.safetensors", whole({"x": torch.rand(4, 3)}))
    with pytest.raises(ValueError, match=r"`x` is \[4, 3\].*here \[3, 4\]"):
        TensorFile(tmp_path / "file.safetensors").read_into("x", Shard(torch.empty(3, 4), (3, 4)))


@pytest.mark.parametrize("keep", [0, 4, 20, -1])
def test_a_file_that_is_cut_off_is_refused(tmp_path, keep):
    path = tmp_path / "file.safetensors"
    write_tensors(path, whole({"x": torch.rand(4, 3)}))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError):
        TensorFile(path).read("x")
