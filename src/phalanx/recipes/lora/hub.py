"""Data sets of the Hugging Face hub: from the cache if they are there, else from the network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx.recipe import Finding, Split, UserError

# owner/name, with a configuration and a split where there are several: owner/name/config:split
_NAME = re.compile(r"^([\w-][\w.-]*(?:/[\w-][\w.-]*)?)(?:/([\w.-]+))?(?::(\w+))?$", re.ASCII)
_TEST_SPLITS = ("test", "validation", "valid", "eval", "dev")


def is_name(given: str) -> bool:
    """Whether this can be the name of a data set of the hub."""
    return _NAME.match(given) is not None


def is_saved_data_set(folder: Path) -> bool:
    """Whether `save_to_disk` of `datasets` wrote this folder."""
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def load_saved(folder: Path, key: str) -> dict[Split, Any]:
    """The splits of a folder that `save_to_disk` wrote."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(missing_package("datasets", f"options.{key} = {folder}")) from error

    try:
        return _splits(datasets.load_from_disk(str(folder)), None)
    except (OSError, ValueError) as error:
        raise UserError(
            Finding(
                slug="data-format",
                what=f"the data set in `{folder}` cannot be read: {_short(error)}",
                why=f"options.{key} = {folder}, as `save_to_disk` of `datasets` writes one",
                fix=f"data.save_to_disk('{folder}')",
            )
        ) from error


def load_named(given: str, key: str, near: str) -> dict[Split, Any]:
    """The splits of a data set of the hub: those in the cache, else they are downloaded. `near`:
    files that may have been meant instead."""
    match = _NAME.match(given)
    assert match is not None
    name, config, split = match.groups()
    try:
        import datasets
    except ImportError as error:
        raise UserError(missing_package("datasets", f"options.{key} = {given}")) from error

    errors: list[Exception] = []
    for is_offline in (True, False):
        try:
            with _offline(datasets, is_offline) as is_so:
                if is_so == is_offline:
                    if not is_offline:
                        _ask(name)
                    return _splits(datasets.load_dataset(name, config), split)
        except KeyError as error:
            raise UserError(_no_split(given, key, str(split), error)) from error
        except Exception as error:  # of files, networks, permissions and parsers alike
            errors.append(error)
    cache = str(datasets.config.HF_DATASETS_CACHE)
    raise UserError(_not_found(given, key, near, cache, errors))


def missing_package(package: str, because: str) -> Finding:
    """What a reader of data cannot do without."""
    return Finding(
        slug="missing-extra",
        what=f"`{package}` is needed to read this data, and is not installed",
        why=f"{because}; it comes with the extra `lora`",
        fix="pip install 'phalanx[lora]'",
    )


@contextmanager
def _offline(datasets: Any, is_offline: bool) -> Iterator[bool]:
    """Without the network: a few lookups take seconds each where there is none."""
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    if is_offline:
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield bool(datasets.config.HF_HUB_OFFLINE)
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _ask(name: str) -> None:
    """Whether the hub has it: one question, where `datasets` tries five times for 23 s."""
    from huggingface_hub import HfApi

    HfApi().dataset_info(name, timeout=10)


def _splits(loaded: Any, split: str | None) -> dict[Split, Any]:
    if not isinstance(loaded, dict):
        return {"train": _undecoded(loaded)}
    if split is not None:
        if split not in loaded:
            raise KeyError(", ".join(loaded))
        return {"train": _undecoded(loaded[split])}
    first = "train" if "train" in loaded else next(iter(loaded))
    found: dict[Split, Any] = {"train": _undecoded(loaded[first])}
    held_out = next((name for name in _TEST_SPLITS if name in loaded and name != first), None)
    if held_out:
        found["test"] = _undecoded(loaded[held_out])
    return found


def _undecoded(table: Any) -> Any:
    """Images and sounds as bytes: only those that are trained on are decoded, when they are."""
    for name, feature in table.features.items():
        if type(feature).__name__ in ("Image", "Audio"):
            table = table.cast_column(name, type(feature)(decode=False))
    return table


def _short(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__


def _no_split(given: str, key: str, split: str, error: KeyError) -> Finding:
    there = str(error.args[0])
    return Finding(
        slug="data-split",
        what=f"the data set has no split `{split}`, it has {there}",
        why=f"options.{key} = {given}",
        fix=f"phalanx train lora {key}={given.rsplit(':', 1)[0]}:{there.split(',', maxsplit=1)[0]}",
    )


def _not_found(given: str, key: str, near: str, cache: str, errors: list[Exception]) -> Finding:
    tried = f"not in the cache {cache}"
    if len(errors) > 1:
        tried += f"; from the network: {_short(errors[-1])}"
    else:
        tried += "; the network was not asked (HF_HUB_OFFLINE)"
    return Finding(
        slug="data-missing",
        what=f"`{given}` is neither a file here nor a data set that can be loaded{near}",
        why=f"options.{key} = {given}: no such file in {Path.cwd()}; {tried}",
        fix=f"phalanx train lora {key}=FILE, or on a machine with network: "
        f"python -c \"import datasets; datasets.load_dataset('{given}')\"",
    )
