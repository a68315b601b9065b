"""Tables of what speed.py measured, set beside what was asked for.

    python benchmarks/lora/report.py lora.jsonl [more.jsonl ...] [--write]

A later line of a contestant replaces an earlier one; notes that lie beside a file are added.
`--write` puts the tables into benchmarks/results/.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from models import SIZES
from records import by_contestant, read_records
from tables import (
    GIB,
    PEAK_MEMORY,
    START,
    heading,
    rate_of,
    report_parser,
    show_page,
    speed_table,
    times,
    verdict,
    what_is_missing,
)

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


def table_of(work, records):
    yield from speed_table(
        SIZES[work].title,
        records,
        LABELS,
        unit="tokens/s",
        per_sample=SIZES[work].length,
        columns=(PEAK_MEMORY, START),
    )
    yield from judge(work, records)
    yield from what_is_missing(records, LABELS)


def judge(work, records):
    """Each figure that was asked for, and whether it is reached."""
    ours = records.get("phalanx", {})
    if "samples_per_s" not in ours:
        yield "- Phalanx was not measured."
        return
    for asked, name in ASKED.get(work, ()):
        rate = rate_of(records, name)
        yield from times(LABELS[name], ours["samples_per_s"], rate, asked=asked)
    if rate := rate_of(records, "hf-trainer-compiled"):
        reached = ours["samples_per_s"] / rate
        judged = verdict(reached > 1)
        yield f"- times {LABELS['hf-trainer-compiled']}: {reached:.2f}, asked above 1: {judged}"
    is_checkpointed = ours.get("plan", {}).get("activation_checkpointing", "").startswith("True")
    peer = "hf-trainer-checkpointed" if is_checkpointed else "hf-trainer"
    if theirs := records.get(peer, {}).get("memory_bytes"):
        share = ours["memory_bytes"] / theirs
        judged = verdict(share <= 1)
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
    judged = verdict(abs(error) <= PREDICTED_WITHIN)
    yield (
        f"- predicted memory: {predicted / GIB:.2f} GiB, {100 * error:+.1f} % of the peak, asked "
        f"within {100 * PREDICTED_WITHIN:.0f} %: {judged}"
    )


def make_report(records):
    """The whole result file."""
    found = by_contestant(records)
    ours = dict.fromkeys(f"- Phalanx: `{r['command']}`" for r in records if "command" in r)
    title = "LoRA: Phalanx beside HF Trainer + peft, one after the other on one GPU"
    lines = [
        *heading(title, records)[:-1],
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
    arguments = report_parser(__doc__).parse_args()
    records = read_records(arguments.measured)
    show_page(make_report(records), "lora", records, arguments)


if __name__ == "__main__":
    main()
