"""Rows of the fault report: what was done to a run, how soon it was noticed, what it cost.

`benchmarks/faults.py` names the file and makes a table of it; without it nothing is written.
"""

import json
import os
from pathlib import Path

VARIABLE = "PHALANX_FAULTS_REPORT"
FIELDS = (
    "fault",
    "detection_s",
    "restart_s",
    "lost_steps",
    "goodput",
    "is_equal",
    "note",
)


def record(
    fault,
    *,
    detection_s=None,
    restart_s=None,
    lost_steps=None,
    goodput=None,
    is_equal=None,
    note="",
):
    """Append one trial of a fault. `restart_s` is from the fault to the first step done after it,
    `goodput` the share of the run's time spent in steps that counted, `is_equal` whether the
    final weights are those of the undisturbed run, to the bit (or what the test calls equal)."""
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    values = (fault, detection_s, restart_s, lost_steps, goodput, is_equal, note)
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(dict(zip(FIELDS, values, strict=True))) + "\n")
