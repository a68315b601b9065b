"""A DeepSpeed file being turned into a job: what was said, what is kept, what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from phalanx.errors import Finding, did_you_mean
from phalanx.job.deepspeed.file import DeepspeedFile
from phalanx.job.deepspeed.keys import COUNT, SECTION, Kind, Section, is_off
from phalanx.job.source.origin import Origin, show


class Said(NamedTuple):
    """A value of the file that is a key of the job."""

    key: str
    value: Any
    origin: Origin


class Unsaid(NamedTuple):
    """A key the file leaves out although DeepSpeed's default is not the job's."""

    key: str
    deepspeed_key: str
    deepspeed_default: Any


class Translation:
    """The file in the words of a job."""

    def __init__(self, file: DeepspeedFile) -> None:
        self.file = file
        self.said: list[Said] = []
        self.unsaid: list[Unsaid] = []
        self.rest: dict[str, Any] = {}
        """What DeepSpeed is given beside the job's own keys."""
        self.findings: list[Finding] = []

    def is_said(self, key: str) -> bool:
        return self.file.value(key) not in (None, "auto")

    def section(self, key: str) -> Mapping[str, Any]:
        """The entries of a section; empty when it is not there."""
        value = self.file.value(key)
        if not self.is_said(key) or not self.fits(key, SECTION):
            return {}
        assert isinstance(value, Mapping)
        return value

    def say(self, key: str, job_key: str) -> None:
        """Give the job a value of the file, unless the file leaves that to the job."""
        if self.is_said(key):
            self.add(key, job_key, self.file.value(key))

    def add(self, key: str, job_key: str, value: Any) -> None:
        self.said.append(Said(job_key, value, self.file.origin(key)))

    def leave_out(self, key: str, job_key: str, deepspeed_default: Any) -> None:
        """Remember a key the file does not have."""
        if self.file.value(key) is None:
            self.unsaid.append(Unsaid(job_key, key, deepspeed_default))

    def hand_on(self, key: str, kind: Kind) -> None:
        """Keep a value for DeepSpeed, which has defaults of its own for what is `auto`."""
        if not self.is_said(key) or not self.fits(key, kind):
            return
        value = self.file.value(key)
        *sections, last = key.split(".")
        place = self.rest
        for name in sections:
            place = place.setdefault(name, {})
        place[last] = int(value) if kind is COUNT else value

    def fits(self, key: str, kind: Kind) -> bool:
        """Whether the value is of its kind; a Finding when it is not."""
        value = self.file.value(key)
        if kind.fits(value):
            return True
        self.refuse_value(
            key,
            f"`{key}` is {show(value)}, it must be {kind.words}",
            f'"{key.rpartition(".")[2]}": {json.dumps(kind.example)}',
        )
        return False

    def refuse_value(self, key: str, what: str, fix: str, *others: str) -> None:
        self.findings.append(
            Finding(slug="deepspeed-value", what=what, why=self.file.said(key, *others), fix=fix)
        )

    def refuse(self, key: str, why: str, fix: str = "") -> None:
        """A key or choice of DeepSpeed's that a run here cannot follow."""
        self.findings.append(
            Finding(
                slug="deepspeed-refused",
                what=f"`{key}` = {show(self.file.value(key))} of the DeepSpeed file cannot be "
                "followed",
                why=f"{self.file.said(key)}; {why}",
                fix=fix or f"remove `{key}`",
            )
        )

    def settle(self, key: str, section: Section, *others: str) -> None:
        """Hand on, pass over or refuse a key as its section says; `others` are known besides."""
        name, value = key.rpartition(".")[2], self.file.value(key)
        if name in section.handed_on:
            self.hand_on(key, section.handed_on[name])
        elif name in section.ignored:
            if not is_off(value):
                self.ignore(key, section.ignored[name])
        elif name in section.at_default or name in section.off:
            if why := section.refusal(name, value):
                self.refuse(key, why)
        else:
            self.unknown(key, [*others, *section.handed_on, *section.at_default, *section.ignored])

    def unknown(self, key: str, known: Iterable[str]) -> None:
        near = did_you_mean(key.rpartition(".")[2], known)
        self.findings.append(
            Finding(
                slug="deepspeed-key",
                what=f"`{key}` is not a known key of DeepSpeed's file{near}",
                why=f"{self.file.said(key)}; DeepSpeed would pass over it or stop at it",
                fix=f"remove `{key}`, or write it as DeepSpeed 0.19 does",
            )
        )

    def ignore(self, key: str, why: str) -> None:
        self.findings.append(
            Finding(
                slug="deepspeed-ignored",
                what=f"`{key}` = {show(self.file.value(key))} of the DeepSpeed file is not used",
                why=f"{self.file.said(key)}; {why}",
                fix=f"nothing, or remove `{key}`",
                severity="warning",
            )
        )
