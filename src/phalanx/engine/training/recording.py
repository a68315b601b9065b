"""Writes down what a rank computes, for `verify`: every slot's samples, batch and loss, and a
fingerprint of every gradient, weight and buffer at every step.

With `has_dropout` False, dropout is disabled: its masks follow the micro-batches, and runs with
different micro-batches are compared without it.

Only when the plan asks for it. It changes nothing that is computed, but waits for the device and
reads every tensor several times a step.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from phalanx.diagnose.recording import (
    SlotRecord,
    StartRecord,
    StepRecord,
    Tensors,
    batch_file,
    recording_file,
    write_line,
)
from phalanx.engine.data.micro_batches import MicroBatch
from phalanx.engine.model.buffers import statistics_names
from phalanx.engine.model.fingerprint import fingerprints, part_label
from phalanx.engine.model.no_dropout import DISABLED, clear_rates
from phalanx.engine.model.shards import Shard, shard_of
from phalanx.engine.model.tensor_file import as_bytes
from phalanx.engine.strategies.base import Strategy
from phalanx.engine.strategies.optimizers import Optimizer
from phalanx.recipe.interface import Term

_ROW_HASH = 12  # hex digits: 48 bits tell thousands of samples apart
_BATCH_BYTES = 64 << 20  # of batches that a rank writes in all; after that only hashes
_TEXT = 200  # characters of a plain value that are written

Terms = Mapping[str, Term]


class Recorder:
    """Records one rank."""

    def __init__(self, folder: Path, strategy: Strategy, *, has_dropout: bool = True) -> None:
        (folder / "batches").mkdir(parents=True, exist_ok=True)
        process, model = strategy.process, strategy.model
        self._folder = folder
        self._file = recording_file(folder, process.rank)
        self._room = _BATCH_BYTES
        self._step = 0
        self._strategy = strategy
        self._is_first = process.is_first
        outside = _outside(strategy.optimizer, model)
        self._parameters = {**dict(model.named_parameters()), **outside}
        self._slots: list[SlotRecord] = []
        self._gradients: Tensors = {}
        strategy.on_gradients = self._read_gradients
        held = self._held()
        write_line(
            self._file,
            StartRecord(
                rank=process.rank,
                world=process.world,
                strategy=strategy.facts.name,
                parameters=fingerprints(held),
                buffers=self._read_buffers(),
                outside=list(outside),
                frozen=[n for n, p in self._parameters.items() if not p.requires_grad],
                statistics=sorted(statistics_names(model)),
                parts={n: label for n, shard in held.items() if (label := part_label(shard))},
                dropout=[] if has_dropout else clear_rates(model),
            ),
        )

    def loss(self, micro_batch: MicroBatch, run: Callable[[], Terms]) -> Terms:
        """The loss of a slot. The batch is read first: the recipe may write into it."""
        ids = [] if micro_batch.ids is None else micro_batch.ids.tolist()
        batch, samples = hash_batch(micro_batch.batch, len(ids))
        self._write_batch(micro_batch)
        DISABLED.clear()
        before = _generators(self._strategy.process.device)
        with _Collectives() as collectives:
            terms = run()
        after = _generators(self._strategy.process.device)
        self._slots.append(
            SlotRecord(
                slot=micro_batch.slot,
                ids=ids,
                batch=batch,
                samples=samples,
                terms={name: (_number(t.sum), _number(t.weight)) for name, t in terms.items()},
                weights=micro_batch.weights,
                collectives=sorted(collectives.seen),
                is_random=not all(map(torch.equal, before, after)),
                dropout=sorted(DISABLED),
            )
        )
        return terms

    def _write_batch(self, micro_batch: MicroBatch) -> None:
        leaves = {path: as_array(leaf) for path, leaf in _leaves(micro_batch.batch)}
        self._room -= sum(array.nbytes for array in leaves.values())
        if self._room < 0:
            return
        path = batch_file(self._folder, self._step, micro_batch.slot)
        np.savez(path, np.array(list(leaves), dtype=str), *leaves.values())

    def step(self, step: int, lr: float, weights: dict[str, float] | None) -> None:
        """The end of a step; `weights` are those of the global batch."""
        write_line(
            self._file,
            StepRecord(
                step=step,
                lr=lr,
                weights=weights,
                slots=self._slots,
                gradients=self._gradients,
                parameters=fingerprints(self._held()),
                buffers=self._read_buffers(),
            ),
        )
        self._slots = []
        self._step = step + 1

    def _read_gradients(self) -> None:
        self._gradients = fingerprints(
            {
                name: None if p.grad is None else shard_of(p.grad, is_first=self._is_first)
                for name, p in self._parameters.items()
            }
        )

    def _held(self) -> dict[str, Shard]:
        named = self._parameters.items()
        return {name: shard_of(parameter, is_first=self._is_first) for name, parameter in named}

    def _read_buffers(self) -> Tensors:
        named = self._strategy.model.named_buffers()
        return fingerprints({name: shard_of(buffer, is_first=True) for name, buffer in named})


def _generators(device: torch.device) -> list[Tensor]:
    """The states of torch's generators that loss and model draw from."""
    states = [torch.default_generator.get_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    if device.type == "mps":
        states.append(torch.mps.get_rng_state())
    return states


def _number(value: float | Tensor) -> float:
    return float(value.detach()) if isinstance(value, Tensor) else float(value)


def _outside(optimizer: Optimizer, model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that the optimizer has and the model has not, by a name made up here."""
    known = {id(parameter) for parameter in model.parameters()}
    return {
        f'groups()[{g}]["params"][{i}]': parameter
        for g, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
        if id(parameter) not in known
    }


def hash_batch(batch: Any, num_samples: int) -> tuple[str, dict[str, list[str]]]:
    """A hash of everything in a batch, and for each part with a row per sample the rows' hashes."""
    whole = hashlib.sha256()
    rows: dict[str, list[str]] = {}
    for path, leaf in _leaves(batch):
        if isinstance(leaf, Tensor):
            kind, shape = str(leaf.dtype), tuple(leaf.shape)
            data = as_bytes(leaf)
        elif isinstance(leaf, np.ndarray) and leaf.dtype != object:
            kind, shape = str(leaf.dtype), leaf.shape
            data = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
        else:
            whole.update(f"{path} {_plain(leaf)}\n".encode())
            continue
        whole.update(f"{path} {kind} {shape}\n".encode())
        whole.update(data.tobytes())
        if data.size and shape[:1] == (num_samples,):
            rows[path] = [
                hashlib.sha256(row.tobytes()).hexdigest()[:_ROW_HASH]
                for row in data.reshape(num_samples, -1)
            ]
    return whole.hexdigest(), rows


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested dicts, lists and tuples with its path: `boxes`, `image.0`."""
    if isinstance(tree, Mapping):
        pairs = [(str(name), value) for name, value in tree.items()]
    elif isinstance(tree, (list, tuple)):
        pairs = [(str(index), value) for index, value in enumerate(tree)]
    else:
        yield path or "batch", tree
        return
    for name, value in pairs:
        yield from _leaves(value, f"{path}.{name}" if path else name)


def as_array(leaf: Any) -> np.ndarray[Any, Any]:
    """A leaf as an array that numpy writes without pickle; a plain value as text."""
    if isinstance(leaf, Tensor):
        tensor = leaf.detach().cpu()
        tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
        try:
            return tensor.numpy()
        except TypeError:  # a type that numpy has not
            return tensor.float().numpy()
    if isinstance(leaf, np.ndarray) and leaf.dtype != object:
        return leaf
    return np.array(_plain(leaf)[:_TEXT])


def _plain(leaf: Any) -> str:
    """A leaf that is no array; of an unknown object only its type, its text may hold an address."""
    known = leaf is None or isinstance(leaf, (str, bytes, int, float, complex))
    return repr(leaf) if known else type(leaf).__name__


class _Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notices when loss or model talk to other ranks themselves, and from which line."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace in ("c10d", "_c10d_functional", "_c10d_functional_autograd"):
            place = _caller()
            if place is not None:
                name = str(func).split(".")[1].strip("_")
                self.seen.add(f"{place} {name}")
        return func(*args, **(kwargs or {}))


_TORCH = str(Path(torch.__file__).parent)
_SHARDING = (f"{_TORCH}/distributed/fsdp", "/deepspeed/")


def _caller() -> str | None:
    """The line of the recipe that led here, or None when it was a strategy that shards."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if any(place in file for place in _SHARDING):
            return None
        if not file.startswith(_TORCH) and file != __file__:
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return None
