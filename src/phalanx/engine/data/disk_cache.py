"""Samples that were made once, kept on disk for this run and later ones: a file for each, in the
user's cache folder, that all ranks and loader processes of a machine share.

    8 bytes: size of the file | 8 bytes: size of the header | header | arrays
A file is named after what its sample comes from, which the data set's `origin(index)` says: an
image that was changed is looked for under another name. Files appear whole. They stay until
somebody removes the folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any

from phalanx.engine.data.micro_batches import takes
from phalanx.engine.data.sample_cache import MISSING, can_load, keep_loaded
from phalanx.engine.data.sample_format import UnknownTypeError, decode_sample, encode_sample
from phalanx.run.cache import cache_folder

_VERSION = 1  # of the files' form
_PREFIX = struct.Struct("<qq")


def samples_folder() -> Path:
    """Where they are."""
    return cache_folder("samples")


def has_origin(data: Any) -> bool:
    """Whether a data set says what its samples come from."""
    return can_load(data) and callable(getattr(data, "origin", None)) and takes(data.origin, 1)


class DiskCache:
    """A folder of samples; every process may add to it."""

    def __init__(self, folder: Path, *, limit_bytes: int) -> None:
        """`limit_bytes` is what may be added while this is open, by whomever: less than the rest of
        the free room is never left."""
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._least_free = max(0, shutil.disk_usage(folder).free - limit_bytes)
        self._is_full = False

    def keep(self, data: Any, first: int = 0) -> Any:
        """The data set with what its `load(index)` gives made once."""
        if not has_origin(data):
            return data
        return keep_loaded(
            data,
            lambda index: self.get(data.origin(index)),
            lambda index, sample: self.put(data.origin(index), sample),
        )

    def get(self, origin: str) -> Any:
        """The sample, or MISSING."""
        try:
            with self._path(origin).open("rb", buffering=0) as file:
                return self._read(file)
        except (OSError, ValueError, KeyError, TypeError, struct.error):
            return MISSING

    def put(self, origin: str, sample: Any) -> None:
        """Keep a sample, if there is room for it."""
        if self._is_full:
            return
        try:
            header, *arrays = encode_sample(sample)
        except UnknownTypeError:
            return  # others may do; those that were looked at before training did
        size = _PREFIX.size + len(header) + sum(len(part) for part in arrays)
        target = self._path(origin)
        temporary: Path | None = None
        try:
            if shutil.disk_usage(self._folder).free - size < self._least_free:
                self._is_full = True
                return
            target.parent.mkdir(mode=0o700, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
                temporary = Path(file.name)
                for part in (_PREFIX.pack(size, len(header)), header, *arrays):
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())  # before the name, which a crash must not find empty
            temporary.replace(target)
        except OSError:  # a full or read-only disk: keep what there is
            self._is_full = True
            if temporary is not None:
                temporary.unlink(missing_ok=True)

    def _read(self, file: Any) -> Any:
        size, header_bytes = _PREFIX.unpack(file.read(_PREFIX.size))
        if os.fstat(file.fileno()).st_size != size or not 0 < header_bytes < size:
            return MISSING
        header = file.read(header_bytes)

        def fill(buffer: memoryview) -> None:
            while buffer:
                count = file.readinto(buffer)
                if not count:
                    raise ValueError("a sample that was kept ends early")
                buffer = buffer[count:]

        return decode_sample(header, fill)

    def _path(self, origin: str) -> Path:
        name = hashlib.sha256(f"{_VERSION}\0{origin}".encode()).hexdigest()[:40]
        return self._folder / name[:2] / name[2:]
