"""What a word of another tool means, by its name and the sections around it.

The words are in `vocabulary.yaml`; a word that is not there is left out only where it cannot
concern the training.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from phalanx.job.importing.settings import Setting, as_number, is_number, is_off

# Words that count or name something else inside a model, a data set or an unknown section.
_RISKY = frozenset(
    ("n_steps", "total_steps", "epoch", "momentum", "patience", "grad_norm", "precision", "half")
) | {
    "max_norm",
    "l2",
    "ema",
    "scheduler",
    "batch",
    "include",
    "gpu",
    "cpu",
    "accelerator",
    "config",
}
_MODEL_ONLY = frozenset(
    ("max_length", "seq_len", "seq_length", "sequence_length", "block_size", "image_size")
) | {"img_size", "max_sequence_length", "max_seq_len", "dropout", "strategy", "max_seq_length"}
_DECISIVE = re.compile(
    r"batch|(^|_)lr|lr($|_)|max_time|learning_rate|warm_?up|epoch|accum|precision|fp16|bf16|fp8|tf32|(^|_)amp"
    r"|8bit|4bit|seed|(^|_)devices?$|(^|_)gpus?$|nodes$|optim|sched|weight_decay|clip|(^|_)beta"
    r"|freeze|(^|_)ema(_|$)|quant|grad_"
)
_COUNTS = re.compile(r"steps|iters|loss|decay|momentum|dropout|noise|dtype")
_NAMES_PLACE = re.compile(
    r"(dir|path|paths|file|files|folder|root|name|names|id|ids|url|uri|repo)$"
)
_NAMES_LOG = re.compile(r"^(wandb|log|logging|hub|tensorboard|mlflow|plot|vis|print|show)_|^wandb")

LEFT = {
    "logs": "how a run is logged: `phalanx explain logging`",
    "place": "a run has its own directory under `output`; `--resume` continues it",
    "launch": "stated when the run starts, not in the job",
    "phalanx": "Phalanx decides this itself; it does not change what is learned",
    "steered": "which command is meant: `phalanx train`, `evaluate` or `export`",
    "evaluation": "of the evaluation; it does not change what is learned",
    "model": "of the model, which the recipe defines; its own are under `options`",
    "off": "off, or nothing stated",
    "text": "a name or switch of the script; the recipe has its own under `options`",
    "default": "a run does this anyway",
}


class Tables(NamedTuple):
    sections: dict[str, str]
    """Pattern of the names of each kind of section."""
    words: dict[str, dict[str, str]]
    """Meaning of each word, by section."""
    left: dict[str, str]
    """Heading of each word that is left out."""
    at_default: dict[str, list[Any]]


@cache
def tables() -> Tables:
    content = yaml.safe_load(Path(__file__).with_name("vocabulary.yaml").read_text("utf-8"))
    left, at_default = content.pop("left"), content.pop("at_default")
    sections = {kind: "|".join(names) for kind, names in content.pop("sections").items()}
    return Tables(
        sections,
        {s: {w: m for m, ws in by.items() for w in ws} for s, by in content.items()},
        {word: heading for heading, words in left.items() for word in words},
        at_default,
    )


@cache
def section_of(sections: tuple[str, ...]) -> str:
    """The kind of section that a setting stands in: `training` at the top, `other` if unknown."""
    kinds = [
        next(
            (kind for kind, like in tables().sections.items() if re.fullmatch(like, part)), "other"
        )
        for part in sections
    ]
    if "evaluation" in kinds:
        return "evaluation"
    named = [kind for kind in kinds if kind not in ("training", "other")]
    return named[-1] if named else "other" if "other" in kinds else "training"


def meaning_of(setting: Setting) -> str | None:
    """The meaning of a setting as `vocabulary.yaml` names it; None when it has none there."""
    section, word, words = section_of(setting.sections), setting.word, tables().words
    if found := words.get(section, {}).get(word):
        return found
    if section == "checkpoint" and word in ("name", "type"):
        return None
    if section in ("training", "optimizer", "scheduler") and word in words["training"]:
        return words["training"][word]
    found = words["anywhere"].get(word)
    if section == "evaluation":
        is_of_it = found is not None and found.startswith(("eval", "early", "metric"))
        return found if is_of_it else None
    if section in ("model", "other", "ema", "logs") and word in _RISKY:
        return None
    return None if section == "model" and word in _MODEL_ONLY else found


def why_left(setting: Setting) -> str | None:
    """Why a setting without meaning may be left out of the job; None when it may not."""
    word, value, section = setting.word, setting.value, section_of(setting.sections)
    if is_off(value):
        return LEFT["off"]
    if word in tables().at_default:
        return LEFT["default"] if _is_default(value, tables().at_default[word]) else None
    if section in ("logs", "evaluation"):
        return LEFT[section]
    if word.startswith("fsdp_") or "fsdp_config" in setting.sections:
        return LEFT["phalanx"]
    if word == "parallelism_config_dp_shard_size":
        return LEFT["phalanx"]
    if word in tables().left and not (is_number(value) and section == "other"):
        return LEFT[tables().left[word]]
    if _NAMES_LOG.search(word):
        return LEFT["logs"]
    if _DECISIVE.search(word):
        return None
    if section == "model":
        return LEFT["model"]
    if is_number(value):
        return None
    if isinstance(value, (str, list)) and _NAMES_PLACE.search(word):
        return LEFT["text"]
    return None if _COUNTS.search(word) else LEFT["text"]


def why_refused(setting: Setting) -> str:
    """Why a setting without meaning may not be left out."""
    allowed = tables().at_default.get(setting.word)
    if allowed:
        return f"a run has {setting.word} = {allowed[0]} only"
    return "a job has no setting of this name, and its meaning is not guessed"


def _is_default(value: Any, allowed: list[Any]) -> bool:
    if is_number(value) and not isinstance(value, list):
        value = as_number(value)
    elif allowed[0] is True:
        value = str(value).lower() in ("true", "yes", "on")
    return value in allowed
