"""Tables of what run_gpu.py measured, set beside what was asked for; a chart of them for the docs.

    python benchmarks/peers/report.py peers.jsonl [more.jsonl ...] [--write] [--chart]

A later line of a contestant replaces an earlier one; notes that lie beside a file are added.
`--write` puts the tables into benchmarks/results/, `--chart` writes docs/guide/speed.svg.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from chart import draw_chart
from origin import ROOT
from records import by_contestant, read_records
from tables import (
    START,
    heading,
    rate_of,
    report_parser,
    show_page,
    speed_table,
    start_times,
    times,
    verdict,
    what_is_missing,
)

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


def limit_of(work, records):
    """Samples per second that nothing can exceed; None when one of them was not measured."""
    rates = [rate_of(records, name) for name in LIMITS[work]]
    return min(rates) if all(rates) else None


def best_of(records, names):
    return max((rate for name in names if (rate := rate_of(records, name))), default=None)


def work_tables(work, records):
    limit = limit_of(work, records)
    of_limit = ("of the limit", lambda r: f"{r['samples_per_s'] / limit:.2f}" if limit else "")
    yield from speed_table(TITLES[work], records, LABELS, columns=(of_limit, START))
    yield from judge_speed(work, records, limit)
    yield from what_is_missing(records, LABELS)


def judge_speed(work, records, limit):
    """What was asked for, what was reached."""
    ours = rate_of(records, "phalanx")
    if ours is None:
        yield "Phalanx was not measured."
        return
    of_limit, asked, names, whose = ASKED[work]
    if limit:
        judged = verdict(ours / limit >= of_limit)
        yield f"- of the limit: {ours / limit:.3f}, asked at least {of_limit}: {judged}"
    yield from times(whose, ours, best_of(records, names), asked=asked)


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
        judged = verdict(ratio <= START_AT_MOST)
        yield f"- second start, {work}: {ratio:.2f}, asked at most {START_AT_MOST}: {judged}"
    yield ""


def make_report(records):
    """The whole result file."""
    found = by_contestant(records)
    lines = [
        *heading("Phalanx beside its peers, one after the other on one GPU", records),
        "bf16 autocast, AdamW, clipping and a schedule for all. Samples over time after settling;",
        "Phalanx's from the step events of the command named in each record, stopped by Ctrl-C.",
        "",
    ]
    for work in TITLES:
        if work in found:
            lines += work_tables(work, found[work])
    return [*lines, *start_table(found)]


def main():
    parser = report_parser(__doc__)
    parser.add_argument("--chart", action="store_true", help="write docs/guide/speed.svg")
    arguments = parser.parse_args()
    records = read_records(arguments.measured)
    show_page(make_report(records), "peers", records, arguments)
    if arguments.chart:
        source = source_of(records[-1]["about"])
        CHART.write_text(
            draw_chart(panels(by_contestant(records)), source=source), encoding="utf-8"
        )


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
