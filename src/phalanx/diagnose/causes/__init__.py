"""The causes of death that are known, by subject. Of rows that fit, the better grade wins, then the
one that comes first here."""

from phalanx.diagnose.causes import (
    cluster,
    code,
    communication,
    data,
    disk,
    environment,
    hardware,
    memory,
    numbers,
    process,
)
from phalanx.diagnose.causes.row import Cause

SUBJECTS: dict[str, tuple[Cause, ...]] = {
    "hardware": hardware.CAUSES,
    "memory": memory.CAUSES,
    "cluster": cluster.CAUSES,
    "disk": disk.CAUSES,
    "data": data.CAUSES,
    "numbers": numbers.CAUSES,
    "code": code.CAUSES,
    "environment": environment.CAUSES,
    "communication": communication.CAUSES,
    "process": process.CAUSES,
}
"""Every known cause by subject, what explains others first."""
