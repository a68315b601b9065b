"""Tables of what run_gpu.py measured, set beside what was asked for.

    python benchmarks/policy/report.py policy.jsonl [--write]

A later line of a contestant replaces an earlier one. `--write` puts the tables into
benchmarks/results/.
"""

import argparse
import json
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"
LABELS = {
    "phalanx": "**Phalanx**, no flags",
    "phalanx-eager": "Phalanx, `--fast off`",
    "accelerate": "Accelerate",
    "accelerate-compiled": "Accelerate, its switch for torch.compile",
}
ASKED = {"6m": 8.0, "170m": 1.0}  # times stock Accelerate's samples a second
GIB = 2**30


def tables(records):
    """One table for each size."""
    works = {}
    for record in records:
        works.setdefault(record["work"], {})[record["contestant"]] = record
    for work, found in works.items():
        batch = next(iter(found.values()))["batch"]
        yield f"## {work.upper()}, batch {batch}"
        yield ""
        yield "| what | samples/s | slowest to quickest window | peak memory |"
        yield "|---|--:|--:|--:|"
        measured = {name: r for name, r in found.items() if "samples_per_s" in r}
        for name, record in sorted(measured.items(), key=lambda pair: -pair[1]["samples_per_s"]):
            memory = record.get("memory_bytes")
            spread = f"{record['slowest']:,.0f} to {record['quickest']:,.0f}"
            told = f"{memory / GIB:.2f} GiB" if memory else ""
            yield f"| {LABELS[name]} | {record['samples_per_s']:,.0f} | {spread} | {told} |"
        yield ""
        yield from judged(work, measured)
        for name, record in found.items():
            if "error" in record:
                yield f"- {LABELS[name]} failed: {' '.join(record['error'].split())[-300:]}"
        yield ""


def judged(work, measured):
    ours = measured.get("phalanx", {}).get("samples_per_s")
    for name in ("accelerate", "accelerate-compiled"):
        theirs = measured.get(name, {}).get("samples_per_s")
        if not ours or not theirs:
            continue
        asked = ""
        if name == "accelerate":
            is_reached = ours / theirs >= ASKED[work]
            asked = f", asked at least {ASKED[work]:g}: "
            asked += "reached" if is_reached else "**not reached**"
        yield f"- times {LABELS[name]}: {ours / theirs:.2f}{asked}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    lines = [line for file in arguments.files for line in file.read_text().splitlines()]
    records = [json.loads(line) for line in lines]
    about = records[-1]["about"]
    text = ["# The policy recipe beside stock Accelerate", ""]
    text += [f"- {key}: {value}" for key, value in about.items()]
    text += ["", *tables(records)]
    page = "\n".join(text).rstrip() + "\n"
    print(page)
    if arguments.write:
        kind = "cpu" if about["machine"] == "CPU only" else "gpu"
        path = RESULTS / f"{about['date'][:10]}-policy-{kind}.md"
        path.write_text(page)
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
