"""On which devices a launched script runs: asked for, said by an accelerate file, or there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.errors import Finding
from phalanx.machine import Machine
from phalanx.scripts.environment import AccelerateFile


@dataclass(frozen=True, kw_only=True)
class DevicesAsked:
    """The devices that `phalanx launch` was asked for."""

    gpus: Any = None
    """`all`, a number, or a list of ids."""
    cpu: int | None = None
    accelerate_config: Path | None = None


def choose_devices(
    request: DevicesAsked, given: AccelerateFile, machine: Machine
) -> tuple[list[int], int | None, list[Finding]]:
    """GPUs, or how many CPU processes, from the options, else the file, else the machine."""
    there = [gpu.cuda_index for gpu in machine.visible_gpus if gpu.cuda_index is not None]
    asked = request.gpus
    count = given.num_processes
    if request.gpus is not None and request.cpu is not None:
        return [], None, [_both_devices(request)]
    if request.cpu is not None or (asked is None and given.is_cpu):
        cpu = request.cpu if request.cpu is not None else count or 1
        return [], cpu, _disagreement(request, count, cpu)
    if asked is None and given.gpu_ids is not None:
        asked = [int(i) for i in given.gpu_ids.split(",") if i.strip().isdecimal()]
    if asked is None and count is not None:
        asked = count
    if asked is None and not there:
        return [], 1, [_no_gpu_note(machine)]
    gpus, findings = _pick(asked, there, machine)
    if not findings:
        findings += _disagreement(request, count, len(gpus))
    return gpus, None, findings


def _pick(asked: Any, there: list[int], machine: Machine) -> tuple[list[int], list[Finding]]:
    visible = machine.cuda_visible_devices
    set_to = "not set" if visible is None else f'"{visible}"'
    why = f"GPUs here: {there or 'none'}; CUDA_VISIBLE_DEVICES is {set_to}"
    if asked in (None, "all") and there:
        return there, []
    if isinstance(asked, int) and 1 <= asked <= len(there):
        return there[:asked], []
    if isinstance(asked, list) and asked and all(isinstance(i, int) for i in asked):
        missing = [i for i in asked if i not in there]
        if not missing and len(set(asked)) == len(asked):
            return asked, []
        what = f"GPU {', '.join(map(str, missing))} is not there" if missing else "a GPU twice"
        what = f"GPUs {', '.join(map(str, asked))} are asked for: {what}"
    else:
        what = f"GPUs ({asked}) are asked for, this machine has {len(there)}"
    fix = f"--gpus {len(there)}" if there else "--cpu 2"
    return [], [Finding(slug="launch-gpus", what=what, why=why, fix=fix)]


def _disagreement(request: DevicesAsked, count: int | None, ranks: int) -> list[Finding]:
    if count is None or count == ranks:
        return []
    option = f"--cpu {request.cpu}" if request.cpu is not None else f"--gpus {request.gpus}"
    return [
        Finding(
            slug="launch-ranks",
            what=f"{ranks} ranks are asked for, and {count} in `{request.accelerate_config}`",
            why=f"{option} on the command line; num_processes: {count} in that file",
            fix=f"num_processes: {ranks} in the file, or "
            f"{'--cpu' if request.cpu is not None else '--gpus'} {count}",
        )
    ]


def slurm_findings(
    count: int | None, path: Path | None, environment: Mapping[str, str]
) -> list[Finding]:
    """An accelerate file whose ranks are not the GPUs that Slurm was asked for."""
    nodes = environment.get("SLURM_JOB_NUM_NODES", "1")
    per_node = environment.get("SLURM_GPUS_PER_NODE", "").rpartition(":")[2]
    if count is None or not (nodes.isdecimal() and per_node.isdecimal()):
        return []
    asked = int(nodes) * int(per_node)
    if asked in (count, 0):
        return []
    return [
        Finding(
            slug="accelerate-slurm",
            what=f"`{path}` starts {count} processes, Slurm was asked for {asked} GPUs",
            why=f"num_processes: {count} in that file; SLURM_JOB_NUM_NODES={nodes} x "
            f"SLURM_GPUS_PER_NODE={environment['SLURM_GPUS_PER_NODE']}",
            fix=f"num_processes: {asked} in the file, or `#SBATCH --gpus-per-node="
            f"{max(1, count // int(nodes))}`",
            severity="error" if count > asked else "warning",
        )
    ]


def _both_devices(request: DevicesAsked) -> Finding:
    return Finding(
        slug="launch-gpus",
        what=f"--gpus {request.gpus} and --cpu {request.cpu} are two kinds of devices",
        why="both are on the command line; a script runs on one kind",
        fix=f"--cpu {request.cpu}",
    )


def _no_gpu_note(machine: Machine) -> Finding:
    return Finding(
        slug="launch-on-cpu",
        what="no GPU here: the script runs on 1 CPU process",
        why=f"`{machine.title}`; neither --gpus nor --cpu was given",
        fix="--cpu 2 for two ranks",
        severity="note",
    )
