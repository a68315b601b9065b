"""Where calibrations are kept: one JSON file for each kind of device, written by `bench`, read by
every plan. A file that cannot be read is as good as none, and is said to be so."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

from phalanx.codec import from_json, to_json
from phalanx.errors import Finding
from phalanx.machine import Machine
from phalanx.machine.calibration import Calibration, MeasuredStep, device_kind
from phalanx.run.cache import cache_folder
from phalanx.run.directory import write_atomic

_KEPT_STEPS = 500  # the newest: about 200 kB


def calibration_file(kind: str) -> Path:
    """Of one kind of device; the hash keeps names apart that differ in signs only."""
    words = re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")[:60]
    digest = hashlib.sha256(kind.encode()).hexdigest()[:8]
    return cache_folder("calibration") / f"{words}-{digest}.json"


def find_calibration(
    machine: Machine, device: str | None = None
) -> tuple[Calibration | None, list[Finding]]:
    """What was measured of the device that this machine trains on, or of the one named `cuda`,
    `mps` or `cpu`."""
    gpus = machine.visible_gpus
    return read_calibration(
        device_kind(
            device or machine.accelerator,
            gpu=gpus[0].name if gpus else None,
            cpu=machine.cpu.model,
        )
    )


def read_calibration(kind: str) -> tuple[Calibration | None, list[Finding]]:
    """What was measured of a kind of device."""
    path = calibration_file(kind)
    try:
        return from_json(Calibration, json.loads(path.read_text(encoding="utf-8"))), []
    except FileNotFoundError:
        return None, []
    except (OSError, ValueError) as error:
        return None, [_unreadable(path, error)]


def store_calibration(measured: Calibration) -> tuple[Path, list[Finding]]:
    """Put new figures beside those that are kept; returns where."""
    path = calibration_file(measured.device)
    known, findings = read_calibration(measured.device)
    if known is not None:
        measured = merge_calibrations(known, measured)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(to_json(measured), indent=2))
    return path, findings


def merge_calibrations(old: Calibration, new: Calibration) -> Calibration:
    """The new figures, and what the old ones have besides. Another version of torch computes at
    another speed: nothing older is kept then."""
    if old.torch_version != new.torch_version:
        return replace(new, steps=new.steps[-_KEPT_STEPS:])
    links = {(link.ranks, link.backend): link for link in (*old.links, *new.links)}
    steps: dict[object, MeasuredStep] = {}
    for step in (*old.steps, *new.steps):
        same = (step.job_key, step.strategy, step.ranks, step.micro_batch, step.accumulation)
        steps.pop(same, None)  # the newest is the last
        steps[same] = step
    return replace(
        new,
        product_tflops={**old.product_tflops, **new.product_tflops},
        copy_gb_per_s=new.copy_gb_per_s or old.copy_gb_per_s,
        host_call_us=new.host_call_us or old.host_call_us,
        kernel_us=new.kernel_us or old.kernel_us,
        context_bytes=new.context_bytes or old.context_bytes,
        links=tuple(links.values()),
        steps=tuple(steps.values())[-_KEPT_STEPS:],
    )


def _unreadable(path: Path, error: Exception) -> Finding:
    return Finding(
        slug="calibration-unreadable",
        what=f"`{path}` cannot be read: predictions do without it",
        why=f"{type(error).__name__}: {error}",
        fix=f"measure again: `rm {path}`, then `phalanx bench`",
        severity="warning",
    )
