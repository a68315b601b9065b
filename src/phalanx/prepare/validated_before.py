"""Remembers that the fast path was compared with the recipe as it is written: the same recipe, data
and choices on the same torch and GPU need it once, not at every start. What was compared was also
compiled, and that is kept (compile_cache.py)."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from phalanx.machine import Machine
from phalanx.planner.schema.plan import Decision, Plan
from phalanx.prepare.trace_cache import installed
from phalanx.run.cache import cache_folder
from phalanx.run.directory import RunDirectory, write_atomic

# What gradients of the first micro-batch depend on, besides the recipe, its data and the seed.
_CHOICES = (
    "device",
    "ranks",
    "strategy",
    "shard_ranks",
    "offload",
    "precision",
    "frozen_precision",
    "determinism",
    "sync_batchnorm",
    "activation_checkpointing",
    "compile",
    "channels_last",
    "micro_batch_size",
)
_SAME = ("recipe", "recipe_fingerprint", "options", "data_fingerprint", "num_samples", "seed")


def recall_comparison(plan: Plan, machine: Machine) -> Plan:
    """The plan without a comparison that was made before and found no difference."""
    if not plan.execution.compared_with_eager.value:
        return plan
    try:
        made = json.loads(_file(plan, machine).read_text(encoding="utf-8"))["made"]
    except (OSError, ValueError, KeyError, TypeError):
        return plan
    reason = f"compared on {made} with the same recipe, data, choices, torch and GPU: no difference"
    return plan.replace(compared_with_eager=Decision(False, reason), is_code_kept=True)


def keep_comparison(plan: Plan, run: RunDirectory) -> None:
    """The ranks of a run have compared, and nothing differed."""
    machine = Machine.read(run.machine_file)
    if machine is None:
        return
    with suppress(OSError, ValueError, KeyError, TypeError):  # the next start compares again
        file = _file(plan, machine)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(file, json.dumps({"made": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}))


def _file(plan: Plan, machine: Machine) -> Path:
    chosen = plan.decisions()
    about = {
        **{name: plan.history.identity.get(name) for name in _SAME},
        **{name: chosen[name].value for name in _CHOICES},
        "installed": installed(),
        "gpus": sorted(gpu.name for gpu in machine.visible_gpus),
        "driver": machine.driver_version,
    }
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
    return cache_folder("compared") / f"{digest}.json"
