"""Samples kept on disk: the same bits, whole or not at all, never those of a file that changed."""

import shutil

import numpy as np
import pytest
import torch

from phalanx.engine.data.disk_cache import DiskCache, has_origin
from phalanx.engine.data.sample_cache import MISSING

ROOM = 10**9


class Pictures:
    """Files that are read as pixels; what is read is counted."""

    def __init__(self, folder, count=3):
        self.files = [folder / f"{n}.raw" for n in range(count)]
        for n, file in enumerate(self.files):
            file.write_bytes(bytes([n] * 12))
        self.read = []

    def __len__(self):
        return len(self.files)

    def origin(self, index):
        about = self.files[index].stat()
        return f"{self.files[index]} {about.st_size} {about.st_mtime_ns}"

    def load(self, index):
        self.read.append(index)
        pixels = np.frombuffer(self.files[index].read_bytes(), np.uint8).reshape(3, 4)
        return {"image": pixels.T, "mean": torch.tensor(pixels.mean())}


@pytest.fixture
def pictures(tmp_path):
    (tmp_path / "pictures").mkdir()
    return Pictures(tmp_path / "pictures")


def files_in(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_later_run_reads_nothing_again(pictures, tmp_path):
    first = DiskCache(tmp_path / "kept", limit_bytes=ROOM).keep(pictures)
    made = [first.load(n) for n in range(3)]
    assert pictures.read == [0, 1, 2]
    later = Pictures(tmp_path / "pictures", 0)
    later.files = pictures.files
    kept = DiskCache(tmp_path / "kept", limit_bytes=ROOM).keep(later)
    for n, sample in enumerate(made):
        again = kept.load(n)
        np.testing.assert_array_equal(again["image"], sample["image"])
        assert again["image"].strides == sample["image"].strides
        assert torch.equal(again["mean"], sample["mean"])
    assert later.read == []
    assert len(files_in(tmp_path / "kept")) == 3


def test_a_picture_that_changed_is_read_anew(pictures, tmp_path):
    kept = DiskCache(tmp_path / "kept", limit_bytes=ROOM).keep(pictures)
    kept.load(1)
    pictures.files[1].write_bytes(bytes([9] * 12) + b"")
    pictures.files[1].touch()
    assert int(kept.load(1)["image"][0, 0]) == 9
    assert pictures.read == [1, 1]


def test_half_a_file_is_no_sample(pictures, tmp_path):
    cache = DiskCache(tmp_path / "kept", limit_bytes=ROOM)
    cache.put("x", pictures.load(0))
    (file,) = files_in(tmp_path / "kept")
    whole = file.read_bytes()
    for content in (whole[:-1], whole[:10], b"", whole + b"more", b"{" * len(whole)):
        file.write_bytes(content)
        assert cache.get("x") is MISSING
    file.write_bytes(whole)
    assert cache.get("x") is not MISSING


def test_room_that_others_need_is_left(pictures, tmp_path, monkeypatch):
    # Whoever else writes to this disk meanwhile changes what is free.
    free = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("phalanx.engine.data.disk_cache.shutil.disk_usage", lambda folder: free)
    cache = DiskCache(tmp_path / "kept", limit_bytes=0)
    cache.put("x", pictures.load(0))
    assert cache.get("x") is MISSING
    assert files_in(tmp_path / "kept") == []


def test_a_disk_that_fails_costs_nothing_but_time(pictures, tmp_path, monkeypatch):
    cache = DiskCache(tmp_path / "kept", limit_bytes=ROOM)

    def fail(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("phalanx.engine.data.disk_cache.os.fsync", fail)
    kept = cache.keep(pictures)
    assert int(kept.load(2)["image"][0, 0]) == 2
    assert files_in(tmp_path / "kept") == []  # the half is removed too


def test_data_without_an_origin_stays_as_it_is(pictures, tmp_path):
    class Plain:
        def __len__(self):
            return 1

        def load(self, index):
            return index

    assert has_origin(pictures) and not has_origin(Plain())
    plain = Plain()
    assert DiskCache(tmp_path / "kept", limit_bytes=ROOM).keep(plain) is plain
    assert "load" not in vars(plain)
