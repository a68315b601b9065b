"""From a command line to what is asked of Slurm: the job judged as far as it can be here, the words
for the node, and what this cluster has against it."""

from __future__ import annotations

import getpass
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from phalanx.errors import Finding, UserError, errors_of
from phalanx.job import LoadedJob, Override, check_job, load_job, parse_override, ranks_asked
from phalanx.job.keys import known_key
from phalanx.places.slurm import checks as slurm_checks
from phalanx.places.slurm.job import TASK, SlurmRequest, batch_script, train_words
from phalanx.prepare.job import nothing_to_train, resolve_source
from phalanx.recipe.loading import builtin_recipes
from phalanx.scripts.environment import read_accelerate
from phalanx.scripts.request import ScriptRequest, check_script

_FLAGS = ("--fp16", "--bf16", "--fsdp")  # options without a value


def load_job_elsewhere(
    job: str | None, overrides: Sequence[Override | str]
) -> tuple[LoadedJob, list[Finding]]:
    """The job as it will be read on the node; all its problems are said here."""
    if job is None:
        raise UserError(nothing_to_train())

    def first_task(value: Any) -> Any:
        return value.replace(TASK, "0") if isinstance(value, str) else value

    tried = [
        Override(o.key, first_task(o.value), o.source) if isinstance(o, Override) else first_task(o)
        for o in overrides
    ]
    loaded = load_job(resolve_source(first_task(job)), tried)
    problems = check_job(loaded, known_recipes=builtin_recipes())
    # What is installed here says nothing of the nodes.
    return loaded, [finding for finding in problems if finding.slug != "deepspeed-missing"]


def words_of(job: str, overrides: Sequence[Override | str]) -> tuple[str, ...]:
    """The command line of `train` again, without what the script says itself."""
    own = ("name", "output")
    options: dict[str, str] = {}
    plain: list[str] = []
    for override in overrides:
        if isinstance(override, str):
            if known_key(parse_override(override).key.strip()) not in own:
                plain.append(override)
        elif override.value is not None and override.key not in own:
            options[override.source] = _option_text(override.value)
    words = [flag if flag in _FLAGS else f"{flag}={text}" for flag, text in options.items()]
    return train_words(job, plain, words)


def _option_text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) + ("," if len(value) == 1 else "")
    return str(value)


def name_from(job: str) -> str:
    """A name for Slurm from a job file or `file.py:Class`."""
    stem = Path(job.rpartition(":")[0] or job).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:40] or "job"


def gpus_of(loaded: LoadedJob) -> str:
    if loaded.job.devices.cpu is not None:
        return "0"
    return str(ranks_asked(loaded.job) or 1)


def device_findings(request: SlurmRequest, loaded: LoadedJob) -> list[Finding]:
    """Where the job and what is asked of Slurm disagree about devices."""
    if not request.gpus.rpartition(":")[2].isdecimal():
        return []  # said already
    cpu, ranks = loaded.job.devices.cpu, ranks_asked(loaded.job)
    if cpu is not None and request.gpu_count:
        return [
            Finding(
                slug="slurm-gpus-idle",
                what=f"{request.gpu_count} GPUs per node would be idle: the job trains on {cpu} "
                "CPU processes",
                why=f"--gpus-per-node {request.gpus}; {loaded.said('devices.cpu')}",
                fix="--gpus-per-node 0, or leave --cpu out",
                severity="warning",
            )
        ]
    if cpu is None and ranks is not None and ranks != request.gpu_count:
        is_more = ranks > request.gpu_count
        return [
            Finding(
                slug="slurm-gpus-differ",
                what=f"the job asks for {ranks} GPUs, Slurm is asked for {request.gpu_count}",
                why=f"{loaded.said('devices.gpus')}; --gpus-per-node {request.gpus}",
                fix=f"--gpus-per-node {ranks}",
                severity="error" if is_more else "warning",
            )
        ]
    return []


def script_findings(
    request: SlurmRequest,
    *,
    script: str,
    is_module: bool,
    cpu: int | None,
    resume_with: str | None,
    accelerate_config: str | None,
) -> list[Finding]:
    """What is wrong with a launched script, as far as it can be seen here."""
    findings = [*check_script(ScriptRequest(script=script, is_module=is_module))]
    ranks = cpu if cpu is not None else request.gpu_count
    if accelerate_config is not None:
        given, found = read_accelerate(Path(accelerate_config), max(1, request.nodes))
        findings += found
        count = given.num_processes
        if count is not None and count != ranks:
            asked = f"--cpu {cpu}" if cpu is not None else f"--gpus-per-node {request.gpus}"
            findings.append(
                Finding(
                    slug="slurm-ranks",
                    what=f"{ranks * request.nodes} ranks are asked of Slurm, and "
                    f"{count * request.nodes} in `{accelerate_config}`",
                    why=f"{asked} on {request.nodes} nodes; num_processes in that file counts all "
                    "nodes",
                    fix=f"num_processes: {ranks * request.nodes} in the file",
                )
            )
    if resume_with is None:
        findings.append(
            Finding(
                slug="slurm-resume",
                what="a script that is queued again begins anew",
                why="--resume-with was not given; a script that resumes by itself needs none",
                fix='--resume-with "--resume_from_checkpoint auto", or --max-requeues 0',
                severity="note",
            )
        )
    return findings


def checked_by_slurm(request: SlurmRequest, cpu: int | None) -> tuple[SlurmRequest, list[Finding]]:
    """The request with its CPUs settled, and what Slurm has against it. `cpu`: CPU processes that
    are asked for on a node."""
    nodes = slurm_checks.read_nodes()
    there = slurm_checks.partition_nodes(request, nodes)
    if request.cpus is None and there:
        request = replace(request, cpus=slurm_checks.cpus_for(request, there, cpu))
    problems = slurm_checks.cluster_findings(request, nodes)
    problems += slurm_checks.account_findings(request, getpass.getuser())
    if not errors_of(problems):
        problems += slurm_checks.refusal(batch_script(request))
    return request, problems
