"""A training script that was not written for Phalanx, before its first rank: what is to be run, on
which devices, with which environment. All problems are said at once, and nothing is created before.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.codec import to_json
from phalanx.errors import Finding, UserError, did_you_mean, errors_of
from phalanx.machine import Machine, probe_machine
from phalanx.machine.environment import DEBUG_COMMUNICATION, looks_secret
from phalanx.run.directory import RunDirectory, create_run_directory, write_atomic
from phalanx.run.lock import lock_run
from phalanx.run.source import record_source
from phalanx.scripts.devices import DevicesAsked, choose_devices, slurm_findings
from phalanx.scripts.environment import (
    PRECISIONS,
    AccelerateFile,
    accelerate_variables,
    default_variables,
    device_variables,
    read_accelerate,
    read_deepspeed,
    unknown_precision,
)

RESULTS = "runs/*/*/results.csv"
"""Where Ultralytics writes, seen from where it is started."""

_PASSED_ON = ("NCCL_", "GLOO_", "TORCH", "CUDA_", "OMP_", "ACCELERATE_", "FSDP_", "PYTORCH_")
_HIDDEN = "***"


@dataclass(frozen=True, kw_only=True)
class ScriptRequest(DevicesAsked):
    """What was asked of `phalanx launch`."""

    script: str
    arguments: list[str] = field(default_factory=list)
    is_module: bool = False
    name: str | None = None
    output: Path = Path("runs")
    python: str | None = None
    max_restarts: int = 3
    resume_with: str | None = None
    mixed_precision: str | None = None
    gradient_accumulation: int | None = None
    deepspeed: Path | None = None
    results: str = RESULTS
    nodes: int = 1
    is_resumed: bool = False
    """Whether the first attempt goes on from an earlier run of the script."""
    debug_comm: bool = False
    tensorboard: bool = True


@dataclass(frozen=True)
class PreparedScript:
    """A script that passed every check."""

    request: ScriptRequest
    machine: Machine
    argv: list[str]
    resume_words: list[str]
    ranks: int
    """On this node, and on every other."""
    is_cpu: bool
    gpus: list[int]
    """The driver's numbers of the GPUs, in rank order; empty on CPU."""
    devices: list[str]
    """Where each rank computes, if it takes the device of its LOCAL_RANK as scripts do."""
    variables: dict[str, str]
    """What is set for every rank on top of the environment of the command."""
    findings: list[Finding]
    """Warnings and notes; errors were raised."""

    @property
    def world(self) -> int:
        """Ranks on all nodes."""
        return self.ranks * self.request.nodes

    @property
    def backend(self) -> str:
        """How ranks of scripts talk on such devices, as a rule."""
        return "none" if self.world == 1 else "gloo" if self.is_cpu else "nccl"

    def argv_of(self, attempt: int) -> list[str]:
        """The command of an attempt; from the second on it is told to resume."""
        return (
            self.argv
            if attempt == 0 and not self.request.is_resumed
            else [*self.argv, *self.resume_words]
        )

    def to_json(self) -> dict[str, Any]:
        """`launch.json`: what was asked and what was set. Of the user's own variables values where
        they steer how ranks talk, else names: values may be secret."""
        mine = sorted(name for name in os.environ if name.startswith(_PASSED_ON))
        return {
            "schema_version": 1,
            "command": hide_secrets(self.argv),
            "resume_with": hide_secrets(self.resume_words),
            "folder": str(Path.cwd()),
            "ranks": self.world,
            "nodes": self.request.nodes,
            "devices": self.devices,
            "backend": self.backend,
            "max_restarts": self.request.max_restarts,
            "variables": self.variables,
            "environment": self.machine.environment,
            "passed_on": [name for name in mine if name not in self.variables],
        }


def prepare_script(request: ScriptRequest, machine: Machine | None = None) -> PreparedScript:
    """Check what was asked against what there is; takes a tenth of a second, no torch."""
    machine = machine or probe_machine(request.output, with_torch=False)
    findings: list[Finding] = []
    given = AccelerateFile()
    if request.accelerate_config is not None:
        given, found = read_accelerate(request.accelerate_config, request.nodes)
        findings += found
    if request.deepspeed is not None:
        findings += read_deepspeed(request.deepspeed)
    python, found = _find_python(request.python)
    findings += found
    findings += [*check_script(request), *_check_numbers(request)]
    resume_words, found = _split_resume(request.resume_with)
    findings += found
    gpus, cpu, found = choose_devices(request, given, machine)
    findings += found
    if cpu is None:
        findings += slurm_findings(given.num_processes, request.accelerate_config, os.environ)
    if errors_of(findings):
        raise UserError(findings)
    ranks = cpu if cpu is not None else len(gpus)
    by_user = default_variables(machine.cpu.usable_cores, ranks)
    is_named = isinstance(request.gpus, list) or given.gpu_ids is not None
    if request.debug_comm:
        by_user |= DEBUG_COMMUNICATION
    variables = {
        **{name: os.environ.get(name, value) for name, value in by_user.items()},
        **device_variables(is_cpu=cpu is not None, gpus=gpus if is_named else None),
        **given.variables,
        **accelerate_variables(
            mixed_precision=request.mixed_precision,
            gradient_accumulation=request.gradient_accumulation,
            deepspeed=request.deepspeed,
        ),
    }
    target = ["-m", request.script] if request.is_module else [request.script]
    names = {gpu.cuda_index: gpu.name for gpu in machine.visible_gpus}
    devices = [f"cuda:{n} {names.get(gpu, '')} (GPU {gpu})" for n, gpu in enumerate(gpus)]
    if cpu is not None:
        threads = variables["OMP_NUM_THREADS"]
        plural = "" if threads == "1" else "s"
        devices = [f"cpu on {machine.host}, {threads} thread{plural}"] * cpu
    return PreparedScript(
        request=request,
        machine=machine,
        argv=[python, "-u", *target, *request.arguments],
        resume_words=resume_words,
        ranks=ranks,
        is_cpu=cpu is not None,
        gpus=[gpu.index for i in gpus for gpu in machine.gpus if gpu.cuda_index == i],
        devices=devices,
        variables=variables,
        findings=findings,
    )


@contextmanager
def open_script_run(prepared: PreparedScript) -> Iterator[RunDirectory]:
    """Make the run directory and hold it."""
    request = prepared.request
    stem = request.script.rpartition(".")[2] if request.is_module else Path(request.script).stem
    run = create_run_directory(request.output, request.name, f"{stem or 'script'}.py:")
    source = record_source(hide_secrets(sys.argv))
    with lock_run(run, command=source["command"]):
        write_atomic(run.source_file, json.dumps(source, indent=2))
        write_atomic(run.machine_file, json.dumps(to_json(prepared.machine), indent=2))
        write_atomic(run.launch_file, json.dumps(prepared.to_json(), indent=2))
        yield run


def hide_secrets(words: Sequence[str]) -> list[str]:
    """A command line without values of options that are named like secrets."""
    shown: list[str] = []
    is_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        is_option = word.startswith("-")
        if is_value and not is_option:
            shown.append(_HIDDEN)
        elif equals and looks_secret(name):
            shown.append(f"{name}={_HIDDEN}")
        else:
            shown.append(word)
        is_value = is_option and not equals and looks_secret(name)
    return shown


def _find_python(asked: str | None) -> tuple[str, list[Finding]]:
    if asked is None:
        return sys.executable, []
    found = shutil.which(asked)  # also a path; only what can be executed
    if found is not None:
        # Not resolved: the link is what makes it the Python of an environment.
        return str(Path(found).absolute()), []
    return asked, [
        Finding(
            slug="launch-python",
            what=f"no Python at `{asked}` that can be executed",
            why="given with --python",
            fix="--python ENVIRONMENT/bin/python, or leave it out: the Python of this command",
        )
    ]


def check_script(request: ScriptRequest) -> Iterator[Finding]:
    """Whether there is such a script."""
    path = Path(request.script)
    if request.is_module:
        if not re.fullmatch(r"\w+(\.\w+)*", request.script):
            yield Finding(
                slug="launch-script",
                what=f"`{request.script}` is no name of a module",
                why="after -m comes a module as in an import",
                fix="phalanx launch -m package.train, or phalanx launch file.py",
            )
        return
    if path.exists():
        return
    beside = [str(p) for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
    yield Finding(
        slug="launch-script",
        what=f"no script `{request.script}`{did_you_mean(request.script, beside)}",
        why=f"looked for from {Path.cwd()}; options of launch come before the script",
        fix="phalanx launch SCRIPT.py ARGS..., or -m MODULE ARGS...",
    )


def _check_numbers(request: ScriptRequest) -> Iterator[Finding]:
    least = {
        "--cpu": (request.cpu, 1),
        "--gradient-accumulation": (request.gradient_accumulation, 1),
        "--max-restarts": (request.max_restarts, 0),
    }
    for option, (value, minimum) in least.items():
        if value is not None and value < minimum:
            yield Finding(
                slug="launch-number",
                what=f"{option} {value}, the least is {minimum}",
                why="read from the command line",
                fix=f"{option} {minimum}",
            )
    precision = request.mixed_precision
    if precision is not None and precision not in PRECISIONS:
        yield unknown_precision(precision, "--mixed-precision")


def _split_resume(text: str | None) -> tuple[list[str], list[Finding]]:
    try:
        return shlex.split(text or ""), []
    except ValueError as error:
        return [], [
            Finding(
                slug="launch-resume",
                what=f"--resume-with cannot be split into words: {error}",
                why=f"it is `{text}`; quotes in it must be closed",
                fix='--resume-with "--resume_from_checkpoint auto"',
            )
        ]
