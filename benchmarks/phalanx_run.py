"""A plain `phalanx train JOB`, watched through its events and ended by Ctrl-C after a while.

    python benchmarks/phalanx_run.py --seconds 15 --settle-s 12 -- policy size=6m --gpus 1

The job is as long as a real one, so that what is chosen for it is what a user's job gets; nothing
but the place of its files is said on the command line.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from origin import ROOT

from phalanx.run.event_kinds import Checkpoint, Evaluate, FindingMade, Step
from phalanx.run.events import read_events
from phalanx.run.plan_record import without_sections


def phalanx_argv(words, arguments):
    """The command of this file, for a contestant's turn."""
    times = ["--seconds", str(arguments.seconds), "--settle-s", str(arguments.settle_s)]
    return [sys.executable, str(Path(__file__)), *times, "--", *words]


def measure_command(words, arguments, *, is_start=False):
    """Figures of `phalanx train WORDS`: of its start alone, or of its steps after `settle_s` and
    for `seconds`."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "phalanx", "train", *words, f"output={folder}/runs"]
        started_s = time.time()
        with Path(folder, "said").open("w+") as said:
            process = subprocess.Popen(argv, cwd=ROOT, stdout=said, stderr=said)
            try:
                _watch(process, Path(folder, "runs"), arguments, is_start=is_start)
            finally:
                code = _end(process)
            said.seek(0)
            text = said.read()
        events = _events(Path(folder, "runs"))
        figures = _figures(events, arguments.settle_s, started_s, is_start=is_start)
        plan = _plan(Path(folder, "runs"))
        figures["plan"] = {name: f"{value}: {why}"[:200] for name, (value, why) in plan.items()}
        figures["predicted_bytes"] = plan.get("memory_bytes", (None,))[0]
    figures["command"] = "phalanx train " + " ".join(words).replace(f"{ROOT}/", "")
    if "first_event_s" not in figures:
        raise SystemExit(f"exit code {code}, no step was logged:\n{text[-3000:]}")
    return figures


def _watch(process, runs, arguments, *, is_start):
    """Until enough was measured, or the command ended by itself."""
    while process.poll() is None:
        time.sleep(0.05 if is_start else 0.5)
        steps = [event for event in _events(runs) if isinstance(event.body, Step)]
        if not steps:
            continue
        if is_start or time.time() - steps[0].time_s > arguments.settle_s + arguments.seconds:
            return


def _end(process):
    """Ctrl-C; a second one where the first is not heard."""
    for how in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        if process.poll() is not None:
            break
        process.send_signal(how)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            continue
    return process.wait(10)


def _events(runs):
    found = []
    for folder in runs.glob("*/events"):
        if not folder.parent.is_symlink():
            found += read_events(folder)
    return sorted(found, key=lambda event: event.time_s)


def _figures(events, settle_s, started_s, *, is_start):
    steps = [event for event in events if isinstance(event.body, Step)]
    figures = {
        "findings": [
            {name: getattr(event.body.finding, name) for name in ("slug", "what", "why")}
            for event in events
            if isinstance(event.body, FindingMade)
        ],
        "checkpoints": sum(isinstance(event.body, Checkpoint) for event in events),
        "evaluations": sum(isinstance(event.body, Evaluate) for event in events),
    }
    if not steps:
        return figures
    first = steps[0]
    figures["first_event_step"] = first.step
    figures["first_event_s"] = first.time_s - started_s
    settled = [event for event in steps if event.time_s - first.time_s >= settle_s] or steps[-3:]
    rates = [event.body.samples_per_s for event in settled]
    if not is_start:
        figures |= {
            "samples_per_s": statistics.harmonic_mean(rates),  # each is of as many steps
            "slowest": min(rates),
            "quickest": max(rates),
            "windows": len(rates),
            "steps": steps[-1].step,
            "memory_bytes": max(event.body.memory_bytes for event in steps),
            "settled_memory_bytes": max(event.body.memory_bytes for event in settled),
            # Thinned: how the speed went from the first step on.
            "course": [event.body.samples_per_s for event in steps][:: len(steps) // 40 + 1],
        }
    return figures


def _plan(runs):
    """Every decision of the plan with its reason."""
    for file in runs.glob("*/plan.json"):
        if not file.parent.is_symlink():
            plan = without_sections(json.loads(file.read_text(encoding="utf-8")))
            return {
                name: (decision["value"], decision.get("reason", ""))
                for name, decision in plan.items()
                if isinstance(decision, dict) and "value" in decision
            }
    return {}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="+", help="what `phalanx train` is given")
    parser.add_argument("--seconds", type=float, default=15.0, help="measured, after settling")
    parser.add_argument("--settle-s", type=float, default=15.0, help="not measured")
    arguments = parser.parse_args()
    print(json.dumps(measure_command(arguments.words, arguments)), flush=True)


if __name__ == "__main__":
    main()
