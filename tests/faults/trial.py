"""A run that is broken on purpose: the job, what was done to it, how it went on."""

import time
from itertools import pairwise
from pathlib import Path

from tests.faults.report import record
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import FIXTURES, assert_same_bits

HURT = f"{FIXTURES / 'recipes' / 'hurt.py'}:Hurt"

# Four ranks and every layer in a bucket of its own: with fewer ranks or buckets gradients are
# added up in the same order whatever happened before.
JOB = """
recipe: {recipe}
steps: {steps}
global_batch_size: 10
micro_batch_size: 3
precision: fp64
seed: 3
logging: {{every: 5, tensorboard: false}}
checkpoint: {{every: 20 steps}}
evaluate: {{every: 50 steps}}
devices: {{cpu: {ranks}}}
ddp: {{bucket_mb: 0.002}}
options: {{width: 64, {options}}}
{more}
"""


def write_job(folder, *, recipe=HURT, ranks=4, steps=200, more="", **options):
    folder.mkdir(parents=True, exist_ok=True)
    words = {"where": str(folder), **options}
    shown = ", ".join(f"{name}: {value}" for name, value in words.items())
    text = JOB.format(recipe=recipe, ranks=ranks, steps=steps, options=shown, more=more)
    (folder / "job.yaml").write_text(text)


def wait_for_attempt(run, attempt, timeout_s=90):
    """Until the ranks of an attempt have logged a step."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if any(e.kind == "step" and e.attempt >= attempt for e in read_events(run.events)):
            return
        time.sleep(0.05)
    raise AssertionError(f"attempt {attempt} has not logged a step within {timeout_s} s")


def findings(run):
    """Slug and Finding of everything the supervisor said, by time."""
    return [
        (event.data["finding"]["slug"], event.data["finding"])
        for event in read_events(run.events)
        if event.kind == "finding" and event.writer == "supervisor"
    ]


def said(run, kind):
    return [event for event in read_events(run.events) if event.kind == kind]


def report(fault, run, *, at_s, attempt=0, unbroken=None, note=""):
    """Record what the fault of an attempt cost, and whether the run ended as the unbroken one."""
    events = read_events(run.events)
    words = [e for e in events if e.writer == "supervisor" and e.attempt == attempt]
    noticed = [
        e.time_s
        for e in words
        if e.time_s >= at_s
        and (e.kind in ("hang", "finding", "revision") or e.data.get("status") == "failed")
    ]
    steps = [e for e in events if e.kind == "step"]
    again = [e.time_s for e in steps if e.attempt == attempt + 1]
    before = [e.data["step"] for e in steps if e.attempt == attempt]
    resumed = [e.data["step"] for e in events if e.kind == "start" and e.attempt == attempt + 1]
    if unbroken is not None:
        assert_same_bits(run, unbroken)
    record(
        fault,
        detection_s=min(noticed) - at_s if noticed else None,
        restart_s=min(again) - at_s if again else None,
        lost_steps=max(0, max(before) - resumed[0]) if before and resumed else None,
        goodput=_goodput(steps) if again else None,
        is_equal=True if unbroken is not None else None,
        note=note,
    )


def _goodput(steps):
    """The share of the time from the first step to the last that steps took which counted."""
    done = len({event.data["step"] for event in steps})
    whole_s = max(event.time_s for event in steps) - steps[0].time_s
    return min(1.0, done * _seconds_of_a_logged_step(steps) / max(whole_s, 1e-9))


def _seconds_of_a_logged_step(steps):
    gaps = sorted(
        later.time_s - earlier.time_s
        for earlier, later in pairwise(steps)
        if later.data["step"] > earlier.data["step"] and later.attempt == earlier.attempt
    )
    return gaps[len(gaps) // 2]


def done_at(folder, attempt=0):
    """When the recipe did what it was asked to do in an attempt."""
    return float(Path(folder, f"done-{attempt}").read_text())
