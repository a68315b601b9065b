"""The keys of the schema: which one is meant, what it takes, and the Finding when it is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from phalanx.errors import Finding
from phalanx.job.schema import Job
from phalanx.job.source.origin import Origin, parse_scalar, show
from phalanx.job.source.value_types import Interval

ALIASES = {
    "lr": "optimizer.lr",
    "learning_rate": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "warmup": "schedule.warmup",
    "batch": "global_batch_size",
    "batch_size": "global_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation",
    "gpus": "devices.gpus",
    "cpu": "devices.cpu",
    "workers": "loader.workers",
    "num_workers": "loader.workers",
    "cache": "loader.cache",
}
"""Short names an override may use; every other bare name is an option of the recipe."""

EXAMPLES: dict[str, Any] = {
    "recipe": "digits",
    "name": "my-run",
    "epochs": 10,
    "steps": 1000,
    "stop_after": "60 minutes",
    "global_batch_size": 64,
    "batch_per_gpu": 32,
    "gradient_accumulation": 2,
    "micro_batch_size": 8,
    "devices.gpus": "all",
    "devices.cpu": 2,
    "optimizer.lr_batch": 256,
    "optimizer.clip_norm": 1.0,
    "ema.decay": 0.999,
    "evaluate.batch_size": 64,
    "evaluate.mode": "max",
    "evaluate.early_stopping": 5,
}


@cache
def fields() -> dict[str, FieldInfo]:
    """Every field by its dotted key, sections included."""

    def walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
        for name, info in model.model_fields.items():
            yield prefix + name, info
            if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
                yield from walk(info.annotation, f"{prefix}{name}.")

    return dict(walk(Job, ""))


def job_keys() -> dict[str, str]:
    """Every dotted key of a job file with its help text, sections included."""
    return {key: " ".join((info.description or "").split()) for key, info in fields().items()}


@cache
def sections() -> frozenset[str]:
    return frozenset(key.rpartition(".")[0] for key in fields() if "." in key)


@cache
def text_keys() -> frozenset[str]:
    return frozenset(
        k for k, f in fields().items() if f.annotation is str or str in get_args(f.annotation)
    )


def help_of(key: str) -> str:
    return (job_keys().get(key) or "an option of the recipe").rstrip(".")


def field_of(names: Sequence[str]) -> str:
    """The job key that holds a place, such as `devices.gpus` for its second item."""
    known = [".".join(names[:n]) for n in range(len(names), 0, -1)]
    return next((key for key in known if key in fields() and key != "options"), known[0])


def known_key(key: str) -> str | None:
    """The job key a person means by a full key or by one of the short names."""
    for name in (key, key.replace("-", "_")):
        if ALIASES.get(name, name) in fields():
            return ALIASES.get(name, name)
    return None


def _nearest(key: str) -> str | None:
    section, _, last = key.lower().replace("-", "_").rpartition(".")
    ends = [known.rpartition(".")[2] for known in fields()]
    siblings = {k.rpartition(".")[2]: k for k in fields() if k.rpartition(".")[0] == section}
    unique = {k.rpartition(".")[2]: k for k in fields() if ends.count(k.rpartition(".")[2]) == 1}
    for names, cutoff in ((siblings, 0.6), (ALIASES, 0.8), (unique, 0.8)):
        near = get_close_matches(last, list(names), n=1, cutoff=cutoff)
        if near:
            return names[near[0]]
    return None


def unknown_key(key: str, value: Any, origin: Origin) -> Finding:
    near = _nearest(key)
    section = key.rpartition(".")[0]
    choices = [
        k for k in fields() if k.rpartition(".")[0] == (section if section in sections() else "")
    ]
    fix = f"the keys here are {', '.join(choices)}"
    if near and not isinstance(value, dict):
        fix = origin.line_for(near, value)
    elif near:
        fix = f"{near}:"
    elif not section:
        fix = f"{origin.line_for(f'options.{key}', value)} if the recipe has this option; {fix}"
    return Finding(
        slug="unknown-key",
        what=f"`{key}` is not a key of a job" + (f" (did you mean `{near}`?)" if near else ""),
        why=f"{key} = {show(value)} ({origin})",
        fix=fix,
    )


def wrong_value(key: str, value: Any, origin: Origin) -> Finding:
    known = field_of(key.split("."))
    info = fields().get(known)
    allowed = _allowed(info.annotation, info.metadata) if info else ["a finite number in 64 bits"]
    choices = " or ".join(filter(None, [", ".join(allowed[:-1]), allowed[-1]]))
    better_key, better = _better(known, value)
    return Finding(
        slug="wrong-value",
        what=f"`{key}` is {show(value)}, it must be {choices}",
        why=f"{key} = {show(value)} ({origin}); {known}: {help_of(known)}",
        fix=origin.line_for(better_key, better),
    )


def _allowed(annotation: Any, bounds: Sequence[Any]) -> list[str]:
    """What a field takes, in words, from its annotation and limits."""
    kind, inner = get_origin(annotation), get_args(annotation)
    limit = {
        word: getattr(bound, name)
        for bound in bounds
        for name, word in (
            ("ge", "{} or more"),
            ("gt", "above {}"),
            ("le", "at most {}"),
            ("lt", "below {}"),
            ("pattern", "matching {}"),
        )
        if getattr(bound, name, None) is not None
    }
    limits = ", ".join(word.format(number) for word, number in limit.items())
    if kind is Annotated:
        return _allowed(inner[0], inner[1:])
    if kind in (Union, UnionType):
        return [word for part in inner for word in _allowed(part, bounds)]
    if kind is Literal:
        return [f"`{choice}`" for choice in inner]
    if kind is list:
        count = next((f"{b.min_length} " for b in bounds if hasattr(b, "min_length")), "")
        return [f"a list of {count}{'whole numbers' if inner[0] is int else 'numbers'}"]
    if annotation is Interval:
        return ["an interval such as `500 steps`, `2 epochs`, `10 minutes` or `5%`"]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [f"a section with the keys {', '.join(annotation.model_fields)}"]
    words = {int: "a whole number", float: "a number", str: "text", bool: "`true` or `false`"}
    words |= {NoneType: "`null`"}
    takes_limit = limits and annotation in (int, float, str)
    return [words.get(annotation, "a mapping") + (f" ({limits})" if takes_limit else "")]


def _better(key: str, value: Any) -> tuple[str, Any]:
    """A key and a value near the given one that the schema takes, else an example."""
    info = fields().get(key)
    if info is None:
        return key, 1
    if key in sections():
        first = next(k for k in fields() if k.startswith(f"{key}."))
        return _better(first, value)
    candidates: list[Any] = []
    if isinstance(value, str):
        choices = [a for a in _leaves(info.annotation) if isinstance(a, str)]
        candidates += get_close_matches(value.lower(), choices, n=1)
        candidates += [parse_scalar(value.replace("_", "").replace(",", ""))]
        candidates += [{"yes": True, "on": True, "no": False, "off": False}.get(value.lower())]
        candidates += [[parse_scalar(part) for part in value.split(",") if part]]
    elif isinstance(value, float) and math.isfinite(value) and value.is_integer():
        candidates += [int(value)]
    candidates += [
        [value],
        {} if key == "deepspeed.config" else str(value)[:64],  # text there names a file
        EXAMPLES.get(key),
        info.get_default(call_default_factory=True),
    ]
    for candidate in candidates:
        if candidate is not None and _takes(key, candidate):
            return key, candidate
    return key, None


def _leaves(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    return [leaf for part in inner for leaf in _leaves(part)] if inner else [annotation]


def _takes(key: str, value: Any) -> bool:
    job: dict[str, Any] = {"recipe": "digits"}
    *section, last = key.split(".")
    (job.setdefault(section[0], {}) if section else job)[last] = value
    try:
        Job.model_validate(job)
    except ValidationError:
        return False
    return True
