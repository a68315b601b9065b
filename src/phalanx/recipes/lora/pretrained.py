"""Where each tensor of the network is read from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from phalanx.recipe import Finding, Stored, UserError, cache_folder
from phalanx.recipes.lora.base import Base, stored_weights
from phalanx.recipes.lora.network import ADAPTER, stored_name

_MAGNITUDE = f".lora_magnitude_vector.{ADAPTER}.weight"
_TRAINED, _FROZEN = f".modules_to_save.{ADAPTER}.", ".original_module."


def place_weights(base: Base, network: nn.Module) -> dict[str, Stored]:
    """By the names in the network, which may be on the meta device: frozen weights, embeddings that
    are trained beside adapters, and for DoRA the magnitudes that its first weights have."""
    names = {name: stored_name(name) for name in network.state_dict()}
    wanted = _wanted(network)
    found = stored_weights(base, wanted)
    absent = sorted(min(group) for group in wanted if not group & found.keys())
    if absent:
        raise UserError(
            Finding(
                slug="missing-weights",
                what=f"the files of `{base.said}` lack {len(absent)} tensors of the model",
                why=f"{base.folder}: {', '.join(absent[:3])}",
                fix="model=a folder that transformers' save_pretrained wrote",
            )
        )
    placed = {name: found[stored] for name, stored in names.items() if stored in found}
    return placed | _grow(placed, network) | _measure(placed, network)


def _wanted(network: nn.Module) -> list[set[str]]:
    """The stored names of each tensor: several where it is tied."""
    groups: dict[int, set[str]] = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        stored = stored_name(name)
        if stored is not None:
            groups.setdefault(id(tensor), set()).add(stored)
    return list(groups.values())


def _grow(placed: Mapping[str, Stored], network: nn.Module) -> dict[str, Stored]:
    """Embeddings that are trained begin as they are stored; rows for tokens that are added to them
    as the mean of the others."""
    shapes = {name: tensor.shape for name, tensor in network.state_dict().items()}
    sources = {name: placed[name.replace(_TRAINED, _FROZEN)] for name in shapes if _TRAINED in name}

    def grown(name: str, stored: Tensor) -> Tensor:
        added = shapes[name][0] - len(stored)
        new = stored.double().mean(0, keepdim=True).expand(added, *stored.shape[1:])
        return torch.cat([stored, new.to(stored.dtype)])

    short = {s: n for n, s in sources.items() if _rows(s) < shapes[n][0]}
    rows = max((shapes[name][0] for name in sources), default=0)
    made = _made(f"embeddings-{rows}", {s.name: (s, n) for s, n in short.items()}, grown)
    begun = {name: made.get(s.name, s) for name, s in sources.items()}
    return begun | {name.replace(_TRAINED, _FROZEN): s for name, s in begun.items()}


def _measure(placed: Mapping[str, Stored], network: nn.Module) -> dict[str, Stored]:
    """DoRA begins with the length of what each output takes of the frozen weights."""
    from transformers.pytorch_utils import Conv1D

    layers = dict(network.named_modules())
    names = [name for name in network.state_dict() if name.endswith(_MAGNITUDE)]

    def lengths(name: str, stored: Tensor) -> Tensor:
        is_turned = isinstance(layers[name.replace(_MAGNITUDE, ".base_layer")], Conv1D)
        return stored.float().norm(dim=0 if is_turned else 1)

    sources = {n: (placed[n.replace(_MAGNITUDE, ".base_layer.weight")], n) for n in names}
    return _made("magnitudes", sources, lengths)


def _made(
    kind: str,
    sources: Mapping[str, tuple[Stored, str]],
    make: Callable[[str, Tensor], Tensor],
) -> dict[str, Stored]:
    """Tensors made of stored ones, by their new names: what `make` gives for a name of the network
    and the stored tensor. They are kept in a file, because ranks read weights in parts."""
    if not sources:
        return {}
    from safetensors import safe_open
    from safetensors.torch import save_file

    files = {stored.file: stored.file.stat() for stored, _ in sources.values()}
    facts = [(str(path), facts.st_mtime_ns, facts.st_size) for path, facts in files.items()]
    sign = hashlib.sha256(repr((facts, sorted(sources.items()))).encode()).hexdigest()[:16]
    path = cache_folder("models") / f"{kind}-{sign}.safetensors"
    if not path.is_file():
        made = {}
        for new, (stored, name) in sources.items():
            with safe_open(stored.file, framework="pt") as opened:
                made[new] = make(name, opened.get_tensor(stored.name)).contiguous()
        path.parent.mkdir(parents=True, exist_ok=True)
        making = Path(f"{path}.{os.getpid()}.tmp")
        save_file(made, making)
        making.replace(path)
    return {name: Stored(path, name) for name in sources}


def _rows(stored: Stored) -> int:
    from safetensors import safe_open

    with safe_open(stored.file, framework="numpy") as opened:
        return int(opened.get_slice(stored.name).get_shape()[0])
