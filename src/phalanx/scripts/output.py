"""Reads progress and losses from what a training script prints: tqdm's bars, the dictionaries of
HF Trainer, lines of names and numbers, Lightning's bar, and Ultralytics' results.csv.

Nothing is made up: a figure that was not printed stays None.
"""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

_LONGEST_LINE = 2000  # longer ones are data, and expressions take their time on them
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_VALUE = rf"(?:{_NUMBER}|nan|inf|-inf)(?![\w.]*\w)"

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BAR = re.compile(
    r"(?P<name>[^|]*?):?\s*\d{1,3}%\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+)\s*"
    r"\[(?P<facts>[^\]]*)\]?(?P<rest>.*)"
)
# rich's, as Lightning shows them where rich is installed.
_RICH_BAR = re.compile(
    r"(?P<name>[^|\u2501\u2578\u257a]*?)\s*[\u2501\u2578\u257a]+\s*(?P<done>\d+)/(?P<total>\d+)\s"
    r"(?P<facts>\S+ \S+ \S+)(?P<rest>.*)"
)
# Bars that count something else than training steps.
_OTHER_BAR = re.compile(
    r"valid|eval|test|sanity|predict|map|filter|download|load|tokeni[sz]|generating|saving|fetch"
    r"|sampling|shard|collect|scan|process|caching|creating|extract|resolving|writing|read|warm",
    re.IGNORECASE,
)
_PAIR = re.compile(
    rf"(?<![\w/.@-])(?P<name>[A-Za-z][\w/@.-]*(?: loss)?)\s*(?:[=:]\s*|\s)\[?\s*(?P<value>{_VALUE})"
    r"\s*(?:/\s*(?P<total>\d+))?",
    re.IGNORECASE,
)
# `Train Epoch: 1 [640/60000 (1%)]` counts samples, `Epoch: [0][ 10/500]` counts steps.
_IMAGENET = re.compile(r"Epoch:?\s*\[(\d+)\]\s*\[\s*(\d+)/(\d+)\]")

_STEPS = ("step", "global_step", "steps", "iter", "iteration", "it", "batch", "trainer/global_step")
_LOSSES = ("loss", "train_loss", "train loss", "training loss", "training_loss", "train/loss")
_RATES = ("lr", "learning_rate", "learning rate", "lr/pg0", "train/lr", "train/learning_rate")
_NORMS = ("grad_norm", "gnorm", "grad norm", "train/grad_norm")
_TESTED = re.compile(r"^(eval|val|valid|validation|test)([_/ ]|$)", re.IGNORECASE)
_NOT_METRICS = re.compile(r"(runtime|per_second|_time|_samples)$")


@dataclass(frozen=True)
class Reading:
    """What one line says of a training."""

    step: int | None = None
    total: int | None = None
    """How many steps there will be, in all or in this epoch."""
    epoch: float | None = None
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """Figures of an evaluation."""
    bar: str | None = None
    """The name of the progress bar it was read from; None for a line."""

    @property
    def is_evaluation(self) -> bool:
        return bool(self.metrics) and self.loss is None


def read_line(text: str) -> Reading | None:
    """What a line, or one state of a bar, says; None when it says nothing of a training."""
    if len(text) > _LONGEST_LINE:
        return None
    text = " ".join(_COLOURS.sub("", text).split())  # expressions take their time on wide gaps, too
    if not text:
        return None
    bar = _BAR.match(text) or _RICH_BAR.match(text)
    if bar is not None:
        return _read_bar(bar)
    record = _read_dictionary(text)
    if record is not None:
        return _from_numbers(_as_numbers(record))
    return _read_pairs(text)


def _read_bar(bar: re.Match[str]) -> Reading | None:
    name = bar["name"].strip()
    done, total = bar["done"], bar["total"]
    is_other = _OTHER_BAR.search(name) or "examples/s" in bar["facts"] or "B/s" in bar["facts"]
    if is_other or len(done) > 15 or int(total) < 1:
        return None
    said = _pairs(f"{bar['facts']} {bar['rest']}") | _pairs(name)
    found = _from_numbers({k: v for k, (v, _) in said.items() if k not in _STEPS}) or Reading()
    return replace(found, step=int(done), total=int(total), bar=name)


def _read_dictionary(text: str) -> Mapping[Any, Any] | None:
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start or start > 80:
        return None
    body = text[start : end + 1]
    for read in (ast.literal_eval, json.loads):
        # Deeply nested text exhausts the parser's stack.
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            found = read(body)
            return found if isinstance(found, dict) else None
    return None


def _as_numbers(record: Mapping[Any, Any]) -> dict[str, float]:
    """Names with numbers; transformers 5 prints numbers as text."""
    numbers: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            continue
        with suppress(ValueError, OverflowError):
            numbers[str(name).lower()] = float(value)
    return numbers


def _pairs(text: str) -> dict[str, tuple[float, int | None]]:
    """Names with numbers, and the `/total` after a number; the first of a name counts."""
    found: dict[str, tuple[float, int | None]] = {}
    for pair in _PAIR.finditer(text):
        total = pair["total"]
        value = (float(pair["value"]), int(total) if total and len(total) < 16 else None)
        found.setdefault(pair["name"].lower(), value)
    return found


def _read_pairs(text: str) -> Reading | None:
    said = _pairs(text)
    numbers = {name: value for name, (value, _) in said.items()}
    imagenet = _IMAGENET.search(text)
    if imagenet is not None:
        numbers |= {"epoch": float(imagenet[1]), "step": _whole(float(imagenet[2])) or 0}
    found = _from_numbers(numbers)
    if found is None or (found.step is None and found.epoch is None):
        return None  # a loss of nothing in particular
    total = next((t for name in _STEPS if (t := said.get(name, (0.0, None))[1])), None)
    if imagenet is not None and len(imagenet[3]) < 16:
        total = int(imagenet[3])
    return replace(found, total=total)


def _from_numbers(numbers: Mapping[str, float]) -> Reading | None:
    """A training's figures among named numbers; None when there is no loss and no evaluation."""
    # HF Trainer's last dictionary sums up: its loss is a mean over all steps.
    loss = None if "train_runtime" in numbers else _first(numbers, _LOSSES)
    metrics = {
        name: value
        for name, value in numbers.items()
        if _TESTED.match(name) and not _NOT_METRICS.search(name)
    }
    if loss is None and not metrics:
        return None
    step = _first(numbers, _STEPS)
    return Reading(
        step=_whole(step),
        epoch=_first(numbers, ("epoch",)),
        loss=loss,
        lr=_first(numbers, _RATES),
        grad_norm=_first(numbers, _NORMS),
        metrics=metrics,
    )


def _first(numbers: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((numbers[name] for name in names if name in numbers), None)


def _whole(number: float | None) -> int | None:
    is_count = number is not None and 0 <= number < 1e15 and number == int(number)
    return int(number) if is_count and number is not None else None


def read_results(text: str) -> list[Reading]:
    """The rows of Ultralytics' results.csv, or of any such file with an `epoch` column. A last row
    without its end of line is left for the next time."""
    whole = text[: text.rfind("\n") + 1]
    readings: list[Reading] = []
    with suppress(csv.Error):
        for row in csv.DictReader(whole.splitlines(), skipinitialspace=True):
            named = {k.strip(): v for k, v in row.items() if k is not None and v is not None}
            numbers = _as_numbers({k: v for k, v in named.items() if isinstance(v, str)})
            terms = [v for k, v in numbers.items() if k.startswith("train/") and "loss" in k]
            readings.append(
                Reading(
                    epoch=numbers.get("epoch"),
                    loss=sum(terms) if terms else _first(numbers, _LOSSES),
                    lr=_first(numbers, _RATES),
                    metrics={
                        k: v for k, v in numbers.items() if k.startswith(("metrics/", "val/"))
                    },
                )
            )
    return [reading for reading in readings if reading.loss is not None or reading.metrics]


class OutputReader:
    """Follows the output of one rank in one attempt: gives steps to losses printed without one, and
    counts on where a bar begins anew with every epoch."""

    def __init__(self) -> None:
        self._bar: tuple[int | None, bool] | None = None
        self._last: int | None = None
        self._before = 0
        self._waiting: Reading | None = None

    def take(self, text: str) -> list[Reading]:
        """What a line adds, with its step where that is known. Readings of bars without a loss are
        progress alone."""
        reading = read_line(text)
        if reading is None:
            return []
        if reading.bar is not None and not self._is_training(reading):
            return []
        if reading.step is not None:
            reading = self._count_on(reading)
            return [*self._end_waiting(reading.step), reading]
        if self._bar is None:
            return [reading]
        # HF Trainer prints its losses while the bar is away; the next state of the bar has the
        # step that they belong to.
        found = self._end_waiting(self._last)
        self._waiting = reading
        return found

    def end(self) -> list[Reading]:
        """What still waits for a step."""
        return self._end_waiting(self._last)

    def _end_waiting(self, step: int | None) -> list[Reading]:
        waiting, self._waiting = self._waiting, None
        return [] if waiting is None else [replace(waiting, step=step)]

    def _is_training(self, reading: Reading) -> bool:
        """The first bar that counts is the training's, until one with a loss comes."""
        bar = (reading.total, reading.loss is not None)
        if self._bar is None or self._bar[0] == bar[0]:
            self._bar = (bar[0], bar[1] or (self._bar is not None and self._bar[1]))
            return True
        if not bar[1] or self._bar[1]:
            return False
        self._bar, self._last, self._before = bar, None, 0
        return True

    def _count_on(self, reading: Reading) -> Reading:
        assert reading.step is not None
        step = self._before + reading.step
        if self._last is not None and reading.total and step < self._last:
            self._before += reading.total * max(
                1, round((self._last - self._before) / reading.total)
            )
            step = self._before + reading.step
        self._last = step
        total = reading.total
        return replace(reading, step=step, total=total if self._before == 0 else None)
