"""Predicted against measured: what today's planner says of points that were measured on a GPU.

    python benchmarks/planner/report.py points.jsonl [--half fitted] [--write]

Predictions are made here and now, from the job, the catalogue's GPU and a trace on CPU. "After
bench" adds a calibration: the device as measured and the same setting's steps at its other
micro-batches, never the point itself. `--half fitted` is what one looks at while fitting.
"""

import argparse
import json
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

from points import Setting, find_settings
from traces import read_trace

from phalanx.codec import from_json
from phalanx.machine import parse_machine
from phalanx.machine.calibration import Calibration, MeasuredStep
from phalanx.planner.memory.budget import PROCESS_SPREAD
from phalanx.planner.solve import solve_plan
from phalanx.planner.time.bench_points import job_key

RESULT = Path(__file__).parents[1] / "results" / "2026-11-15-planner-gpu.md"
GPU = "H200"
HALVES = ("fitted", "untouched", "fresh")

# figure, what is asked of it where nothing was fitted: median, worst
FIGURES = {
    "allocated": ("allocated peak", 0.03, 0.10),
    "process": ("process peak", 0.08, None),
    "catalogue": ("step time, catalogue alone", 0.25, None),
    "after": ("step time, after bench", 0.08, None),
}


@dataclass
class Point:
    """One setting at one micro-batch: (predicted, measured) of each figure; None: not known."""

    setting: Setting
    micro_batch: int
    step: MeasuredStep | None
    allocated: tuple[float | None, float | None] = (None, None)
    process: tuple[float | None, float | None] = (None, None)
    catalogue: tuple[float | None, float | None] = (None, None)
    after: tuple[float | None, float | None] = (None, None)
    is_said_to_fit: bool = True

    def error(self, figure):
        predicted, measured = getattr(self, figure)
        return predicted / measured - 1 if predicted is not None and measured else None


def read_measured(path):
    """(machine, {setting's name: record}); a later line replaces an earlier one. A setting has the
    calibration of its own run: `device`."""
    machine, calibration, settings = {}, None, {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["kind"] == "machine":
            machine = record
        elif record["kind"] == "device" and "calibration" in record:
            calibration = replace(from_json(Calibration, record["calibration"]), steps=())
        elif record["kind"] == "setting" and (
            "error" not in record or record["name"] not in settings
        ):
            settings[record["name"]] = record | {"device": calibration}
    return machine, settings


def predict(setting, record, machine):
    """Every point of a setting with its predictions."""
    trace = read_trace(setting)
    # Records from before there was a choice are of the plain layout, and without graphs.
    rungs = {rung: record.get(rung, "off") for rung in ("channels_last", "cuda_graph")}
    asked = {"options": trace.options, **rungs}
    measured = [
        (point["micro_batch"], from_json(MeasuredStep, point["step"]) if point["step"] else None)
        for point in record.get("points", ())
    ]
    for micro_batch, step in measured:
        job = setting.job(micro_batch).model_copy(update=asked)
        plan, _ = solve_plan(job, machine, trace)
        held = plan.predicted.process_bytes.value or plan.predicted.memory_bytes.value or 0
        fits = (
            plan.devices.device_bytes is None
            or held * (1 + PROCESS_SPREAD) <= plan.devices.device_bytes
        )
        if step is None:
            yield Point(setting, micro_batch, None, is_said_to_fit=fits)
            continue
        # Measured steps carry the key of the code that measured them, which may have changed since.
        others = tuple(
            replace(other, job_key=job_key(plan))
            for size, other in measured
            if size != micro_batch and other is not None
        )
        after = None
        # `bench` tells device and host apart; a run that left the profiler out does not.
        if record["device"] is not None and others and record.get("is_split", True):
            known = replace(record["device"], steps=others)
            after = solve_plan(job, machine, trace, calibration=known)[0].predicted.step_s.value
        yield Point(
            setting,
            micro_batch,
            step,
            allocated=(plan.predicted.memory_bytes.value, step.allocated_bytes),
            process=(plan.predicted.process_bytes.value, step.process_bytes),
            catalogue=(plan.predicted.step_s.value, step.step_s),
            after=(after, step.step_s),
            is_said_to_fit=fits,
        )


def percent(error):
    return f"{100 * error:+.1f} %" if error is not None else "-"


def gib(size):
    return f"{size / 2**30:.2f}" if size is not None else "-"


def ms(seconds):
    return f"{1000 * seconds:.1f}" if seconds is not None else "-"


def rows(points):
    yield (
        "| half | model | settings | micro-batch | allocated GiB: predicted | measured | error "
        "| process GiB: predicted | measured | error | step ms: catalogue | after bench | measured "
        "| of it device | error, catalogue | error, after bench |"
    )
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for point in points:
        setting, step = point.setting, point.step
        head = [point.setting.half, setting.model, _way(setting), str(point.micro_batch)]
        if step is None:
            cells = [*head, *["-"] * 11, "ran out of memory"]
        else:
            cells = [
                *head,
                *map(gib, point.allocated),
                percent(point.error("allocated")),
                *map(gib, point.process),
                percent(point.error("process")),
                ms(point.catalogue[0]),
                ms(point.after[0]),
                ms(step.step_s),
                ms(step.compute_s),
                percent(point.error("catalogue")),
                percent(point.error("after")),
            ]
        yield f"| {' | '.join(cells)} |"


def _way(setting):
    """The settings without the names of their keys."""
    words = setting.settings.replace("activation_checkpointing=on", "checkpointing")
    words = (
        words.replace("compile=on", "compiled")
        .replace("cuda_graph=on", "graph")
        .replace("precision=", "")
        .replace("optimizer.name=", "")
    )
    return " ".join([*(f"{k}={v}" for k, v in setting.options.items()), words])


def summary(points):
    """Median and worst of each half, beside what is asked where nothing was fitted."""
    yield "| figure | half | points | median error | worst | asked: median | worst |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for figure, (name, median, worst) in FIGURES.items():
        for half in HALVES:
            errors = [p.error(figure) for p in points if p.setting.half == half]
            sizes = [abs(error) for error in errors if error is not None]
            if not sizes and half not in {p.setting.half for p in points}:
                continue
            found = (statistics.median(sizes), max(sizes)) if sizes else (None, None)
            shown = [f"{100 * value:.1f} %" if value is not None else "-" for value in found]
            asked = [
                f"{100 * value:.0f} %" if value is not None else "" for value in (median, worst)
            ]
            asked = ["", ""] if half == "fitted" else asked
            yield f"| {name} | {half} | {len(sizes)} | {' | '.join([*shown, *asked])} |"


def out_of_memory(points):
    ran_out = [p for p in points if p.step is None]
    wrong = [f"{p.setting.name} at {p.micro_batch}" for p in ran_out if p.is_said_to_fit]
    return (
        f"{len(ran_out)} points ran out of memory, {len(wrong)} of them were said to fit"
        + (f": {', '.join(wrong)}" if wrong else "")
        + "."
    )


def waited(points):
    """A step that waits for its samples says nothing about the prediction of its computing."""
    late = [p for p in points if p.step is not None and p.step.data_s > 0.05 * p.step.step_s]
    names = ", ".join(f"{p.setting.name} at {p.micro_batch}" for p in late)
    return f"{len(late)} points waited for data for over 5 % of a step{': ' * bool(late)}{names}."


def worst(points, count):
    for figure, (name, *_) in FIGURES.items():
        known = [p for p in points if p.error(figure) is not None]
        known.sort(key=lambda p: -abs(p.error(figure)))
        if known:
            yield f"worst of {name}:"
        for point in known[:count]:
            error = percent(point.error(figure))
            yield f"  {error:>9} {point.setting.name} at {point.micro_batch}"


def _notes(measured):
    """What a person has to say about these measurements lies beside them."""
    path = measured.with_suffix(".md")
    return [*path.read_text(encoding="utf-8").splitlines(), ""] if path.is_file() else []


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measured", type=Path, help="JSON lines of measure.py")
    parser.add_argument("--half", choices=HALVES, help="only this half")
    parser.add_argument("--only", action="append", default=[], help="part of a setting's name")
    parser.add_argument("--worst", type=int, default=0, help="also print so many of the worst")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    arguments = parser.parse_args()
    where, records = read_measured(arguments.measured)
    machine = parse_machine(GPU)
    points, failed = [], []
    for setting in find_settings(arguments.only):
        record = records.get(setting.name)
        if record is None or arguments.half not in (None, setting.half):
            continue
        if "error" in record:
            failed.append(f"{setting.name}: {record['error'][:300]}")
        points += predict(setting, record, machine)
    models = {point.setting.model for point in points}
    about = ", ".join(f"{k} {v}" for k, v in where.items() if k not in ("kind", "date", "commit"))
    lines = [
        "# Predicted against measured, on one GPU",
        "",
        f"- date: {where.get('date')}",
        f"- machine and versions: {about}",
        f"- measured: benchmarks/planner/measured/{arguments.measured.name}",
        "- commands: python benchmarks/planner/measure.py --out points.jsonl; "
        f"python benchmarks/planner/report.py {arguments.measured.name} --write",
        f"- {len(points)} points of {len(models)} models. The models, their halves and points were "
        "chosen before anything was fitted; constants were fitted to the fitted half only. Those "
        "of `fresh` were added later, they and their points frozen before they were measured.",
        "",
        *summary(points),
        "",
        out_of_memory(points),
        waited(points),
        "",
        *_notes(arguments.measured),
        *rows(points),
    ]
    if failed:
        lines += ["", "Settings that failed:", "", *(f"- {line}" for line in failed)]
    print("\n".join([*lines, *worst(points, arguments.worst)]))
    if arguments.write:
        RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
