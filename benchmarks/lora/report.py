"""Tables of what speed.py measured, set beside what was asked for.

    python benchmarks/lora/report.py lora.jsonl [more.jsonl ...] [--write]

A later line of a contestant replaces an earlier one; notes that lie beside a file are added.
`--write` puts the tables into benchmarks/results/.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))

from models import SIZES
from report import RESULTS, notes, read_records, verdict

LABELS = {
    "phalanx": "**Phalanx**, no flags",
    "hf-trainer": "HF Trainer + peft",
    "hf-trainer-checkpointed": "HF Trainer + peft, gradient checkpointing",
    "hf-trainer-compiled": "HF Trainer + peft, torch_compile=True",
}
# size: (times, which stock peer). The figure for 1B was asked beside HF Trainer with
# checkpointing; the one without is judged by it too.
ASKED = {
    "135m": ((3.0, "hf-trainer"),),
    "1b": ((1.6, "hf-trainer-checkpointed"), (1.6, "hf-trainer")),
}
PREDICTED_WITHIN = 0.05
GIB = 2**30


def table_of(work, records):
    yield f"## {SIZES[work].title}"
    yield ""
    yield "| what | tokens/s | slowest to quickest window | peak memory | start to step 10 |"
    yield "|---|--:|--:|--:|--:|"
    measured = [name for name in LABELS if "tokens_per_s" in records.get(name, {})]
    length = SIZES[work].length
    for name in sorted(measured, key=lambda name: -records[name]["tokens_per_s"]):
        record = records[name]
        spread = f"{record['slowest'] * length:,.0f} to {record['quickest'] * length:,.0f}"
        memory = f"{record['memory_bytes'] / GIB:.2f} GiB" if "memory_bytes" in record else ""
        tenth = record.get("tenth_step_s") or record.get("first_event_s")
        start = f"{tenth:.1f} s" if tenth else ""
        row = [LABELS[name], f"{record['tokens_per_s']:,.0f}", spread, memory, start]
        yield f"| {' | '.join(row)} |"
    yield ""
    yield from judge(work, records)
    yield from what_is_missing(records)
    yield ""


def judge(work, records):
    """Each figure that was asked for, and whether it is reached."""
    ours = records.get("phalanx", {})
    if "tokens_per_s" not in ours:
        yield "- Phalanx was not measured."
        return
    for times, name in ASKED.get(work, ()):
        if rate := records.get(name, {}).get("tokens_per_s"):
            reached = ours["tokens_per_s"] / rate
            judged = verdict(reached, times)
            yield f"- times {LABELS[name]}: {reached:.2f}, asked at least {times}: {judged}"
    if rate := records.get("hf-trainer-compiled", {}).get("tokens_per_s"):
        reached = ours["tokens_per_s"] / rate
        judged = "reached" if reached > 1 else "**not reached**"
        yield f"- times {LABELS['hf-trainer-compiled']}: {reached:.2f}, asked above 1: {judged}"
    is_checkpointed = ours.get("plan", {}).get("activation_checkpointing", "").startswith("True")
    peer = "hf-trainer-checkpointed" if is_checkpointed else "hf-trainer"
    if theirs := records.get(peer, {}).get("memory_bytes"):
        share = ours["memory_bytes"] / theirs
        judged = "reached" if share <= 1 else "**not reached**"
        yield (
            f"- peak memory beside {LABELS[peer]}, equal checkpointing: {share:.2f} of it, asked "
            f"at most 1: {judged}"
        )
    predicted = ours.get("predicted_bytes")
    if predicted and not ours["about"]["machine"].startswith("CPU"):  # there, all of a process
        yield from judge_prediction(predicted, ours)


def judge_prediction(predicted, ours):
    """Beside the peak of the whole run: a CUDA graph's later steps take nothing from torch."""
    error = predicted / ours["memory_bytes"] - 1
    judged = "reached" if abs(error) <= PREDICTED_WITHIN else "**not reached**"
    yield (
        f"- predicted memory: {predicted / GIB:.2f} GiB, {100 * error:+.1f} % of the peak, asked "
        f"within {100 * PREDICTED_WITHIN:.0f} %: {judged}"
    )


def what_is_missing(records):
    for name, record in records.items():
        if record.get("left_out"):
            yield f"- not measured, for want of time: {LABELS[name]}"
        elif record.get("error", "").startswith("over "):
            limit = record["error"].partition(":")[0].removeprefix("over ")
            yield f"- did not get to measure, ended after {limit}: {LABELS[name]}"
        elif "error" in record:
            last = record["error"].strip().splitlines()[-1][:200]
            yield f"- failed: {LABELS[name]}: `{last}`"


def make_report(found):
    """The whole result file."""
    records = [record for works in found.values() for record in works.values()]
    about, versions = records[-1]["about"], {}
    for record in records:
        versions |= record.get("versions", {})
    said = dict.fromkeys(f"- command: {record['about']['command']}" for record in records)
    ours = dict.fromkeys(f"- Phalanx: `{r['command']}`" for r in records if "command" in r)
    lines = [
        "# LoRA: Phalanx beside HF Trainer + peft, one after the other on one GPU",
        "",
        f"- date: {about['date']}",
        f"- machine: {about['machine']}, {about['cores']} CPU cores",
        f"- versions: python {about['python']}, "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + f"; phalanx at {about['commit']}",
        *said,
        *ours,
        "",
        "r=64 on all projections, bf16, AdamW, clipping and a schedule for all; random weights of",
        "the model's shape. Tokens over time after settling; Phalanx's from the step events of its",
        "command, stopped by Ctrl-C. Memory is the peak of what torch's allocator gave out.",
        "",
    ]
    for work in SIZES:
        if work in found:
            lines += table_of(work, found[work])
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measured", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="write to benchmarks/results")
    arguments = parser.parse_args()
    found = read_records(arguments.measured)
    lines = [*make_report(found), *notes(arguments.measured)]
    text = "\n".join(lines).rstrip() + "\n"
    print(text)
    if arguments.write:
        about = next(record["about"] for works in found.values() for record in works.values())
        kind = "cpu" if about["machine"].startswith("CPU") else "gpu"
        path = RESULTS / f"{about['date'][:10]}-lora-{kind}.md"
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
