"""What is missing or damaged is read as nothing, and never raises."""

import pytest

from phalanx.run import reading
from phalanx.run.reading import read_end, read_json, read_yaml


@pytest.mark.parametrize("read", [read_json, read_yaml])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_file_is_empty(tmp_path, read, content):
    path = tmp_path / "file"
    assert read(path) == {}
    path.write_bytes(content)
    assert read(path) == {}


def test_a_whole_file_is_read(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text('{"a": {"b": 1}}')
    assert read_json(path) == read_yaml(path) == {"a": {"b": 1}}
    monkeypatch.setattr(reading, "_LONGEST_YAML", 4)
    assert read_yaml(path) == {}


def test_the_end_of_a_file_is_read(tmp_path):
    path = tmp_path / "file"
    assert read_end(path, 3) == b""
    path.write_bytes(b"abcdef")
    assert read_end(path, 3) == b"def"
    assert read_end(path, 10) == b"abcdef"
