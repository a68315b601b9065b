"""What was asked: the job, read from a file and overrides, and checked."""

from phalanx.job.device_rules import gpu_findings, ranks_asked
from phalanx.job.load import LoadedJob, Override, load_job, parse_override
from phalanx.job.rules import check_job
from phalanx.job.schema import Job
from phalanx.job.source.origin import Origin
from phalanx.job.source.value_types import Interval

__all__ = [
    "Interval",
    "Job",
    "LoadedJob",
    "Origin",
    "Override",
    "check_job",
    "gpu_findings",
    "load_job",
    "parse_override",
    "ranks_asked",
]
