"""Where each tensor of the network is read from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from phalanx.recipe import Finding, Stored, UserError, cache_folder, new_file
from phalanx.recipes.lora.base import Base, stored_weights
from phalanx.recipes.lora.network import ADAPTER, is_turned, stored_name
from phalanx.recipes.lora.nf4 import Nf4Linear, pack

_SCALE = ".scales.each"
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
    if packed := [n for n, part in network.named_modules() if isinstance(part, Nf4Linear)]:
        placed |= _pack(placed, packed)
    if magnitudes := [name for name in names if name.endswith(_MAGNITUDE)]:
        placed |= _measure(placed, magnitudes, dict(network.named_modules()))
    if trained := {n: len(t) for n, t in network.state_dict().items() if _TRAINED in n}:
        placed |= _grow(placed, trained)
    return placed


def _wanted(network: nn.Module) -> list[set[str]]:
    """The stored names of each tensor: several where it is tied."""
    groups: dict[int, set[str]] = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        stored = stored_name(name)
        if stored is not None and not stored.endswith(_SCALE):
            groups.setdefault(id(tensor), set()).add(stored)
    return list(groups.values())


def _measure(
    placed: Mapping[str, Stored], magnitudes: list[str], layers: Mapping[str, nn.Module]
) -> dict[str, Stored]:
    """DoRA begins with the length of what each output takes of the frozen weights; kept in a file,
    because ranks read weights in parts."""
    sources = {name: placed[name.replace(_MAGNITUDE, ".base_layer.weight")] for name in magnitudes}

    def make(name: str, weight: Tensor) -> dict[str, Tensor]:
        turned = is_turned(layers[name.replace(_MAGNITUDE, ".base_layer")])
        return {name: weight.float().norm(dim=0 if turned else 1)}

    return _derive("magnitudes", sources, make)


def _grow(placed: Mapping[str, Stored], trained: Mapping[str, int]) -> dict[str, Stored]:
    """Embeddings that are trained, by their rows, begin as they are stored; rows for tokens that
    are added as the mean of the others."""
    sources = {name: placed[name.replace(_TRAINED, _FROZEN)] for name in trained}
    rows = max(trained.values())

    def make(stored: str, weight: Tensor) -> dict[str, Tensor]:
        added = weight.double().mean(0, keepdim=True).expand(rows - len(weight), -1)
        return {stored: torch.cat([weight, added.to(weight.dtype)])}

    short = {s.name: s for s in sources.values() if _num_rows(s) < rows}
    grown = _derive(f"embeddings-{rows}", short, make) if short else {}
    begun = {name: grown.get(s.name, s) for name, s in sources.items()}
    return begun | {name.replace(_TRAINED, _FROZEN): s for name, s in begun.items()}


def _num_rows(stored: Stored) -> int:
    from safetensors import safe_open

    with safe_open(stored.file, framework="numpy") as opened:
        return int(opened.get_slice(stored.name).get_shape()[0])


def _pack(placed: Mapping[str, Stored], layers: list[str]) -> dict[str, Stored]:
    """Linear layers in 4 bits."""

    def make(layer: str, weight: Tensor) -> dict[str, Tensor]:
        packed, scale = pack(weight)
        return {f"{layer}.weight": packed, f"{layer}{_SCALE}": scale}

    return _derive("nf4", {layer: placed[f"{layer}.weight"] for layer in layers}, make)


def _derive(
    kind: str, sources: Mapping[str, Stored], make: Callable[[str, Tensor], dict[str, Tensor]]
) -> dict[str, Stored]:
    """A file with what is made of stored tensors, made once for the user."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    facts = [(s.file.stat().st_mtime_ns, s.file.stat().st_size, *s) for s in sources.values()]
    sign = hashlib.sha256(repr((sorted(sources), facts)).encode()).hexdigest()[:16]
    path = cache_folder("models") / f"{kind}-{sign}.safetensors"
    if not path.is_file():
        made: dict[str, Tensor] = {}
        for name, (file, stored) in sources.items():
            with safe_open(file, framework="pt") as opened:
                made |= make(name, opened.get_tensor(stored))
        with new_file(path) as making:
            save_file(made, making)
    with safe_open(path, framework="pt") as opened:
        return {name: Stored(path, name) for name in opened.keys()}  # noqa: SIM118
