"""Settings that were written for other tools, as a job."""

from phalanx.job.importing.command import PROGRAMS
from phalanx.job.importing.kinds import KINDS, Asked, Imported, import_command, import_file
from phalanx.job.importing.translation import Line
from phalanx.job.importing.writing import complete, job_text, unstated

__all__ = [
    "KINDS",
    "PROGRAMS",
    "Asked",
    "Imported",
    "Line",
    "complete",
    "import_command",
    "import_file",
    "job_text",
    "unstated",
]
