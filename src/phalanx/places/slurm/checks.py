"""Asks Slurm what there is, and judges a request by it before it is submitted.

Every question is an argv list with a time-out. Slurm's own last word is `sbatch --test-only`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from phalanx.errors import Finding, UserError, did_you_mean, format_bytes, format_seconds
from phalanx.places.slurm.job import SlurmRequest, parse_time

_TIMEOUT_S = 20.0
_BETWEEN = "\x1f"  # between fields: in no name
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Answer:
    """What a command of Slurm said."""

    code: int
    out: str
    err: str


def has_slurm() -> bool:
    return shutil.which("sbatch") is not None


def ask_slurm(argv: Sequence[str], *, text: str | None = None) -> Answer:
    """Run a command of Slurm. One that is missing or does not answer is a Finding."""
    try:
        done = subprocess.run(
            argv,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise UserError(
            Finding(
                slug="slurm-missing",
                what=f"there is no `{argv[0]}` here",
                why="`phalanx slurm` runs where jobs are submitted: on a login node of the cluster",
                fix="ssh to the login node; `--print` shows the batch script anywhere",
            )
        ) from None
    except subprocess.TimeoutExpired:
        raise UserError(
            Finding(
                slug="slurm-silent",
                what=f"`{argv[0]}` has not answered within {_TIMEOUT_S:.0f} s",
                why="the controller (slurmctld) is down, busy or cannot be reached from here",
                fix="scontrol ping",
            )
        ) from None
    return Answer(done.returncode, done.stdout, done.stderr)


def ask_rows(argv: Sequence[str], fields: str) -> list[list[str]] | None:
    """The rows of sinfo or squeue, each split into `fields` (`%P %a`); None when it has failed."""
    answer = ask_slurm([*argv, "-h", "-o", _BETWEEN.join(fields.split())])
    if answer.code != 0:
        return None
    lines = [line.split(_BETWEEN) for line in answer.out.splitlines()]
    return [line for line in lines if len(line) == len(fields.split())]


@dataclass(frozen=True)
class Nodes:
    """Nodes of one kind in a partition."""

    partition: str
    is_default: bool
    is_up: bool
    limit_s: int | None
    """None: no limit."""
    count: int
    cpus: int
    memory_bytes: int
    gpus: dict[str, int]
    """Number by type, all types together under an empty one."""
    features: frozenset[str]


def read_nodes() -> list[Nodes]:
    """What the partitions hold that this user may see."""
    rows = ask_rows(["sinfo", "-e"], "%P %a %l %D %c %m %G %f")
    if rows is None:
        raise UserError(
            Finding(
                slug="slurm-silent",
                what="`sinfo` has failed",
                why="the controller (slurmctld) cannot be reached, or SLURM_CONF names another one",
                fix="scontrol ping",
            )
        )
    return [
        Nodes(
            partition=name.rstrip("*"),
            is_default=name.endswith("*"),
            is_up=state == "up",
            limit_s=parse_time(limit),
            count=int(count),
            cpus=int(cpus.rstrip("+")),
            memory_bytes=int(memory.rstrip("+")) * 2**20,
            gpus=parse_gres(gres),
            features=frozenset(features.split(",")) - {"(null)"},
        )
        for name, state, limit, count, cpus, memory, gres, features in rows
    ]


def parse_gres(text: str) -> dict[str, int]:
    """GPUs of a node: `gpu:a100:4(S:0-1),gpu:2,nic:1` -> {"": 6, "a100": 4}."""
    found: dict[str, int] = {}
    for kind, count in re.findall(r"(?:^|,)gpu:(?:([^:,(]+):)?(\d+)", text):
        found[""] = found.get("", 0) + int(count)
        if kind:
            found[kind] = found.get(kind, 0) + int(count)
    return found


def partition_nodes(request: SlurmRequest, nodes: Sequence[Nodes]) -> list[Nodes]:
    """The nodes that a request may get, by its partition alone."""
    if request.partition is None:
        return [node for node in nodes if node.is_default]
    wanted = request.partition.split(",")
    return [node for node in nodes if node.partition in wanted]


def cpus_for(request: SlurmRequest, there: Sequence[Nodes], ranks: int | None) -> int:
    """CPUs for a job that names none, where Slurm would give it one: the share of a node's that its
    GPUs are of the node's, or one for each CPU rank."""
    if not request.gpu_count:
        return max(1, ranks or 1)
    kind = request.gpus.rpartition(":")[0]
    shares = [
        node.cpus * request.gpu_count // node.gpus[kind]
        for node in there
        if node.gpus.get(kind, 0) >= request.gpu_count
    ]
    return max(1, min(shares, default=1))


def cluster_findings(request: SlurmRequest, nodes: Sequence[Nodes]) -> list[Finding]:
    """What is wrong with a request on this cluster; all of it at once."""
    known = sorted({node.partition for node in nodes})
    if request.partition is None and not any(node.is_default for node in nodes):
        return [_unknown_partition("no partition was given, and the cluster has no default", known)]
    if request.partition is not None:
        unknown = [name for name in request.partition.split(",") if name not in known]
        if unknown:
            near = did_you_mean(unknown[0], known)
            return [_unknown_partition(f"there is no partition `{unknown[0]}`{near}", known)]
    there = partition_nodes(request, nodes)
    return [*_partition_findings(request, there), *_node_findings(request, there)]


def _unknown_partition(what: str, known: Sequence[str]) -> Finding:
    return Finding(
        slug="slurm-partition",
        what=what,
        why=f"`sinfo` lists {', '.join(known) or 'none'}",
        fix=f"--partition {known[0]}" if known else "sinfo",
    )


def _partition_findings(request: SlurmRequest, there: Sequence[Nodes]) -> Iterator[Finding]:
    name = there[0].partition
    if not any(node.is_up for node in there):
        yield Finding(
            slug="slurm-partition",
            what=f"the partition `{name}` is not up",
            why="`sinfo` says so: a job would wait until it is",
            fix="take another one, or ask who runs the cluster",
            severity="warning",
        )
    asked_s = parse_time(request.time) if request.time is not None else None
    limits = [node.limit_s for node in there]
    longest = None if None in limits else max(limit for limit in limits if limit is not None)
    if asked_s is not None and longest is not None and asked_s > longest:
        yield Finding(
            slug="slurm-time",
            what=f"--time {request.time} is {format_seconds(asked_s)}, the partition `{name}` "
            f"allows {format_seconds(longest)}",
            why="`sinfo` gives its limit; a job beyond it is refused, or waits for ever",
            fix=f"--time {longest // 60}; a run that needs longer is queued again and goes on",
        )


def _node_findings(request: SlurmRequest, there: Sequence[Nodes]) -> Iterator[Finding]:
    name = there[0].partition
    count = sum(node.count for node in there)
    if request.nodes > count:
        yield Finding(
            slug="slurm-nodes",
            what=f"--nodes {request.nodes}: the partition `{name}` has {count}",
            why="`sinfo` counts them, also those that are down or taken",
            fix=f"--nodes {count}",
        )
    kind = request.gpus.rpartition(":")[0]
    most = max(node.gpus.get(kind, 0) for node in there)
    if request.gpu_count > most:
        of_kind = f" of type {kind}" if kind else ""
        kinds = sorted({k for node in there for k in node.gpus if k})
        yield Finding(
            slug="slurm-gpus",
            what=f"--gpus-per-node {request.gpus}: a node of `{name}` has {most} GPUs{of_kind} "
            "at most",
            why=f"`sinfo` lists them; types: {', '.join(kinds) or 'none named'}",
            fix=f"--gpus-per-node {most}"
            if most
            else "--gpus-per-node 0 --cpu 1, or another --partition",
        )
    cpus = max(node.cpus for node in there)
    if request.cpus is not None and request.cpus > cpus:
        yield Finding(
            slug="slurm-cpus",
            what=f"--cpus-per-task {request.cpus}: a node of `{name}` has {cpus} CPUs at most",
            why="one task runs on a node; `sinfo` gives its CPUs",
            fix=f"--cpus-per-task {cpus}",
        )
    memory = max(node.memory_bytes for node in there)
    asked = parse_memory(request.memory) if request.memory is not None else 0
    if asked > memory:
        yield Finding(
            slug="slurm-memory",
            what=f"--mem {request.memory}: a node of `{name}` has {format_bytes(memory)} at most",
            why="it is asked for per node; `sinfo` gives what a node has",
            fix=f"--mem {memory // 2**20}M",
        )
    features = frozenset().union(*(node.features for node in there))
    for feature in re.findall(r"[A-Za-z_][A-Za-z0-9_.-]*", request.constraint or ""):
        if feature not in features:
            yield Finding(
                slug="slurm-constraint",
                what=f"no node of `{name}` has the feature `{feature}`"
                f"{did_you_mean(feature, features)}",
                why=f"--constraint {request.constraint}; features there: "
                f"{', '.join(sorted(features)) or 'none'}",
                fix="leave --constraint out, or name one of these",
            )


def parse_memory(text: str) -> int:
    """Bytes of `64G`; a bare number is in MiB."""
    return int(text.rstrip("KMGT")) * _UNITS[text[-1] if text[-1] in _UNITS else "M"]


def account_findings(request: SlurmRequest, user: str) -> list[Finding]:
    """Whether this user may use account and QOS, where the accounting answers."""
    if request.account is None and request.qos is None:
        return []
    try:
        answer = ask_slurm(
            ["sacctmgr", "-n", "-P", "show", "assoc", f"user={user}", "format=account,qos"]
        )
    except UserError:  # no accounting here
        return []
    rows = [line.split("|") for line in answer.out.splitlines() if line.count("|") == 1]
    if answer.code != 0 or not rows:
        return []
    accounts = sorted({account for account, _ in rows})
    levels = sorted({level for _, names in rows for level in names.split(",") if level})
    findings = []
    for option, value, known in (
        ("--account", request.account, accounts),
        ("--qos", request.qos, levels),
    ):
        if value is not None and known and value not in known:
            findings.append(
                Finding(
                    slug="slurm-account",
                    what=f"{option} {value} is not yours to use{did_you_mean(value, known)}",
                    why=f"`sacctmgr show assoc user={user}` lists {', '.join(known)}",
                    fix=f"{option} {known[0]}",
                )
            )
    return findings


def refusal(script: str) -> list[Finding]:
    """What sbatch itself has against a script; nothing is submitted."""
    answer = ask_slurm(["sbatch", "--test-only"], text=script)
    if answer.code == 0:
        return []
    said = [line.removeprefix("sbatch: error: ") for line in answer.err.splitlines() if line]
    return [
        Finding(
            slug="slurm-refused",
            what=f"Slurm would refuse the job: {said[-1] if said else answer.code}",
            why=f"said by `sbatch --test-only`: {' | '.join(said)}",
            fix="see what it says; `--print` shows the script",
        )
    ]
