"""Plans a job once per value of one key, or once per machine. Nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from phalanx.codec import to_json
from phalanx.errors import Finding, UserError, errors_of
from phalanx.job import Override
from phalanx.machine import Machine
from phalanx.planner.schema.plan import Plan
from phalanx.planner.schema.trace import EAGER
from phalanx.prepare.job import Source
from phalanx.prepare.plan import other_machine, prepare
from phalanx.prepare.trace import Answer, AskTrace, trace_recipe
from phalanx.prepare.trace_cache import remembering

MACHINE_KEY = "machine"
SHOWN = (
    "ranks",
    "strategy",
    "precision",
    "global_batch_size",
    "micro_batch_size",
    "accumulation",
    "steps_per_epoch",
    "lr",
    "memory_bytes",
    "step_s",
    "samples_per_s",
    "speedup",
    "duration_s",
)
"""The choices a row shows."""


@dataclass(frozen=True)
class SweepRow:
    """One value of the key and what it leads to: a plan, or what is wrong with it."""

    value: str
    plan: Plan | None
    device_bytes: int | None
    """Memory of one GPU; None without one."""
    findings: list[Finding]

    @property
    def error(self) -> Finding | None:
        return next(iter(errors_of(self.findings)), None)

    def to_json(self) -> dict[str, Any]:
        chosen = self.plan.decisions() if self.plan is not None else {}
        return {
            "value": self.value,
            **{name: chosen[name].value if name in chosen else None for name in SHOWN},
            "device_bytes": self.device_bytes,
            "findings": to_json(self.findings),
        }


def parse_sweep(text: str) -> tuple[str, list[str]]:
    """`KEY=V1,V2,...`; values that hold a comma themselves are separated by `;`."""
    key, _, listed = text.partition("=")
    key = key.strip()
    values = [value.strip() for value in listed.split(";" if ";" in listed else ",")]
    values = list(dict.fromkeys(filter(None, values)))
    if key and values:
        return key, values
    raise UserError(
        Finding(
            slug="sweep-words",
            what=f"`{text}` names {'no values' if key else 'no key'} to plan for",
            why="--sweep takes KEY=VALUE,VALUE,... with a job key, an option of the recipe or "
            "`machine`; `;` separates values that hold a comma",
            fix='--sweep batch_size=32,64,128 or --sweep machine="RTX 3090,A100-40,A100-80"',
        )
    )


def sweep(
    source: Source | None,
    overrides: Sequence[Override | str],
    text: str,
    *,
    machine: Machine | None = None,
    is_fresh: bool = True,
) -> list[SweepRow]:
    """A row per value; a value that is wrong has its Findings there and does not end the sweep.

    The recipe is asked once for each set of its options, this machine once.
    """
    key, values = parse_sweep(text)
    if key == MACHINE_KEY and machine is not None:
        raise UserError(
            Finding(
                slug="two-machines",
                what="--machine names one machine, --sweep machine= names others",
                why=f"--machine {machine.host}, --sweep {text}",
                fix=f"--sweep {text}",
            )
        )
    plan = partial(prepare, source, ask_trace=_once(remembering(trace_recipe, is_fresh=is_fresh)))
    is_elsewhere = machine is not None
    rows = []
    for value in values:
        try:
            if key == MACHINE_KEY:
                other = other_machine(value)
                done = plan(overrides, machine=other, is_elsewhere=other is not None)
            else:
                given = [*overrides, f"{key}={value}"]
                done = plan(given, machine=machine, is_elsewhere=is_elsewhere)
                machine = done.machine
        except UserError as error:
            rows.append(SweepRow(value, None, None, error.findings))
        else:
            rows.append(SweepRow(value, done.plan, done.plan.devices.device_bytes, done.findings))
    return rows


def _once(ask: AskTrace) -> AskTrace:
    answers: dict[str, Answer] = {}

    def asked_once(
        spec: str, options: dict[str, Any], precisions: tuple[str, ...] = EAGER
    ) -> Answer:
        asked = json.dumps([spec, options, precisions], sort_keys=True, default=str)
        if asked not in answers:
            answers[asked] = ask(spec, options, precisions)
        return answers[asked]

    return asked_once
