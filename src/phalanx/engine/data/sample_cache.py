"""Samples that were made once, kept in memory that all processes of a machine share.

    first 64 bytes: bytes in use | one place per sample: where it is, 0: not kept | samples
A sample is written whole before its place is, and says itself which one it is: who reads half of a
place finds no such sample there, and makes it again. Nothing is mapped: a full memory is an error
of a write (and the sample is not kept) instead of the end of the process, and what is shared does
not show up as memory of every process. Two processes that make the same sample at the same time
keep it twice, which is harmless.

The memory has no name (memfd), so nothing is left of it whatever is killed, and a small /dev/shm,
as containers have it, does not limit it. Ranks reach their first neighbour's through /proc.
"""

from __future__ import annotations

import fcntl
import operator
import os
import secrets
import struct
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from phalanx.engine.data.micro_batches import takes
from phalanx.engine.data.sample_format import UnknownTypeError, decode_sample, encode_sample
from phalanx.engine.process.group import Process
from phalanx.errors import Finding, UserError

HEAD_BYTES = 64
PLACE_BYTES = 8
_NUMBER = struct.Struct("<q")
_PREFIX = struct.Struct("<qqq")  # token of the cache, index of the sample, bytes of its header
_FIRST_READ = 1024  # prefix and header of most samples
_ALIGNMENT = 64
MISSING = object()


class SampleCache:
    """A file of samples by index; every process that has it open may add to it."""

    def __init__(self, file: int, *, samples: int, limit_bytes: int, token: int) -> None:
        """`file` is closed with this; `token` is the same for all that have it open."""
        self._file = file
        self._samples = samples
        self._limit = limit_bytes
        self._token = token
        self._begin = _aligned(HEAD_BYTES + PLACE_BYTES * samples)
        self._too_large = limit_bytes  # of a sample; what is free only shrinks
        self._lock = threading.Lock()
        weakref.finalize(self, os.close, file)

    def get(self, index: int) -> Any:
        """The sample, or MISSING."""
        place = os.pread(self._file, PLACE_BYTES, HEAD_BYTES + PLACE_BYTES * index)
        if len(place) < PLACE_BYTES or not any(place):
            return MISSING
        (start,) = _NUMBER.unpack(place)
        head = os.pread(self._file, _FIRST_READ, start) if start >= self._begin else b""
        if len(head) < _PREFIX.size:
            return MISSING
        token, found, size = _PREFIX.unpack_from(head)
        if token != self._token or found != index:
            return MISSING
        position = start + _PREFIX.size + size
        header = head[_PREFIX.size : _PREFIX.size + size]
        if len(header) < size:
            header = os.pread(self._file, size, start + _PREFIX.size)

        def fill(buffer: memoryview) -> None:
            nonlocal position
            while buffer:
                count = os.preadv(self._file, [buffer], position)
                assert count > 0, "a sample that was kept ends early"
                buffer, position = buffer[count:], position + count

        return decode_sample(header, fill)

    def put(self, index: int, sample: Any) -> None:
        """Keep a sample, if there is room for it."""
        try:
            header, *arrays = encode_sample(sample)
        except UnknownTypeError:
            return  # others may do; those that were looked at before training did
        prefix = _PREFIX.pack(self._token, index, len(header))
        size = record_bytes([header, *arrays])
        if size > self._too_large:
            return
        start = self._reserve(size)
        if start is None:
            self._too_large = size - 1
            return
        try:
            position = start
            for part in (prefix, header, *arrays):
                position = self._write(part, position)
            self._write(_NUMBER.pack(start), HEAD_BYTES + PLACE_BYTES * index)
        except OSError:  # no memory, though less than planned is in use: keep what there is
            self._too_large = 0

    def keep(self, data: Any, first: int = 0) -> Any:
        """The data set with its samples made once, at places from `first` on: what its
        `load(index)` gives, where it has that, else what it gives itself."""
        if first + len(data) > self._samples:
            return data  # it has grown since the plan was made
        if not can_load(data):
            return KeptSamples(data, self, first)
        return keep_loaded(
            data,
            lambda index: self.get(first + index),
            lambda index, sample: self.put(first + index, sample),
        )

    @property
    def used_bytes(self) -> int:
        """Of the limit, with the table of places."""
        return _NUMBER.unpack(os.pread(self._file, PLACE_BYTES, 0))[0] or self._begin

    def _reserve(self, size: int) -> int | None:
        # Not flock: that lock would be shared with the processes that are forked from this one.
        with self._lock:
            fcntl.lockf(self._file, fcntl.LOCK_EX, PLACE_BYTES)
            try:
                start = self.used_bytes
                if start + size > self._limit:
                    return None
                self._write(_NUMBER.pack(start + size), 0)
                return start
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN, PLACE_BYTES)

    def _write(self, part: bytes | memoryview, position: int) -> int:
        rest = memoryview(part)
        while rest:
            count = os.pwrite(self._file, rest, position)
            rest, position = rest[count:], position + count
        return position


def record_bytes(parts: Sequence[bytes | memoryview]) -> int:
    """What an encoded sample takes in the cache, without its place."""
    return _aligned(_PREFIX.size + sum(len(part) for part in parts))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def open_cache(process: Process, *, samples: int, limit_bytes: int) -> SampleCache:
    """The cache of this machine; every rank calls this, and the first of each machine makes it."""
    is_maker = process.local_rank == 0
    file, token = _make_file(samples) if is_maker else (-1, 0)
    made = torch.tensor([[os.getpid(), file, token]], dtype=torch.int64)
    maker, number, token = process.gather(made)[process.rank - process.local_rank].tolist()
    try:
        opened = file if is_maker else _open_file(maker, number, token)
    except OSError as error:
        raise UserError(_not_shared(process.rank, error)) from error
    process.barrier()
    if is_maker and not _has_memfd():
        _named_file(maker, token).unlink()
    return SampleCache(opened, samples=samples, limit_bytes=limit_bytes, token=token)


def _make_file(samples: int) -> tuple[int, int]:
    token = secrets.randbits(62)
    if _has_memfd():
        file = os.memfd_create("phalanx-samples")
    else:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        file = os.open(_named_file(os.getpid(), token), flags, mode=0o600)
    os.ftruncate(file, HEAD_BYTES + PLACE_BYTES * samples)
    return file, token


def _open_file(maker: int, number: int, token: int) -> int:
    path = Path(f"/proc/{maker}/fd/{number}") if _has_memfd() else _named_file(maker, token)
    return os.open(path, os.O_RDWR)


def _has_memfd() -> bool:
    return hasattr(os, "memfd_create")


def _named_file(maker: int, token: int) -> Path:
    return Path(tempfile.gettempdir(), f"phalanx-samples-{maker}-{token:x}")


def _not_shared(rank: int, error: OSError) -> Finding:
    return Finding(
        slug="cache-not-shared",
        what=f"rank {rank} cannot open the memory in which samples are kept: {error.strerror}",
        why=f"the ranks of a machine share one copy, made by the first of them: {error.filename}",
        fix="loader.cache=off",
    )


class KeptSamples:
    """A data set without keys whose samples are kept whole."""

    def __init__(self, data: Any, cache: SampleCache, first: int) -> None:
        self._data = data
        self._cache = cache
        self._first = first

    def __len__(self) -> int:
        return len(self._data)

    def __getitems__(self, ids: list[int]) -> list[Any]:
        places = [self._first + index for index in ids]
        samples = [self._cache.get(place) for place in places]
        missing = [n for n, sample in enumerate(samples) if sample is MISSING]
        if missing:
            made = list_samples(self._data, [ids[n] for n in missing])
            for n, sample in zip(missing, made, strict=True):
                self._cache.put(places[n], sample)
                samples[n] = sample
        return samples


def keep_loaded(data: Any, get: Callable[[int], Any], put: Callable[[int, Any], None]) -> Any:
    """The data set with a `load(index)` that asks `get` first, which gives a sample or MISSING, and
    tells `put` what it made."""
    size, make = len(data), data.load

    def load(index: Any) -> Any:
        try:
            number = operator.index(index)
        except TypeError:
            return make(index)
        if not 0 <= number < size:
            return make(index)
        sample = get(number)
        if sample is MISSING:
            sample = make(index)
            put(number, sample)
        return sample

    data.load = load
    return data


def list_samples(data: Any, ids: list[int]) -> Any:
    """Samples of a data set that takes no keys."""
    if hasattr(data, "__getitems__"):
        return data.__getitems__(ids)
    return [data[index] for index in ids]


def can_load(data: Any) -> bool:
    """Whether a data set offers `load(index)`."""
    return callable(getattr(data, "load", None)) and takes(data.load, 1)
