"""Run directories as runs of every kind leave them: events as the product writes them, with other
values."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np

from phalanx.recipe.films import encode_film
from phalanx.run.directory import RunDirectory
from phalanx.run.events import EVALUATOR
from phalanx.run.holder import this_process
from phalanx.run.media import write_media
from tests.fixtures.event_lines import make_event
from tests.fixtures.recorded import as_written

BEGAN = 1_800_000_000.0
PARTS = ["none", "data", "agree", "forward", "backward", "update", "read"]


def choice(value, reason="asked for"):
    return {"value": value, "reason": reason}


def plan(**changes):
    record = {
        "schema_version": 1,
        "revision": 0,
        "device": choice("cuda", "4 GPUs are free"),
        "ranks": choice(2),
        "metric": choice("accuracy"),
        "metric_mode": choice("max"),
        "total_steps": choice(200),
        "global_batch_size": choice(64),
        "samples_per_s": choice(640.0),
        "duration_s": choice(20.0),
        "step_s": choice(0.1),
        "memory_bytes": choice(3 * 2**30),
        "process_bytes": choice(4 * 2**30),
        "forecast": {"flops_per_sample": 2e9, "peak_flops": 1e13},
    }
    return record | {name: choice(value) for name, value in changes.items()}


class Run:
    """A run directory that is filled event by event."""

    def __init__(self, folder, name="first", *, plan_record=None, job="recipe: digits\nseed: 0\n"):
        self.run = RunDirectory(Path(folder) / name)
        for path in (self.run.events, self.run.logs):
            path.mkdir(parents=True)
        record = plan() if plan_record is None else plan_record
        if record:
            self.run.plan_file.write_text(json.dumps(record))
            self.run.job_file.write_text(job)
        else:
            command = ["phalanx", "launch", "train.py"]
            self.run.launch_file.write_text(json.dumps({"command": command}))

    def write(self, kind, time_s, writer="supervisor", attempt=0, **data):
        data = as_written(kind, writer, **data)
        self.append(writer, make_event(kind, BEGAN + time_s, writer, attempt, data).to_line())

    def append(self, writer, text):
        with (self.run.events / f"{writer}.jsonl").open("a") as file:
            file.write(text)

    def begin(self, ranks=2, attempt=0, time_s=0.0, step=0, device="cuda:{} NVIDIA H100"):
        self.write("attempt", time_s, attempt=attempt, ranks=ranks, revision=attempt)
        for rank in range(ranks):
            self.write(
                "start",
                time_s + 1,
                f"rank-{rank}",
                attempt,
                rank=rank,
                world=ranks,
                pid=100 + rank,
                device=device.format(rank),
                backend="nccl",
                step=step,
                resumed_from=None,
            )

    def step(self, step, attempt=0, time_s=None, **changes):
        data = {
            "step": step,
            "epoch": step / 20,
            "samples": 64 * step,
            "loss": 2.5 * math.exp(-step / 60),
            "terms": {"cross_entropy": 1.0},
            "lr": 0.003 * (1 - step / 200),
            "grad_norm": 1.0,
            "samples_per_s": 600.0,
            "data_wait": 0.05,
            "memory_bytes": 2 * 2**30,
            "alloc_retries": 0,
            "major_faults": 0,
            "loss_scale": None,
        }
        at = 2 + step / 10 if time_s is None else time_s
        self.write("step", at, "rank-0", attempt, **data | changes)

    def evaluate(self, step, value, **changes):
        data = {"step": step, "epoch": step / 20, "metrics": {"accuracy": value}, "samples": 360}
        data |= {"is_best": True, "seconds": 0.1}
        self.write("evaluate", 2 + step / 10, "rank-0", **data | changes)

    def usage(self, rank, time_s, **changes):
        data = {"rank": rank, "step": 10, "cpu_percent": 100.0, "memory_bytes": 2**30}
        data |= {"gpu": rank, "gpu_percent": 90 - rank, "gpu_memory_bytes": 3 * 2**30}
        data |= {"gpu_power_w": 300.0, "gpu_temperature_c": 60 + rank}
        self.write("usage", time_s, **data | changes)

    def pace(self, time_s, data_s, steps=10):
        rows = [
            [
                rank,
                steps,
                0.0,
                s * steps,
                0.01 * steps,
                0.03 * steps,
                0.05 * steps,
                0.005 * steps,
                0,
            ]
            for rank, s in enumerate(data_s)
        ]
        self.write("pace", time_s, seconds=1.0, parts=PARTS, alone=["data"], ranks=rows)

    def finding(self, time_s, slug="straggler", severity="warning", **changes):
        record = {"slug": slug, "what": "rank 1 takes 3.0 times as long as the others", "why": "w"}
        record |= {"fix": "phalanx doctor", "severity": severity}
        self.write("finding", time_s, finding=record | changes)

    def end(self, status="finished", time_s=30.0, step=200, reason=None, findings=(), attempt=0):
        self.write(
            "outcome",
            time_s,
            attempt=attempt,
            status=status,
            step=step,
            reason=reason or status,
            findings=list(findings),
            exit_code=0 if status == "finished" else 1,
        )

    def hold(self):
        """As if this process trained in it."""
        (self.run.path / ".lock").write_text(json.dumps(asdict(this_process())))

    def evaluated(self, time_s, value=0.99, **changes):
        """As `phalanx evaluate` leaves it."""
        self.write("evaluated", time_s, EVALUATOR, step=100, metrics={"accuracy": value}, **changes)

    def film(self, step, writer="rank-0", time_s=9.0):
        """Two seconds of a bar that moves."""
        frames = np.zeros((60, 64, 96, 3), np.uint8)
        for number, frame in enumerate(frames):
            frame[:, number : number + 8] = 255 if writer == "rank-0" else 128
        file = write_media(
            self.run, step=step, name="drive", suffix=".mp4", content=encode_film(frames, fps=30)
        )
        self.write("media", time_s, writer, step=step, name="drive", file=file, caption="c")
        return file

    def log(self, rank, text):
        self.run.log_file(rank).write_text(text)


def whole_run(folder, name="first", **changes):
    """Two GPU ranks, a restart, a revision, a straggler; finished."""
    made = Run(folder, name, **changes)
    made.begin()
    for step in range(10, 101, 10):
        made.step(step)
    made.evaluate(100, 0.8)
    made.write(
        "death", 13.0, rank=1, exit_code=-9, was_ended=False, phase="step", step=100, oom_kills=1
    )
    made.write(
        "revision",
        13.5,
        revision=1,
        reason="memory ran out",
        changes={"micro_batch_size": {"old": 32, "new": 16}},
        step=100,
    )
    made.begin(attempt=1, time_s=14.0, step=80)
    for step in range(90, 201, 10):
        made.step(step, attempt=1, time_s=8 + step / 10)
    made.evaluate(200, 0.9)
    made.write(
        "checkpoint",
        28.5,
        "rank-0",
        1,
        step=200,
        path="checkpoints/checkpoint-200",
        bytes=2**20,
        seconds=0.1,
        waited_s=0.0,
        write_s=0.2,
        is_best=True,
    )
    for time_s in (10.0, 16.0, 22.0, 28.0):
        for rank in range(2):
            made.usage(rank, time_s)
        made.pace(time_s, (0.01, 0.05))
    made.finding(20.0)
    made.end(attempt=1)
    return made
