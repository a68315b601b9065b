"""Where each tensor of the network is read from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from torch import nn

from phalanx.recipe import Finding, Stored, UserError, cache_folder
from phalanx.recipes.lora.base import Base, stored_weights
from phalanx.recipes.lora.network import stored_name

_MAGNITUDE = ".lora_magnitude_vector.default.weight"


def place_weights(base: Base, network: nn.Module) -> dict[str, Stored]:
    """By the names in the network, which may be on the meta device: frozen weights, and for DoRA
    the magnitudes that its first weights have."""
    names = {name: stored_name(name) for name in network.state_dict(keep_vars=True)}
    wanted = {stored for stored in names.values() if stored is not None}
    tied = _tied(network)
    found = stored_weights(base, wanted - tied)
    absent = sorted(wanted - tied - found.keys())
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
    magnitudes = [name for name in names if name.endswith(_MAGNITUDE)]
    return placed | (_measure(placed, magnitudes) if magnitudes else {})


def _tied(network: nn.Module) -> set[str]:
    """Names of weights that are stored under another one."""
    seen: dict[int, str] = {}
    tied = set()
    for name, tensor in network.state_dict(keep_vars=True).items():
        stored = stored_name(name)
        if stored is not None and seen.setdefault(id(tensor), stored) != stored:
            tied.add(stored)
    return tied


def _measure(placed: Mapping[str, Stored], magnitudes: list[str]) -> dict[str, Stored]:
    """DoRA begins with the length of each row of the frozen weights; kept in a file, because ranks
    read weights in parts."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    sources = {name: placed[name.replace(_MAGNITUDE, ".base_layer.weight")] for name in magnitudes}
    facts = [(s.file.stat().st_mtime_ns, s.file.stat().st_size, *s) for s in sources.values()]
    sign = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    path = cache_folder("models") / f"magnitudes-{sign}.safetensors"
    if not path.is_file():
        measured = {}
        for name, (file, stored) in sources.items():
            with safe_open(file, framework="pt") as opened:
                measured[name] = opened.get_tensor(stored).float().norm(dim=1)
        path.parent.mkdir(parents=True, exist_ok=True)
        making = Path(f"{path}.{os.getpid()}.tmp")
        save_file(measured, making)
        making.replace(path)
    return {name: Stored(path, name) for name in magnitudes}
