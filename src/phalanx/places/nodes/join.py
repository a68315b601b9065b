"""From the options of a command to nodes that have met, tried each other, and know their network:
what `train` and `launch` share."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from phalanx.job.schema import Job
from phalanx.machine.network import Setting
from phalanx.places.nodes.meeting import meet
from phalanx.places.nodes.meeting_terms import Met, NodesAsked
from phalanx.places.nodes.preflight import check_pairs
from phalanx.recipe.loading import recipe_fingerprint
from phalanx.run.source import package_version
from phalanx.scripts.request import PreparedScript, hide_secrets

_ALONE = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_PACKAGES = ("phalanx", "torch")


def join_nodes(
    asked: NodesAsked, output: Path, facts: dict[str, Any], tell: Callable[[str], None]
) -> Met:
    """Meet the other nodes and try every pair. Raises UserError with what is wrong; the lines to
    the others are closed then."""
    met = meet(asked, output, {"versions": _versions(), **facts}, tell)
    try:
        check_pairs(met)
    except BaseException:
        met.close()
        raise
    tell(f"{len(met.members)} nodes, and every one reaches every other; this is node {met.rank}")
    for member in met.members:
        tell(f"  {member.described}")
        if met.rank in (0, member.node_rank):
            for setting in member.settings:
                tell(f"    {setting}")
    return met


def job_facts(job: Job) -> dict[str, Any]:
    """What of a job must be the same on all nodes. Where runs are written is proved otherwise."""
    record = job.model_dump(mode="json", exclude={"output"})
    return {"command": "train", "job": record, "recipe sources": recipe_fingerprint(job.recipe)}


def script_facts(prepared: PreparedScript) -> dict[str, Any]:
    """What of a launched script must be the same on all nodes; values of secrets are not shown."""
    return {
        "command": "launch",
        "script and arguments": hide_secrets(prepared.argv[1:]),
        "--resume-with": hide_secrets(prepared.resume_words),
        "--max-restarts": prepared.request.max_restarts,
        "ranks per node": prepared.ranks,
        "device": "cpu" if prepared.is_cpu else "gpu",
    }


def with_network(prepared: PreparedScript, settings: list[Setting]) -> PreparedScript:
    """A script prepared for one node, for several: loopback leads nowhere."""
    kept = {name: value for name, value in prepared.variables.items() if name not in _ALONE}
    return replace(prepared, variables=kept | {s.name: s.value for s in settings})


def _versions() -> dict[str, str | None]:
    packages = {name: package_version(name) for name in _PACKAGES}
    return {"python": ".".join(platform.python_version_tuple()[:2]), **packages}
