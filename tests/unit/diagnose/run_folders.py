"""Run directories as dead runs leave them: events as the product writes them, with values of their
own."""

import json

from phalanx.errors import Finding
from phalanx.run.directory import RunDirectory
from tests.fixtures.event_lines import make_event
from tests.fixtures.recorded import RecordedWriter, as_written

TRACEBACK = (
    'Traceback (most recent call last):\n  File "/home/u/train.py", line 7, in main\n'
    "    loss = step(batch)\n"
)


def traceback(text):
    """A log that ends with that exception; anything else as it is."""
    head = text.split(":")[0].rpartition(".")[2]
    is_error = head.endswith(("Error", "Exception", "Error(s)")) and " " not in head
    return TRACEBACK + text if is_error else text


def folder(path, *, is_script=True, plan=None, command=("phalanx", "launch", "train.py")):
    """An empty run directory."""
    run = RunDirectory(path / "run")
    for part in (run.events, run.logs, run.checkpoints):
        part.mkdir(parents=True, exist_ok=True)
    if is_script:
        words = {"command": ["/env/bin/python", "-u", "train.py"]}
        run.launch_file.write_text(json.dumps(words))
    else:
        record = {name: {"value": value, "reason": "so"} for name, value in (plan or {}).items()}
        run.plan_file.write_text(json.dumps({"revision": 0, **record}))
    run.source_file.write_text(json.dumps({"command": list(command)}))
    return run


def died(path, logs, codes=None, *, attempt=0, world=2, is_script=True, status="failed", **more):
    """A run whose ranks printed `logs` and ended with `codes`: by rank, in the order of death."""
    run = folder(path, is_script=is_script, **more)
    codes = {0: 1} if codes is None else codes
    events = RecordedWriter(run.events, "supervisor", attempt=attempt)
    events.write("attempt", ranks=max(len(logs), len(codes), world))
    for rank, text in logs.items():
        with run.log_file(rank).open("a") as log:
            log.write(f"--- attempt {attempt}, pid {100 + rank}\n{text}\n")
    for rank, code in codes.items():
        events.write("death", rank=rank, exit_code=code, was_ended=False, oom_kills=0)
    if status is not None:
        events.write("outcome", status=status, step=None, reason=status, findings=[], exit_code=1)
    events.close()
    return run


def failed_rank(run, rank, error, *, phase="step", step=3, slug="rank-crashed", attempt=0):
    """What a rank of a job writes when it fails, events and log."""
    finding = Finding(slug=slug, what=f"rank {rank} failed: {error}", why="there", fix="so")
    events = RecordedWriter(run.events, f"rank-{rank}", attempt=attempt)
    events.write(
        "outcome",
        status="failed",
        step=step,
        phase=phase,
        memory=None,
        reason=finding.what,
        findings=[finding.to_json()],
        exit_code=1,
    )
    events.close()
    with run.log_file(rank).open("a") as log:
        log.write(f"--- attempt {attempt}, pid {100 + rank}\n{traceback(error)}\n")


def steps(run, losses, **values):
    """`step` events with these losses, one second apart."""
    path = run.events / "rank-0.jsonl"
    with path.open("a") as file:
        for number, loss in enumerate(losses, 1):
            given = {n: v(number) if callable(v) else v for n, v in values.items()}
            data = as_written("step", "rank-0", step=number, loss=loss, **given)
            file.write(make_event("step", 1000.0 + number, "rank-0", 0, data).to_line())
