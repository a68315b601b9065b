"""Samples as bytes and back, kept by many processes at once; what may be kept at all."""

import errno
import io
import os
import random

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from phalanx.engine.data import sample_cache
from phalanx.engine.data.micro_batches import choose_fetch
from phalanx.engine.data.sample_cache import MISSING, open_cache
from phalanx.engine.data.sample_format import UnknownTypeError, decode_sample, encode_sample
from phalanx.engine.process.group import Process
from phalanx.recipe import Tensors
from phalanx.tracing.cacheable import examine_data

IDS = np.array([4, 0, 2])
ALONE = Process(0, 1, torch.device("cpu"), "none")


def make_cache(samples=10, limit_bytes=2**20):
    return open_cache(ALONE, samples=samples, limit_bytes=limit_bytes)


def round_trip(sample):
    header, *arrays = encode_sample(sample)
    stored = io.BytesIO(b"".join(bytes(part) for part in arrays))
    return decode_sample(header, stored.readinto)


@pytest.mark.parametrize(
    "array",
    [
        torch.rand(3, 4, 5).permute(2, 0, 1),
        torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.rand(3).bfloat16(),
        torch.tensor(True),
        torch.empty(0, 3),
        np.arange(12.0).reshape(3, 4).T,
        np.array("text"),
        np.empty((0, 3), np.int16),
        np.float32(1.5),
        np.datetime64("2020-01-01"),
    ],
    ids=lambda array: f"{type(array).__name__} {array.dtype} {list(array.shape)}",
)
def test_arrays_come_back_with_their_layout(array):
    back = round_trip({"inner": [array]})["inner"][0]
    assert type(back) is type(array)
    assert back.dtype == array.dtype
    assert str(back) == str(array)
    if isinstance(array, torch.Tensor):
        assert back.stride() == array.stride()
    else:
        assert back.strides == array.strides


def test_arrays_with_gaps_come_back_without():
    for array in (torch.rand(3).expand(4, 3), np.arange(10)[::-1], np.zeros((4, 6))[:, ::2]):
        assert np.array_equal(round_trip(array), array)


def test_nestings_and_values_come_back():
    sample = {
        "a": (1, [2.5, None]),
        3: True,
        "b": b"\0\1",
        "big": 10**30,
        "zero": -0.0,
        "é": "\ud800",
    }
    back = round_trip(sample)
    assert repr(back) == repr(sample)


@pytest.mark.parametrize("sample", [{1, 2}, np.array([None]), torch.rand(2, requires_grad=True)])
def test_what_has_no_form_is_named(sample):
    with pytest.raises(UnknownTypeError, match=r"^sample\['x'\]\[1\] is "):
        encode_sample({"x": [0, sample]})


def in_processes(count, work):
    """Run `work(number)` in so many forked processes at once."""
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            try:
                work(number)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * count


def test_many_processes_keep_samples_at_once():
    cache = make_cache(samples=200, limit_bytes=2**24)

    def keep_all(number):
        order = list(range(200))
        random.Random(number).shuffle(order)
        for index in order:
            found = cache.get(index)
            if found is MISSING:
                cache.put(index, np.full(index + 1, index))
            else:
                assert np.array_equal(found, np.full(index + 1, index))

    in_processes(4, keep_all)
    for index in range(200):
        assert np.array_equal(cache.get(index), np.full(index + 1, index))


def test_no_two_processes_get_the_same_room():
    cache = make_cache(limit_bytes=2**30)
    before = cache.used_bytes
    in_processes(4, lambda _: [cache._reserve(64) for _ in range(3000)])
    assert cache.used_bytes == before + 4 * 3000 * 64


def test_a_full_cache_keeps_what_it_has(monkeypatch):
    cache = make_cache(limit_bytes=64 + 80 + 4096)
    cache.put(0, b"a" * 1000)
    cache.put(1, b"b" * 4000)
    cache.put(2, b"c" * 1000)
    assert cache.get(0) == b"a" * 1000
    assert cache.get(1) is MISSING
    assert cache.get(2) == b"c" * 1000

    def no_memory(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(sample_cache.os, "pwrite", no_memory)
    roomy = make_cache()
    roomy._reserve = lambda size: 1024
    roomy.put(0, b"a")
    assert roomy.get(0) is MISSING
    assert cache.get(0) == b"a" * 1000


class Single:
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return {"x": np.full(3, index), "y": index}


class Listed(Single):
    def __getitems__(self, ids):
        return [self[index] for index in ids]


@pytest.mark.parametrize("data", [Single(), Listed(), Subset(Single(), range(10))])
def test_samples_without_keys_are_kept_whole(data):
    kept, finding = examine_data(data)
    assert finding is None
    assert kept.what == "sample"
    before = choose_fetch(data)(IDS, IDS)
    fetch = choose_fetch((cache := make_cache()).keep(data))
    for _ in range(2):
        batch = fetch(IDS, IDS)
        assert batch.keys() == before.keys()
        assert all(torch.equal(batch[name], before[name]) for name in batch)
    assert cache.get(4)["y"] == 4
    assert cache.get(1) is MISSING


class WithLoad(Single):
    def load(self, index):
        return {"x": np.full(3, index), "y": index}

    def __getitem__(self, index, key):  # noqa: PLE0302 what a recipe may offer
        return self.load(index)


def test_load_is_answered_from_memory_and_other_arguments_are_not():
    data = WithLoad()
    assert examine_data(data)[0].what == "load"
    (cache := make_cache()).keep(data)
    assert [data.load(index)["y"] for index in (3, np.int64(3), -1, 12)] == [3, 3, -1, 12]
    assert cache.get(3)["y"] == 3


def test_arrays_in_memory_are_left_alone():
    assert examine_data(Tensors({"x": np.zeros(4)})) == (None, None)


class DrawsFromTorch(Single):
    def __getitem__(self, index):
        is_flipped = torch.rand(()) < 1e-9  # seldom, as some augmentations are
        return {"x": torch.zeros(3) + is_flipped}


class DrawsFromItsOwn(Single):
    generator = random.Random(1)

    def __getitem__(self, index):
        return self.generator.random()


class LoadDraws(WithLoad):
    def load(self, index):
        return np.random.rand(3)


class WithKey(Single):
    def __getitem__(self, index, key):  # noqa: PLE0302 what a recipe may offer
        return index


class BatchedWithKeys(Single):
    def __getitems__(self, ids, keys):
        return torch.from_numpy(ids)


class LoadUnused(WithLoad):
    def __getitem__(self, index, key):  # noqa: PLE0302 what a recipe may offer
        return index


class LoadOfPaths(WithLoad):
    def load(self, path):
        return path.upper()


class Pictures(Single):
    def __getitem__(self, index):
        from PIL import Image

        return {"image": Image.new("RGB", (2, 2))}


@pytest.mark.parametrize(
    ("kind", "slug", "words"),
    [
        (DrawsFromTorch, "cache-random", "global generator of torch"),
        (DrawsFromItsOwn, "cache-random", "two different ones"),
        (LoadDraws, "cache-random", "global generator of numpy"),
        (WithKey, "cache-needs-load", "__getitem__(index, key)"),
        (BatchedWithKeys, "cache-needs-load", "__getitems__(ids, keys)"),
        (LoadUnused, "cache-needs-load", "not called"),
        (LoadOfPaths, "cache-needs-load", "has no attribute 'upper'"),
        (Pictures, "cache-type", "sample['image'] of Pictures is PIL.Image.Image"),
    ],
)
def test_what_cannot_be_kept_is_found_before_training(kind, slug, words):
    kept, finding = examine_data(kind())
    assert kept is None
    assert finding.slug == slug
    assert words in f"{finding.what} {finding.why}"
    assert "load" in finding.fix


def test_a_rank_that_cannot_open_the_memory_says_so(monkeypatch):
    monkeypatch.setattr(Process, "gather", lambda self, table: torch.tensor([[2**30, 3, 1]] * 2))
    second = Process(1, 2, torch.device("cpu"), "gloo", local_rank=1)
    with pytest.raises(sample_cache.UserError) as raised:
        open_cache(second, samples=1, limit_bytes=1024)
    assert raised.value.findings[0].slug == "cache-not-shared"
