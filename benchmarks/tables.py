"""Pages of what was measured, set beside what was asked for, for benchmarks/results."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from origin import CPU_ONLY, ROOT

RESULTS = ROOT / "benchmarks" / "results"
GIB = 2**30


def report_parser(doc):
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("measured", nargs="+", type=Path, help="JSON lines")
    parser.add_argument("--write", action="store_true", help="write to benchmarks/results")
    return parser


def heading(title, records):
    """The title, and where the figures come from."""
    about = records[-1]["about"]
    commands = dict.fromkeys(record["about"]["command"] for record in records)
    return [
        f"# {title}",
        "",
        f"- date: {about['date']}",
        f"- machine: {about['machine']}, {about['cores']} CPU cores",
        f"- versions: {_versions(records)}; phalanx at {about['commit']}",
        *(f"- command: {command}" for command in commands),
        "",
    ]


def _versions(records):
    about, found = records[-1]["about"], {}
    if "versions" in about:
        return about["versions"]
    for record in records:  # each said its own once
        found |= record.get("versions", {})
    found = {"python": about["python"], "torch": about["torch"], **found}
    return ", ".join(f"{name} {version}" for name, version in found.items())


def rate_of(records, name):
    return records.get(name, {}).get("samples_per_s")


def speed_table(title, records, labels, *, unit="samples/s", per_sample=1, columns=()):
    """The quickest first. `columns`: (heading, what a record's cell says)."""
    yield f"## {title}"
    yield ""
    names = [unit, "slowest to quickest window", *(name for name, _ in columns)]
    yield f"| what | {' | '.join(names)} |"
    yield "|---|" + "--:|" * len(names)
    measured = [name for name in labels if rate_of(records, name)]
    for name in sorted(measured, key=lambda name: -rate_of(records, name)):
        record = records[name]
        rate, slowest, quickest = (
            f"{record[key] * per_sample:,.0f}" for key in ("samples_per_s", "slowest", "quickest")
        )
        cells = [rate, f"{slowest} to {quickest}", *(cell(record) for _, cell in columns)]
        yield f"| {labels[name]} | {' | '.join(cells)} |"
    yield ""


def _memory(record):
    return f"{record['memory_bytes'] / GIB:.2f} GiB" if record.get("memory_bytes") else ""


def _tenth_step(record):
    _, tenth = start_times(record)
    return f"{tenth:.1f} s" if tenth else ""


PEAK_MEMORY = ("peak memory", _memory)
START = ("start to step 10", _tenth_step)


def start_times(record):
    """Seconds to step 1 and to step 10, as far as known."""
    if "first_event_s" in record:
        step, at = record["first_event_step"], record["first_event_s"]
        return (at, None) if step == 1 else (None, at)
    return record.get("first_step_s"), record.get("tenth_step_s")


def verdict(is_reached):
    return "reached" if is_reached else "**not reached**"


def times(label, ours, theirs, *, asked=None):
    """How many times a peer's rate, and whether as much as was asked; nothing where one of them was
    not measured."""
    if not ours or not theirs:
        return
    reached = ours / theirs
    judged = f", asked at least {asked:g}: {verdict(reached >= asked)}" if asked else ""
    yield f"- times {label}: {reached:.2f}{judged}"


def what_is_missing(records, labels):
    for name, record in records.items():
        label = labels.get(name, name)
        if record.get("left_out"):
            yield f"- not measured, for want of time: {label}"
        elif record.get("error", "").startswith("over "):
            limit = record["error"].partition(":")[0].removeprefix("over ")
            yield f"- did not get to measure, ended after {limit}: {label}"
        elif "error" in record:
            last = record["error"].strip().splitlines()[-1][:200]
            yield f"- failed: {label}: `{last}`"
    yield ""


def show_page(lines, name, records, arguments):
    """Print it, with what a person has to say about a measurement and lies beside it; write it
    where that was asked for."""
    notes = [
        beside.read_text(encoding="utf-8")
        for path in arguments.measured
        if (beside := path.with_suffix(".md")).is_file()
    ]
    page = "\n".join([*lines, *notes]).rstrip() + "\n"
    print(page)
    if arguments.write:
        print(f"wrote {write_page(page, name, records[-1]['about'])}")


def write_page(page, name, about):
    """Into benchmarks/results, under its day and its kind of machine."""
    kind = "cpu" if about["machine"] == CPU_ONLY else "gpu"
    path = RESULTS / f"{about['date'][:10]}-{name}-{kind}.md"
    path.write_text(page, encoding="utf-8")
    return path.relative_to(ROOT)
