"""Samples as bytes and back, to the bit: a JSON header that says how they nest, then raw arrays.

What a header holds: plain values as they are, `[tag, ...]` for all else. Strides are kept where an
array has no gaps, since arithmetic on another layout may round otherwise, and arrays are read into
memory of their own, as torch and numpy lay it out: nothing downstream can tell a sample that was
kept from one that was made, and whatever changes it in place changes nobody else's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Fill = Callable[[memoryview], None]
"""Reads the next bytes of a sample into a buffer."""

_PLAIN = (type(None), bool, int, float, str)


class UnknownTypeError(TypeError):
    """A sample holds something that has no form here."""

    def __init__(self, where: str, kind: str) -> None:
        super().__init__(f"{where} is {kind}")
        self.where = where
        self.kind = kind


def encode_sample(sample: Any) -> list[bytes | memoryview]:
    """The header and the arrays of a sample, in the order in which they are read back."""
    arrays: list[bytes | memoryview] = []
    header = json.dumps(_describe(sample, "sample", arrays), separators=(",", ":")).encode()
    return [header, *arrays]


def decode_sample(header: bytes, fill: Fill) -> Any:
    """A sample from its header and what reads its arrays."""
    return _restore(json.loads(header), fill)


def _describe(value: Any, where: str, arrays: list[bytes | memoryview]) -> Any:
    kind = type(value)  # not isinstance: what is derived may do more than what it derives from
    if kind in _PLAIN:
        return value
    if kind is dict:
        unknown = [key for key in value if type(key) not in _PLAIN]
        if unknown:
            raise UnknownTypeError(f"a key of {where}", name_type(unknown[0]))
        pairs = value.items()
        return ["dict", [[key, _describe(v, f"{where}[{key!r}]", arrays)] for key, v in pairs]]
    if kind is list or kind is tuple:
        inner = [_describe(v, f"{where}[{n}]", arrays) for n, v in enumerate(value)]
        return [kind.__name__, inner]
    if kind is torch.Tensor:
        return _describe_tensor(value, where, arrays)
    if kind in (np.ndarray, np.memmap) or isinstance(value, np.generic):
        return _describe_array(value, where, arrays)
    if kind is bytes:
        arrays.append(value)
        return ["bytes", len(value)]
    raise UnknownTypeError(where, name_type(value))


def _describe_tensor(tensor: torch.Tensor, where: str, arrays: list[bytes | memoryview]) -> Any:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise UnknownTypeError(where, f"a {tensor.layout} tensor on {tensor.device}")
    if tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
        raise UnknownTypeError(where, "a tensor that is not computed yet, or that learns")
    strides = tensor.stride()
    packed = tensor.permute(_outer_first(strides))
    if not packed.is_contiguous():
        packed = tensor.contiguous()
        strides = packed.stride()
    arrays.append(packed.reshape(-1).view(torch.uint8).numpy().data)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return ["tensor", dtype, list(tensor.shape), list(strides)]


def _describe_array(value: Any, where: str, arrays: list[bytes | memoryview]) -> Any:
    array = np.asarray(value)
    name = array.dtype.str
    if array.dtype.hasobject or np.dtype(name) != array.dtype:
        raise UnknownTypeError(where, f"a numpy array of {array.dtype}")
    strides = array.strides
    packed = array.transpose(_outer_first(strides))
    if not packed.flags.c_contiguous:
        packed = np.ascontiguousarray(array)
        strides = packed.strides
    arrays.append(packed.reshape(-1).view(np.uint8).data)
    tag = "scalar" if isinstance(value, np.generic) else "array"
    return [tag, name, list(array.shape), list(strides)]


def _outer_first(strides: tuple[int, ...]) -> list[int]:
    return sorted(range(len(strides)), key=lambda axis: -strides[axis])


def _restore(node: Any, fill: Fill) -> Any:
    if not isinstance(node, list):
        return node
    tag, content = node[0], node[1]
    if tag == "dict":
        return {key: _restore(value, fill) for key, value in content}
    if tag == "list":
        return [_restore(value, fill) for value in content]
    if tag == "tuple":
        return tuple([_restore(value, fill) for value in content])
    if tag == "bytes":
        buffer = bytearray(content)
        fill(memoryview(buffer))
        return bytes(buffer)
    shape, strides = node[2], node[3]
    if tag == "tensor":
        size = _count(shape)
        flat = torch.empty(size, dtype=getattr(torch, content))
        fill(flat.view(torch.uint8).numpy().data)
        return flat.as_strided(shape, strides)
    filled = np.empty(_count(shape), np.dtype(content))
    fill(filled.view(np.uint8).data)
    array: Any = np.ndarray(shape, filled.dtype, filled, strides=strides)
    return array[()] if tag == "scalar" else array


def _count(shape: list[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def name_type(value: Any) -> str:
    """The class of a value as it is imported."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
