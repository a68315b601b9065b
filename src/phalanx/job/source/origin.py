"""Where a value came from, and how a value is read and written on one line."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from typing import Any, Literal

from phalanx.job.source.value_types import Interval

_INT = re.compile(r"[-+]?\d+|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_PLAIN_TEXT = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./%+-]*( [A-Za-z0-9_./%+-]+)*(:\w+)?")


@dataclass(frozen=True)
class Origin:
    """Where one value came from; `str` is what a Finding prints."""

    kind: Literal["file", "deepspeed", "option", "override", "python", "default"]
    name: str = ""
    line: int = 0
    key: str = ""
    """What the value is called there, where that is not its key in a job: in DeepSpeed's file."""

    @property
    def is_command_line(self) -> bool:
        return self.kind in ("option", "override")

    def __str__(self) -> str:
        if self.kind in ("file", "deepspeed"):
            return f"{self.name}:{self.line}" if self.line else self.name
        if self.kind == "override":
            return f"{self.name} on the command line"
        return self.name or self.kind

    def line_for(self, key: str, value: Any) -> str:
        """The line to paste at this origin so that `key` becomes `value`."""
        if self.kind == "deepspeed":
            auto = f'"{self.key.rpartition(".")[2]}": "auto"'
            return f"{auto} in {self}, and `{key}: {format_value(value)}` in the job"
        if self.kind == "override":
            return shlex.quote(f"{key}={format_value(value)}")
        if self.kind == "option" and isinstance(value, list):
            return f"{self.name} {','.join(map(str, value))}{',' if len(value) == 1 else ''}"
        if self.kind == "option":
            return f"{self.name} {shlex.quote(format_value(value))}"
        return f"{key}: {format_value(value)}"


DEFAULT = Origin("default")


def parse_scalar(text: str) -> Any:
    """Read one plain scalar by YAML 1.2: `1e-3` is a number; `yes`, `1:30` and dates are text."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in ("true", "false") and text in (text.lower(), text.title(), text.upper()):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        # 400 digits are far outside what is allowed, and int() of many more raises.
        return int(text[:400], {"0x": 16, "0o": 8}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def format_value(value: Any) -> str:
    """Write a value as it would stand in a job file, on one line."""
    if isinstance(value, str) and _PLAIN_TEXT.fullmatch(value) and parse_scalar(value) == value:
        return value
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(format_value, value))}]"
    if isinstance(value, Interval):
        return str(value)
    text = json.dumps(value, default=str, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def show(value: Any) -> str:
    """A value as data, cut short, without characters that would move the terminal's cursor."""
    text = format_value(value) if not isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
