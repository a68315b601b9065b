"""Tables of what run_gpu.py measured, set beside what was asked for; a chart of them for the docs.

    python benchmarks/peers/report.py peers.jsonl [more.jsonl ...] [--write] [--chart]

A later line of a contestant replaces an earlier one; notes that lie beside a file are added.
`--write` puts the tables into benchmarks/results/, `--chart` writes docs/guide/speed.svg.
"""

import argparse
import json
from pathlib import Path

from chart import draw_chart

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
CHART = ROOT / "docs" / "guide" / "speed.svg"

LABELS = {
    "phalanx": "**Phalanx**, no flags",
    "phalanx-drafted": "Phalanx, JPEGs decoded at reduced size",
    "plain": "plain loop, eager",
    "plain-compiled": "plain loop, compiled and tuned",
    "plain-graphs": "plain loop, compiled, per-module CUDA graphs",
    "whole-step-graph": "whole-step CUDA graph, compiled, batched feed",
    "plain-photos-compiled": "plain loop, compiled and tuned, from the folder",
    "compute-limit": "compute limit: compiled and tuned, data on the device",
    "decode-limit": "decode limit: every core decodes, nobody computes",
    "decode-limit-drafted": "decode limit at reduced size",
    "hf-trainer": "HF Trainer",
    "accelerate": "Accelerate",
    "lightning": "Lightning",
    "hf-trainer-compiled": "HF Trainer, torch_compile=True",
    "accelerate-compiled": 'Accelerate, dynamo_backend="inductor"',
    "lightning-compiled": "Lightning, its model compiled",
}
STARTS = {
    "phalanx": "Phalanx, first start",
    "phalanx-second-start": "Phalanx, second start",
    "phalanx-first-step": "Phalanx, second start, logging.every=1",
    "plain": "plain loop, eager",
}
TITLES = {
    "gpt2": "GPT-2 124M, batch 16 x 1024 tokens",
    "policy": "6M-parameter diffusion policy (8 layers, width 256, 16 actions), batch 64",
    "resnet": "ResNet-50, 224 px, batch 256, from a folder of JPEGs",
}
LIMITS = {
    "gpt2": ("plain-compiled",),
    "policy": ("whole-step-graph",),
    "resnet": ("compute-limit", "decode-limit"),
}
STOCK = ("hf-trainer", "accelerate", "lightning")
PEERS = (*STOCK, *(f"{name}-compiled" for name in STOCK))

# work: part of the limit, times the best of these
ASKED = {
    "gpt2": (0.97, 2.5, STOCK, "the best stock peer"),
    "policy": (0.95, 10.0, STOCK, "the best stock peer"),
    "resnet": (0.95, 1.0, PEERS, "the best peer, compiled or not"),
}
START_AT_MOST = 1.3


def read_records(paths):
    """{work: {contestant: record}}; one that was left out does not replace a figure."""
    found = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            works = found.setdefault(record["work"], {})
            if not record.get("left_out") or record["contestant"] not in works:
                works[record["contestant"]] = record
    return found


def rate_of(records, name):
    return records.get(name, {}).get("samples_per_s")


def limit_of(work, records):
    """Samples per second that nothing can exceed; None when one of them was not measured."""
    rates = [rate_of(records, name) for name in LIMITS[work]]
    return min(rates) if all(rates) else None


def best_of(records, names):
    return max((rate for name in names if (rate := rate_of(records, name))), default=None)


def speed_table(work, records):
    limit = limit_of(work, records)
    yield f"## {TITLES[work]}"
    yield ""
    yield "| what | samples/s | slowest to quickest window | of the limit | start to step 10 |"
    yield "|---|--:|--:|--:|--:|"
    measured = [name for name in LABELS if rate_of(records, name)]
    for name in sorted(measured, key=lambda name: -rate_of(records, name)):
        record = records[name]
        share = f"{record['samples_per_s'] / limit:.2f}" if limit else ""
        spread = f"{record['slowest']:,.0f} to {record['quickest']:,.0f}"
        _, tenth = start_times(record)
        start = f"{tenth:.1f} s" if tenth else ""
        rate = f"{record['samples_per_s']:,.0f}"
        yield f"| {LABELS[name]} | {rate} | {spread} | {share} | {start} |"
    yield ""
    yield from judge_speed(work, records, limit)
    yield from what_is_missing(records)


def judge_speed(work, records, limit):
    """What was asked for, what was reached."""
    ours = rate_of(records, "phalanx")
    if ours is None:
        yield "Phalanx was not measured."
        return
    of_limit, times, names, whose = ASKED[work]
    if limit:
        judged = verdict(ours / limit, of_limit)
        yield f"- of the limit: {ours / limit:.3f}, asked at least {of_limit}: {judged}"
    if best := best_of(records, names):
        judged = verdict(ours / best, times)
        yield f"- times {whose}: {ours / best:.2f}, asked at least {times}: {judged}"


def verdict(reached, asked):
    return "reached" if reached >= asked else "**not reached**"


def what_is_missing(records):
    for name, record in records.items():
        if record.get("left_out"):
            yield f"- not measured, for want of time: {LABELS.get(name, name)}"
        elif "error" in record:
            last = record["error"].strip().splitlines()[-1][:200]
            yield f"- failed: {LABELS.get(name, name)}: `{last}`"
    yield ""


def start_table(found):
    """From the command to the first steps, caches of compiled code kept between the starts."""
    yield "## Time to the first step"
    yield ""
    yield "| work | what | to step 1 | to step 10 | of the plain eager start |"
    yield "|---|---|--:|--:|--:|"
    reached = []
    for work, records in found.items():
        plain = records.get("plain", {})
        if "tenth_step_s" not in plain:
            continue
        for name, label in STARTS.items():
            first, tenth = start_times(records.get(name, {}))
            at, beside = (tenth, plain["tenth_step_s"]) if tenth else (first, plain["first_step_s"])
            if at is None:
                continue
            cells = [f"{seconds:.1f} s" if seconds else "" for seconds in (first, tenth)]
            yield f"| {work} | {label} | {' | '.join(cells)} | {at / beside:.2f} |"
            if name == "phalanx-second-start":
                reached.append((work, at / beside))
    yield ""
    for work, ratio in reached:
        judged = "reached" if ratio <= START_AT_MOST else "**not reached**"
        yield f"- second start, {work}: {ratio:.2f}, asked at most {START_AT_MOST}: {judged}"
    yield ""


def start_times(record):
    """Seconds to step 1 and to step 10, as far as known."""
    if "first_event_s" in record:
        step, at = record["first_event_step"], record["first_event_s"]
        return (at, None) if step == 1 else (None, at)
    return record.get("first_step_s"), record.get("tenth_step_s")


def make_report(found):
    """The whole result file."""
    records = [record for works in found.values() for record in works.values()]
    about = records[-1]["about"]
    versions = {}
    for record in records:
        versions |= record.get("versions", {})
    commands = list(dict.fromkeys(record["about"]["command"] for record in records))
    lines = [
        "# Phalanx beside its peers, one after the other on one GPU",
        "",
        f"- date: {about['date']}",
        f"- machine: {about['machine']}, {about['cores']} CPU cores",
        f"- versions: python {about['python']}, "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + f"; phalanx at {about['commit']}",
        *(f"- command: {command}" for command in commands),
        "",
        "bf16 autocast, AdamW, clipping and a schedule for all. Samples over time after settling;",
        "Phalanx's from the step events of the command named in each record, stopped by Ctrl-C.",
        "",
    ]
    for work in TITLES:
        if work in found:
            lines += speed_table(work, found[work])
    return [*lines, *start_table(found)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measured", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="write to benchmarks/results")
    parser.add_argument("--chart", action="store_true", help="write docs/guide/speed.svg")
    arguments = parser.parse_args()
    found = read_records(arguments.measured)
    lines = [*make_report(found), *notes(arguments.measured)]
    print("\n".join(lines))
    about = next(record["about"] for works in found.values() for record in works.values())
    if arguments.write:
        kind = "cpu" if about["machine"].startswith("CPU") else "gpu"
        path = RESULTS / f"{about['date'][:10]}-peers-{kind}.md"
        path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    if arguments.chart:
        CHART.write_text(draw_chart(panels(found), source=source_of(about)), encoding="utf-8")


def notes(paths):
    """What a person has to say about these measurements lies beside them."""
    for path in paths:
        if (beside := path.with_suffix(".md")).is_file():
            yield from beside.read_text(encoding="utf-8").splitlines()


def source_of(about):
    return f"{about['machine']}, torch {about['torch']}, {about['date'][:10]}"


def panels(found):
    """(title, [(label, samples/s, kind)]) of each work: what people use, Phalanx, the limit."""
    for work, title in TITLES.items():
        records = found.get(work, {})
        if rate_of(records, "phalanx") is None:
            continue
        shown = [(name, "peer") for name in (*STOCK, "plain")]
        shown += [(name, "peer") for name in PEERS[len(STOCK) :]]
        shown += [("phalanx", "phalanx"), *((name, "limit") for name in LIMITS[work])]
        bars = [
            (LABELS[name].replace("**", "").partition(":")[0], rate_of(records, name), kind)
            for name, kind in shown
            if rate_of(records, name)
        ]
        yield title, bars


if __name__ == "__main__":
    main()
