"""Tables of what run_gpu.py, learning.py and rates.py measured, set beside what was asked for.

    python benchmarks/detection/report.py detection.jsonl learning.jsonl rates.jsonl [--write]

A later line of a contestant replaces an earlier one. `--write` puts the tables into
benchmarks/results/.
"""

import math
import statistics
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
    "phalanx-compiled": "Phalanx, `compile=on`",
    "ultralytics": "Ultralytics' trainer",
    "ultralytics-free": "Ultralytics' trainer, deterministic=False",
    "ultralytics-compiled": "Ultralytics' trainer, compile=True",
    "compute": "compute alone: Ultralytics' model and loss, eager",
    "loading": "loading alone: Phalanx's data, 16 processes",
}
TIMES = 1.3  # of Ultralytics' images a second at a batch of 64
NO_WORSE = 0.02  # mAP50-95 that Phalanx may be behind
PRESET_RATE, PRESET_BATCH = 0.001, 16  # preset large_batch, with the square root of the batch
# Student's t for 95 %, two-sided, by degrees of freedom.
T95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def speed_tables(records):
    """One table for each batch."""
    for batch, found in sorted(by_contestant(records, work="batch").items()):
        title = f"yolo11n, 640 pixels, batch {batch}"
        yield from speed_table(title, found, LABELS, unit="images/s", columns=(PEAK_MEMORY,))
        ours = rate_of(found, "phalanx")
        for name in ("ultralytics", "ultralytics-free", "ultralytics-compiled"):
            asked = TIMES if batch == 64 and name == "ultralytics" else None
            yield from times(LABELS[name], ours, rate_of(found, name), asked=asked)
        yield from what_is_missing(found, LABELS)


def learning_table(records):
    """mAP of each contestant over the seeds, and the difference with its interval."""
    found = {}
    for record in records:
        found.setdefault(record["contestant"], {})[record["seed"]] = record
    work = records[-1]["work"]
    yield (
        f"## What is learned: {work['images']} generated images of {work['size']} pixels, "
        f"{work['epochs']} epochs, batch {work['batch']}"
    )
    yield ""
    yield "| what | seeds | mAP50-95 | mAP50 |"
    yield "|---|--:|--:|--:|"
    names = {"phalanx-1": "Phalanx, 1 rank", "phalanx-2": "Phalanx, 2 ranks",
             "ultralytics": "Ultralytics' trainer"}  # fmt: skip
    for name, label in names.items():
        if name in found:
            row = [_spread([r[key] for r in found[name].values()]) for key in ("mAP50-95", "mAP50")]
            yield f"| {label} | {len(found[name])} | {' | '.join(row)} |"
    yield ""
    for name in ("phalanx-1", "phalanx-2"):
        if name in found and "ultralytics" in found:
            yield from judge_learning(names[name], found[name], found["ultralytics"])
    if "phalanx-2" in found and records[-1].get("about", {}).get("machine") != "CPU only":
        yield "- the two ranks of a training shared the GPU, with gloo"
    yield ""
    seeds = sorted({record["seed"] for record in records})
    yield f"| mAP50-95 of seed | {' | '.join(map(str, seeds))} |"
    yield "|---|" + "--:|" * len(seeds)
    for name, label in names.items():
        if name in found:
            known = (found[name].get(seed) for seed in seeds)
            cells = (f"{record['mAP50-95']:.3f}" if record else "" for record in known)
            yield f"| {label} | {' | '.join(cells)} |"
    yield ""
    yield from losses_table(names, found)


def losses_table(names, found):
    """Training losses, mean of the seeds, at some epochs."""
    kept = {
        name: [record["losses"] for record in seeds.values() if "losses" in record]
        for name, seeds in found.items()
    }
    shown = [name for name in names if kept.get(name)]
    if not shown:
        return
    last = min(len(losses) for name in shown for losses in kept[name])
    yield f"| box, cls and dfl of epoch | {' | '.join(names[name] for name in shown)} |"
    yield "|---|" + "--:|" * len(shown)
    for epoch in sorted({1, 5, last // 4, last // 2, 3 * last // 4, last} - {0}):
        if epoch > last:
            continue
        cells = []
        for name in shown:
            parts = zip(*(losses[epoch - 1] for losses in kept[name]), strict=True)
            cells.append(", ".join(f"{statistics.mean(part):.3f}" for part in parts))
        yield f"| {epoch} | {' | '.join(cells)} |"
    yield ""


def rates_table(records):
    """mAP for each rate of AdamW, at each batch, and what that says about the preset's rate."""
    found = {}
    for record in records:
        rates = found.setdefault(record["batch"], {})
        rates.setdefault(record["rate"], {})[record["seed"]] = record
    work = records[-1]["work"]
    yield (
        f"## AdamW's rate: preset `large_batch`, yolo11n, {work['images']:,} generated images of "
        f"{work['size']} pixels, {work['epochs']} epochs"
    )
    yield ""
    for batch, rates in sorted(found.items()):
        yield f"| rate at a batch of {batch} | seeds | mAP50-95 | mAP50 |"
        yield "|---|--:|--:|--:|"
        for rate, seeds in sorted(rates.items()):
            row = [_spread([r[key] for r in seeds.values()]) for key in ("mAP50-95", "mAP50")]
            yield f"| {rate:g} | {len(seeds)} | {' | '.join(row)} |"
        yield ""
        means = {
            rate: statistics.mean([r["mAP50-95"] for r in seeds.values()])
            for rate, seeds in rates.items()
        }
        best = max(means, key=means.get)
        own = PRESET_RATE * math.sqrt(batch / PRESET_BATCH)
        said = f"- best at a batch of {batch}: {best:g}, mAP50-95 {means[best]:.3f}"
        near = next((rate for rate in means if math.isclose(rate, own, rel_tol=1e-6)), None)
        if near is not None:
            said += f"; the preset's {own:g}: {means[near]:.3f}"
        yield said
        yield ""


def unique(values):
    """Each once, in their order; they may be dicts."""
    found = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _spread(values):
    deviation = f" +- {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation}"


def judge_learning(label, ours, theirs):
    """Welch's interval of the difference of the means."""
    one, other = ([r["mAP50-95"] for r in found.values()] for found in (ours, theirs))
    difference = statistics.mean(one) - statistics.mean(other)
    if min(len(one), len(other)) < 2:
        yield f"- {label} less Ultralytics: {difference:+.3f} mAP50-95; one seed has no interval"
        return
    parts = [statistics.variance(v) / len(v) for v in (one, other)]
    free = sum(parts) ** 2 / max(
        sum(p**2 / (len(v) - 1) for p, v in zip(parts, (one, other), strict=True)), 1e-18
    )
    half = T95[max(1, min(9, math.floor(free)))] * math.sqrt(sum(parts))
    if difference - half >= -NO_WORSE:
        judged = "shown"
    elif difference >= -NO_WORSE:
        judged = "the mean is, the interval is too wide to show it"
    else:
        judged = "**not reached**"
    yield (
        f"- {label} less Ultralytics: {difference:+.3f} mAP50-95, 95% interval "
        f"{difference - half:+.3f} to {difference + half:+.3f}; asked no worse than -{NO_WORSE}: "
        f"{judged}"
    )


def make_report(records):
    """The page, and the name of its file."""
    failed = [record for record in records if "error" in record and "seed" in record]
    rated = [record for record in records if "mAP50-95" in record and "rate" in record]
    learned = [record for record in records if "mAP50-95" in record and "rate" not in record]
    speeds = [record for record in records if "batch" in record and "seed" not in record]
    lines = heading("Detection beside Ultralytics' own trainer", records)
    if speeds:
        lines += speed_tables(speeds)
    for work in unique(record["work"] for record in learned):
        lines += learning_table([record for record in learned if record["work"] == work])
    if rated:
        lines += rates_table(rated)
    for record in failed:
        error = " ".join(record["error"].split())[-300:]
        lines.append(f"- {record['contestant']}, seed {record['seed']} failed: {error}")
    return lines, "detection" if speeds else "detection-learning" if learned else "detection-rates"


def main():
    arguments = report_parser(__doc__).parse_args()
    records = read_records(arguments.measured)
    lines, name = make_report(records)
    show_page(lines, name, records, arguments)


if __name__ == "__main__":
    main()
