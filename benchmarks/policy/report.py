"""Tables of what run_gpu.py measured, set beside what was asked for.

    python benchmarks/policy/report.py policy.jsonl [--write]

A later line of a contestant replaces an earlier one. `--write` puts the tables into
benchmarks/results/.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from records import by_contestant, read_records
from tables import (
    PEAK_MEMORY,
    heading,
    rate_of,
    report_parser,
    show_page,
    speed_table,
    times,
    what_is_missing,
)

LABELS = {
    "phalanx": "**Phalanx**, no flags",
    "phalanx-eager": "Phalanx, `--fast off`",
    "accelerate": "Accelerate",
    "accelerate-compiled": "Accelerate, its switch for torch.compile",
}
ASKED = {"6m": 8.0, "170m": 1.0}  # times stock Accelerate's samples a second


def table_of(work, records):
    batch = next(iter(records.values()))["batch"]
    title = f"{work.upper()}, batch {batch}"
    yield from speed_table(title, records, LABELS, columns=(PEAK_MEMORY,))
    ours = rate_of(records, "phalanx")
    for peer, asked in (("accelerate", ASKED[work]), ("accelerate-compiled", None)):
        yield from times(LABELS[peer], ours, rate_of(records, peer), asked=asked)
    yield from what_is_missing(records, LABELS)


def make_report(records):
    lines = heading("The policy recipe beside stock Accelerate", records)
    for work, found in by_contestant(records).items():
        lines += table_of(work, found)
    return lines


def main():
    arguments = report_parser(__doc__).parse_args()
    records = read_records(arguments.measured)
    show_page(make_report(records), "policy", records, arguments)


if __name__ == "__main__":
    main()
