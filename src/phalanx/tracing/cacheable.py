"""What of a data set may be kept in memory, found before training by making a few samples twice.

A sample may be kept if it is the same every time. Randomness from keys is told by the signature;
what draws from a global generator is told by that generator's state, also when the draw changed
nothing this time, and what draws from one of its own by two samples that differ.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from phalanx.engine.data.array_feed import is_gathered
from phalanx.engine.data.disk_cache import has_origin
from phalanx.engine.data.micro_batches import choose_fetch, seed_globals, takes
from phalanx.engine.data.sample_cache import can_load, list_samples, record_bytes
from phalanx.engine.data.sample_format import UnknownTypeError, encode_sample
from phalanx.errors import Finding
from phalanx.planner.schema.trace import KeptSample

_PROBED, _AT_LEAST = 8, 2  # samples from all over the data that are made twice
_PROBED_S = 0.5  # and no more of them once they took so long: every plan waits for this

_SPLIT_UP = (
    "let `load(self, index)` read and decode, without randomness, and call it from "
    "`__getitem__(self, index, key)`, which augments with `keys.generator(key)`; or "
    "loader.cache=off"
)


def examine_data(data: Any) -> tuple[KeptSample | None, Finding | None]:
    """What would be kept of each sample and the bytes it takes; or why that cannot be. Neither for
    arrays in memory."""
    if is_gathered(data):
        return None, None
    has_load = can_load(data)
    batched = getattr(data, "__getitems__", None)
    if not has_load and _takes_keys(data, batched):
        return None, _needs_load(
            f"{_name(data)} augments its samples by keys and has no `load(index)`",
            f"it has `{'__getitems__(ids' if batched else '__getitem__(index'}, key"
            f"{'s' if batched else ''})`; what is kept must come from before the augmentation",
        )
    make = data.load if has_load else lambda index: list_samples(data, [index])[0]
    ids = np.unique(np.linspace(0, len(data) - 1, _PROBED).astype(np.int64)).tolist()
    try:
        sizes = _sizes_of(make, ids)
        is_used = not has_load or _calls_load(data)
    except _VariesError as found:
        return None, _random(data, found)
    except UnknownTypeError as found:
        return None, _unknown_type(data, found)
    except Exception as error:
        method = "load(index)" if has_load else "__getitems__(ids)"
        return None, _needs_load(
            f"{_name(data)}.{method} fails: {type(error).__name__}: {str(error)[:300]}",
            f"asked for sample {ids[0]} of {len(data):,}, as an int",
        )
    if not is_used:
        return None, _needs_load(
            f"{_name(data)} has a `load(index)` that is not called when a sample is asked for",
            "with the cache on, what `self.load` returns is kept; nothing else is",
        )
    what = "load" if has_load else "sample"
    return KeptSample(what, sum(sizes) // len(sizes), has_origin(data)), None


class _VariesError(Exception):
    """A sample is not the same every time."""

    def __init__(self, index: int, how: str) -> None:
        self.index = index
        self.how = how


def _sizes_of(make: Callable[[int], Any], ids: list[int]) -> list[int]:
    sizes: list[int] = []
    started = time.perf_counter()
    for index in ids:
        sizes.append(_size_of(make, index))
        if len(sizes) >= _AT_LEAST and time.perf_counter() - started > _PROBED_S:
            break
    return sizes


def _size_of(make: Callable[[int], Any], index: int) -> int:
    """Bytes of a sample in the cache; raises where it cannot be kept."""
    encoded = []
    for seed in (1, 2):
        seed_globals(seed)
        before = _generators()
        sample = make(index)
        drawn = [name for name, state in _generators().items() if state != before[name]]
        if drawn:
            raise _VariesError(
                index, f"it draws from the global generator of {' and '.join(drawn)}"
            )
        encoded.append(encode_sample(sample))
    first, second = encoded
    if [bytes(part) for part in first] != [bytes(part) for part in second]:
        raise _VariesError(index, "asked for twice it was two different ones")
    return record_bytes(first)


def _generators() -> dict[str, Any]:
    _, keys, position, *gauss = np.random.get_state()
    return {
        "random": random.getstate(),
        "numpy": (np.asarray(keys).tobytes(), position, gauss),
        "torch": torch.default_generator.get_state().numpy().tobytes(),
    }


def _calls_load(data: Any) -> bool:
    """Whether a sample comes through `data.load` as it is set on the object."""
    make, calls = data.load, []
    is_own = "load" in getattr(data, "__dict__", {})

    def counted(index: Any) -> Any:
        calls.append(index)
        return make(index)

    try:
        data.load = counted
    except AttributeError:  # __slots__
        return False
    try:
        ids = np.zeros(1, np.int64)
        choose_fetch(data)(ids, ids)
    finally:
        if is_own:
            data.load = make
        else:
            del data.load
    return bool(calls)


def _name(data: Any) -> str:
    return type(data).__name__


def _needs_load(what: str, why: str) -> Finding:
    return Finding(slug="cache-needs-load", what=what, why=why, fix=_SPLIT_UP)


def _random(data: Any, found: _VariesError) -> Finding:
    return Finding(
        slug="cache-random",
        what=f"sample {found.index} of {_name(data)} is not the same every time",
        why=f"{found.how}; kept in memory, every epoch would see what the first one drew",
        fix=_SPLIT_UP,
    )


def _unknown_type(data: Any, found: UnknownTypeError) -> Finding:
    is_image = found.kind.startswith("PIL.")
    convert = "np.asarray(image)" if is_image else "tensors, numpy arrays, numbers or text"
    return Finding(
        slug="cache-type",
        what=f"{found.where} of {_name(data)} is {found.kind}, which cannot be kept in memory",
        why="kept are tensors, numpy arrays, numbers, text, bytes and None in dict, list and tuple",
        fix=f"return {convert} from {'load(index)' if can_load(data) else 'the data set'}; "
        "or loader.cache=off",
    )


def _takes_keys(data: Any, batched: Any) -> bool:
    return takes(batched, 2) or takes(batched, 3) if batched else takes(data.__getitem__, 2)
