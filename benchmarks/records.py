"""Lines of JSON, one for each contestant as it ends: a run that is cut short keeps what it has."""

import json


def append_record(path, record, about):
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**record, "about": about}) + "\n")


def read_records(paths):
    return [
        json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()
    ]


def by_contestant(records, work="work"):
    """{work: {contestant: record}}. A later line replaces an earlier one, unless its turn was left
    out."""
    found = {}
    for record in records:
        contestants = found.setdefault(record[work], {})
        if not record.get("left_out") or record["contestant"] not in contestants:
            contestants[record["contestant"]] = record
    return found
