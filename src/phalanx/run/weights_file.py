"""What a file of weights says of itself: which recipe it was trained with, and how.

Phalanx writes one record, as JSON under the name `phalanx`, into the metadata of every file that it
exports. It is read here without torch and without running anything.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

RECORD = "phalanx"
"""The name of our record among a file's metadata."""
SCHEMA_VERSION = 1
EXTRA = "extra"
"""The folder of an archive of torch where files of others may be."""
_MAX_HEADER_BYTES = 100 * 10**6  # the limit of the format safetensors
_TORCH_FILES = (".pt", ".pth", ".torchscript")
_DAMAGED = (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError)
_METADATA_FIELD, _LENGTH_DELIMITED = 14, 2  # ModelProto.metadata_props in onnx.proto


def read_record(path: Path) -> dict[str, Any] | None:
    """Our record in a .safetensors, .onnx or .pt file; None where it has none or cannot be read."""
    try:
        if path.suffix == ".safetensors":
            text = _safetensors_metadata(path).get(RECORD)
        elif path.suffix == ".onnx":
            text = _onnx_metadata(path).get(RECORD)
        elif path.suffix in _TORCH_FILES:
            text = _extra_file(path)
        else:
            return None
        record = json.loads(text) if text is not None else None
    except (*_DAMAGED, BadZipFile, NotImplementedError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _safetensors_metadata(path: Path) -> dict[str, str]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if not 0 < size <= _MAX_HEADER_BYTES:
            return {}
        metadata: dict[str, str] = json.loads(file.read(size)).get("__metadata__", {})
        return metadata


def _extra_file(path: Path) -> str | None:
    """Of a zip archive as torch writes it: beside the weights, where torch.jit has its extra files.
    Nothing is unpickled."""
    with ZipFile(path) as archive:
        name = next((n for n in archive.namelist() if n.endswith(f"/{EXTRA}/{RECORD}")), None)
        if name is None or archive.getinfo(name).file_size > _MAX_HEADER_BYTES:
            return None
        return archive.read(name).decode()


def add_record(path: Path, record: dict[str, Any]) -> None:
    """Put a record into a .pt file that was just written; torch reads it as before."""
    with ZipFile(path, "a") as archive:
        folder = archive.namelist()[0].split("/")[0]
        archive.writestr(f"{folder}/{EXTRA}/{RECORD}", json.dumps(record))


def _onnx_metadata(path: Path) -> dict[str, str]:
    """The pairs of a model, found by passing over its other fields: the graph is not read."""
    found = {}
    length = path.stat().st_size
    with path.open("rb") as file:
        while file.tell() < length:
            field, kind = divmod(_varint(file), 8)
            if kind == 0:
                _varint(file)
                continue
            if kind != _LENGTH_DELIMITED:
                raise ValueError(f"no ONNX file: field {field} of kind {kind}")
            size = _varint(file)
            if field != _METADATA_FIELD:
                file.seek(size, 1)
                continue
            pair = _pair(file.read(size))
            found[pair[1]] = pair[2]
    return found


def _pair(message: bytes) -> dict[int, str]:
    """A StringStringEntryProto: key and value."""
    from io import BytesIO

    file, texts = BytesIO(message), {}
    while file.tell() < len(message):
        field = _varint(file) // 8
        texts[field] = file.read(_varint(file)).decode()
    return texts


def _varint(file: Any) -> int:
    """A number as protobuf writes it: seven bits in a byte, the lowest first."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return int(value)
    raise ValueError("a number of more than ten bytes")
