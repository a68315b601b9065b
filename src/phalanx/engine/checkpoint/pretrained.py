"""The pretrained weights that a recipe names in files, and how a run tells them from others.

Each rank reads the ranges that it holds, into the type that it holds them in, so a model is never
whole on a rank that keeps a part of it. Checkpoints leave out what is frozen among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from phalanx.engine.model.shards import Shard, find_aliases
from phalanx.engine.model.tensor_file import TensorFile
from phalanx.engine.strategies.base import Strategy
from phalanx.errors import Finding, UserError, format_bytes, name_some
from phalanx.recipe.pretrained import Stored

ELSEWHERE = "elsewhere"
"""Key of a checkpoint's state: the files of weights that it does not hold."""
_SHOWN = 5

Read = Callable[[Shard], None]
"""Fills a shard from a file."""


class Pretrained:
    """The weights that a recipe names in files."""

    def __init__(self, stored: Mapping[str, Stored] | None = None) -> None:
        self.stored = dict(stored or {})
        self._records: dict[Path, dict[str, Any]] = {}

    def load(self, strategy: Strategy) -> None:
        """Put this rank's part of them in place; raises everything that is wrong with them."""
        if not self.stored:
            return
        files = self._open()
        shards = strategy.model_state()
        self._check(files, shards)
        read = {
            name: reader(files[stored.file], stored.name)
            for name, stored in sorted(self.stored.items(), key=lambda item: item[1])
        }
        take_weights(strategy, shards, read)

    def num_bytes(self) -> int:
        """Of the files."""
        return sum(path.stat().st_size for path in self._files(self.stored) if path.is_file())

    def covered(self, model: nn.Module) -> set[str]:
        """Every name of the model's state whose values are in the files, tied ones included."""
        aliases = find_aliases(model)
        known = {aliases.get(name, name) for name in self.stored}
        return {
            name for name in model.state_dict(keep_vars=True) if aliases.get(name, name) in known
        }

    def elsewhere(self, model: nn.Module) -> set[str]:
        """What a checkpoint need not hold: frozen parameters that are in the files as they are."""
        if not self.stored:
            return set()
        named = model.named_parameters(remove_duplicate=False)
        return {name for name, p in named if not p.requires_grad} & self.covered(model)

    def record(self, model: nn.Module) -> list[dict[str, Any]] | None:
        """What tells the files behind `elsewhere` from others; None where there are none."""
        names = self.elsewhere(model) & self.stored.keys()
        if not names:
            return None
        return [self._recorded(path) for path in sorted(self._files(names))]

    def changes(self, record: list[dict[str, Any]] | None, model: nn.Module) -> list[Finding]:
        """That a checkpoint was written beside other files than these; `record` is the one that it
        keeps. Files may have been moved or renamed: what is in them counts."""
        if record is None:
            return []
        now = self.record(model) or []
        if _contents(now) == _contents(record):
            return []
        return [
            Finding(
                slug="weights-changed",
                what="the frozen weights are not those that the checkpoint was trained with",
                why=f"then: {_describe(record)}; now: {_describe(now)}; a checkpoint holds what "
                "learns, and leaves what is frozen to those files",
                fix="give the recipe the same pretrained weights again",
            )
        ]

    def _recorded(self, path: Path) -> dict[str, Any]:
        if path not in self._records:
            fingerprint = TensorFile(path).fingerprint()
            size = path.stat().st_size
            self._records[path] = {"file": path.name, "bytes": size, "sha256": fingerprint}
        return self._records[path]

    def _files(self, names: Iterable[str]) -> set[Path]:
        return {self.stored[name].file for name in names}

    def _open(self) -> dict[Path, TensorFile]:
        files, findings = {}, []
        for path in sorted(self._files(self.stored)):
            try:
                files[path] = TensorFile(path)
            except (OSError, ValueError, KeyError, TypeError) as error:
                findings.append(_unreadable(path, error))
        if findings:
            raise UserError(findings)
        return files

    def _check(self, files: Mapping[Path, TensorFile], shards: Mapping[str, Shard]) -> None:
        unknown = [name for name in self.stored if name not in shards]
        absent = [s for s in self.stored.values() if s.name not in files[s.file].names]
        findings = [_unknown(unknown, shards)] if unknown else []
        findings += [_absent(absent, files)] if absent else []
        wrong = []
        for name in self.stored.keys() & shards.keys():
            file, stored = files[self.stored[name].file], self.stored[name]
            if stored in absent:
                continue
            if file.shape(stored.name) != shards[name].shape:
                wrong.append((name, stored, file.shape(stored.name), shards[name].shape))
        if wrong:
            findings.append(_misshapen(sorted(wrong)))
        if findings:
            raise UserError(findings)


def take_weights(strategy: Strategy, shards: Mapping[str, Shard], read: dict[str, Read]) -> None:
    """Fill the shards that there is something to read for; what is tied is read once."""
    aliases, done = find_aliases(strategy.model), set()
    for name, fill in read.items():
        place = aliases.get(name, name)
        if place not in done:
            fill(shards[name])
            done.add(place)
    strategy.weights_changed()


def reader(file: TensorFile, name: str) -> Read:
    """Reads one tensor of a file."""
    return lambda shard: file.read_into(name, shard)


def first_line(error: Exception) -> str:
    """What went wrong, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"


def _contents(record: Iterable[Mapping[str, Any]]) -> list[tuple[int, str]]:
    return sorted((entry["bytes"], entry["sha256"]) for entry in record)


def _describe(record: list[dict[str, Any]]) -> str:
    if not record:
        return "none"
    shown = [f"`{e['file']}` ({format_bytes(e['bytes'])}, {e['sha256'][:8]})" for e in record]
    return name_some(shown, _SHOWN)


def _unreadable(path: Path, error: Exception) -> Finding:
    return Finding(
        slug="weights-unreadable",
        what=f"the pretrained weights in `{path}` cannot be read",
        why=f"the recipe's weights() names the file; {first_line(error)}",
        fix="fetch the file again, or point the recipe at weights that are there",
    )


def _unknown(names: list[str], shards: Mapping[str, Shard]) -> Finding:
    return Finding(
        slug="weights-unknown",
        what=f"{len(names)} pretrained weights have no place in the model: {names[:_SHOWN]}",
        why=f"named by the recipe's weights(); the model has {len(shards)} tensors, such as "
        f"{list(shards)[:_SHOWN]}",
        fix="name them in weights() as model().state_dict() does",
    )


def _absent(absent: list[Stored], files: Mapping[Path, TensorFile]) -> Finding:
    first = absent[0]
    known = list(files[first.file].names)
    return Finding(
        slug="weights-absent",
        what=f"{len(absent)} pretrained weights are not in their files: "
        f"{[stored.name for stored in absent][:_SHOWN]}",
        why=f"named by the recipe's weights(); `{first.file}` has {len(known)} tensors, such as "
        f"{known[:_SHOWN]}",
        fix="name them in weights() as the file does",
    )


def _misshapen(wrong: list[tuple[str, Stored, tuple[int, ...], tuple[int, ...]]]) -> Finding:
    shown = [
        f"`{name}` is {list(here)} in the model, {list(there)} in `{stored.file}` as "
        f"`{stored.name}`"
        for name, stored, there, here in wrong[:_SHOWN]
    ]
    return Finding(
        slug="weights-shape",
        what=f"{len(wrong)} pretrained weights are of another shape than in the model",
        why="; ".join(shown),
        fix="build the model with the sizes of the files, or give it weights of its own sizes",
    )
