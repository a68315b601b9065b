"""Settings that were written for other tools, as a job."""

from phalanx.job.importing.kinds import KINDS, Imported, import_command, import_file
from phalanx.job.importing.translation import Line
from phalanx.job.importing.writing import complete, job_text

__all__ = ["KINDS", "Imported", "Line", "complete", "import_command", "import_file", "job_text"]
