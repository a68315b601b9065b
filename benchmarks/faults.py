"""Breaks runs in every known way and says what it cost: the fault suite as a table.

python benchmarks/faults.py [--fast] [--select WORDS] [--rows FILE] [--write]

The trials are those of `tests/faults`, which fail when a run does not come back as it should; each
records a row (tests/faults/report.py). `--rows` reads rows that were recorded before instead.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from origin import ROOT
from side_by_side import Table


def run_suite(rows, arguments):
    """Run the tests; their exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/faults"]
    command += ["-k", arguments.select] if arguments.select else []
    full = {} if arguments.fast else {"PHALANX_FULL": "1"}
    env = {**os.environ, **full, "PHALANX_FAULTS_REPORT": str(rows)}
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


def read_rows(path):
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def middle_and_most(values):
    """`0.3 (0.9)`: the median and the largest of the trials that have one."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    if len(known) == 1:
        return f"{known[0]:.3g}"
    return f"{statistics.median(known):.3g} ({max(known):.3g})"


def equal_of(rows):
    known = [row["is_equal"] for row in rows if row["is_equal"] is not None]
    return f"{sum(known)} of {len(known)}" if known else ""


def notes_of(rows):
    notes = dict.fromkeys(row["note"] for row in rows if row["note"])
    return "; ".join(notes) if len(notes) <= 3 else f"{len(notes)} different notes"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="only what `make test` runs")
    parser.add_argument("--select", help="only tests whose names hold these words (pytest -k)")
    parser.add_argument("--rows", type=Path, help="rows that were recorded before")
    parser.add_argument("--write", action="store_true", help="write to benchmarks/results")
    arguments = parser.parse_args()
    code = 0
    with tempfile.TemporaryDirectory() as folder:
        rows = arguments.rows or Path(folder, "rows.jsonl")
        if arguments.rows is None:
            code = run_suite(rows, arguments)
        found = read_rows(rows)
    table = Table(
        "faults",
        "Faults: noticed, restarted, lost, equal",
        "| fault | trials | noticed s | running again s | steps lost | goodput % | equal | note |",
        "make faults",
    )
    by_fault = {}
    for row in found:
        by_fault.setdefault(row["fault"], []).append(row)
    for fault, trials in by_fault.items():
        table.add(
            fault,
            len(trials),
            middle_and_most([row["detection_s"] for row in trials]),
            middle_and_most([row["restart_s"] for row in trials]),
            middle_and_most([row["lost_steps"] for row in trials]),
            middle_and_most([row["goodput"] and 100 * row["goodput"] for row in trials]),
            equal_of(trials),
            notes_of(trials),
        )
    table.say("")
    table.say(
        "Median (most) of the trials. Noticed: from the fault to the supervisor's word of it. "
        "Running again: from the fault to the first logged step after it. Goodput: the share of "
        "the time from the first step to the end in which steps were done that counted."
    )
    if arguments.write:
        table.write()
    sys.exit(code)


if __name__ == "__main__":
    main()
