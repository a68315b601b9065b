"""Measures the points on this GPU, as `phalanx bench` does: step time by part, and memory.

    python benchmarks/planner/measure.py --out points.jsonl [--only NAME] [--budget-s 480]

Every setting runs in a process of its own, forked from this one, which never starts CUDA: what one
setting leaves behind (kernels loaded, cuDNN's plans, a broken context) is not counted for the next.
A line is written as each setting ends; what fails is written with its error, and the run goes on.
"""

import argparse
import json
import multiprocessing
import os
import platform
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from origin import commit_of_tree
from points import find_settings
from traces import read_trace, trace_file

from phalanx.codec import to_json
from phalanx.machine import probe_machine
from phalanx.planner.solve import solve_plan

LONGEST_S = 150  # for one setting: the rest is worth more than one that hangs
GRACE_S = 45  # for the one that runs when time is up


def measure_setting(setting, machine):
    """Runs in the child: every micro-batch of a setting, from small to large."""
    from phalanx.engine.rank.bench import measure_job_here

    job, plan = make_plan(setting, machine)
    measured = measure_job_here(job, plan, setting.micro_batches)
    notes = " ".join(note for point in measured for note in point.notes)
    rungs = {
        rung: "off" if f"{rung} was dropped" in notes else getattr(plan.execution, rung).value
        for rung in ("channels_last", "cuda_graph")
    }
    return {"points": [to_json(point) for point in measured], **rungs}


def make_plan(setting, machine):
    trace = read_trace(setting)
    job = setting.job(setting.micro_batches[0])
    job = job.model_copy(update={"options": trace.options})
    plan, findings = solve_plan(job, machine, trace)
    errors = [finding.what for finding in findings if finding.severity == "error"]
    if errors:
        raise RuntimeError("; ".join(errors))
    return job, plan


def measure_this_device(setting, machine):
    """Runs in the child: what the device does at its best."""
    from phalanx.engine.process.group import join
    from phalanx.engine.rank.bench_device import measure_device

    _, plan = make_plan(setting, machine)
    with join(plan) as process:
        return {"calibration": to_json(measure_device(process))}


def in_a_child(work, *arguments, limit_s):
    """What `work` returns, from a forked process; `{"error": ...}` when there is nothing."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    child = fork.Process(target=_answer, args=(theirs, work, arguments))
    child.start()
    theirs.close()
    answer = {"error": f"no answer in {limit_s:.0f} s"}
    if ours.poll(limit_s):
        try:
            answer = json.loads(ours.recv_bytes())
        except EOFError:
            child.join(10)
            answer = {"error": f"the process ended with {child.exitcode}"}
    child.join(10)
    if child.is_alive():
        child.kill()
        child.join()
    return answer


def _answer(pipe, work, arguments):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        answer = work(*arguments)
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:2000]}"}
    pipe.send_bytes(json.dumps(answer).encode())


def describe(machine):
    """Where and with what this was measured."""
    gpu = next(iter(machine.gpus), None)
    facts = machine.torch
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "gpu": gpu.name if gpu is not None else None,
        "driver": str(getattr(machine, "driver_version", None)),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": facts.version if facts is not None else None,
        "commit": commit_of_tree(),
    }


def show(setting, answer, took_s):
    """One line for a person."""
    if "error" in answer:
        return f"FAILED {setting.name}: {answer['error'][:300]}"
    parts = []
    for point in answer["points"]:
        step = point["step"]
        if step is None:
            parts.append(f"{point['micro_batch']}: no {point['missing']}")
            continue
        gib = (step["allocated_bytes"] or 0) / 2**30
        parts.append(f"{point['micro_batch']}: {1000 * step['step_s']:.1f} ms {gib:.2f} GiB")
    return f"{setting.name} | {', '.join(parts)} | {took_s:.1f} s"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one per setting")
    parser.add_argument("--only", action="append", default=[], help="part of a setting's name")
    parser.add_argument("--budget-s", type=float, default=480.0, help="start nothing after this")
    arguments = parser.parse_args()
    started = time.monotonic()
    settings = find_settings(arguments.only)
    # As they were asked for: what comes last may fall to the budget.
    settings.sort(key=lambda s: [w in s.name or w == s.half for w in arguments.only], reverse=True)
    machine = probe_machine()
    # Before torch: some of these are read when it is imported.
    missing = [setting for setting in settings if not trace_file(setting).is_file()]
    if missing:
        print(f"{len(missing)} settings without a kept trace are traced here", flush=True)
    else:
        os.environ.update(make_plan(settings[0], machine)[1].worker_env)
    import phalanx.engine.rank.bench  # noqa: F401  # torch, once for all children

    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("a", encoding="utf-8") as out:

        def write(record):
            out.write(json.dumps(record) + "\n")
            out.flush()

        write({"kind": "machine", **describe(machine)})
        device = in_a_child(measure_this_device, settings[0], machine, limit_s=LONGEST_S)
        write({"kind": "device", **device})
        print(f"device: {json.dumps(device)[:600]}", flush=True)
        for done, setting in enumerate(settings):
            left_s = arguments.budget_s - (time.monotonic() - started)
            if left_s <= 0:
                print(f"time is up: {len(settings) - done} settings are not measured", flush=True)
                break
            begun = time.monotonic()
            limit_s = min(LONGEST_S, left_s + GRACE_S)
            answer = in_a_child(measure_setting, setting, machine, limit_s=limit_s)
            took_s = time.monotonic() - begun
            write({"kind": "setting", "name": setting.name, "took_s": round(took_s, 1), **answer})
            print(show(setting, answer, took_s), flush=True)


if __name__ == "__main__":
    main()
