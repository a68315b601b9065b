"""Schedulers and agents that end a run, and what they say of it."""

from __future__ import annotations

from phalanx.diagnose.causes.row import Cause

CAUSES = (
    Cause(
        name="preempted",
        any_of=(r"CANCELLED AT \S+ DUE TO PREEMPTION", r"(?i)\bpreempt(ed|ion)\b.*\b(job|node)\b"),
        is_said_before=True,
        words="the scheduler took the machine for a job that goes first",
        fix="{again}; `phalanx slurm JOB ...` has it queued again by itself",
        text="slurmstepd: error: *** JOB 4242 ON node7 CANCELLED AT 2026-01-31T12:00:00 DUE TO "
        "PREEMPTION ***",
        source="failure 39; slurmstepd source",
    ),
    Cause(
        name="time-limit",
        any_of=(r"DUE TO TIME LIMIT",),
        is_said_before=True,
        words="the time that was asked of the scheduler was over",
        fix="{again}; `phalanx slurm JOB --time 24:00:00 ...` saves before the limit and queues "
        "again",
        text="slurmstepd: error: *** STEP 4242.0 ON node7 CANCELLED AT 2026-01-31T12:00:00 DUE TO "
        "TIME LIMIT ***",
        source="failure 39; slurmstepd source",
    ),
    Cause(
        name="node-failed",
        any_of=(r"DUE TO NODE FAILURE", r"(?i)node_fail|Lost connection to node"),
        is_said_before=True,
        words="a node of the cluster failed",
        fix="sinfo -R names it; {again} with `--exclude NODE`",
        text="slurmstepd: error: *** JOB 4242 ON node7 CANCELLED AT 2026-01-31T12:00:00 DUE TO "
        "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        source="failure 39; slurmstepd source",
    ),
    Cause(
        name="cancelled",
        any_of=(r"\*\*\* (JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ \*\*\*",),
        is_said_before=True,
        words="somebody cancelled the job (scancel)",
        fix="{again}",
        text="slurmstepd: error: *** JOB 4242 ON node7 CANCELLED AT 2026-01-31T12:00:00 ***",
        source="slurmstepd source",
    ),
    Cause(
        name="child-killed",
        any_of=(r"Signal 9 \(SIGKILL\) received by PID (?P<pid>\d+)", r"exitcode +: -9 \(pid: \d+"),
        grade="symptom",
        is_said_before=True,
        words="torch's own launcher saw a rank ended by SIGKILL: the kernel when memory ran out, a "
        "scheduler, or somebody's `kill -9`",
        fix="dmesg -T | grep -i 'killed process'; sacct -j JOB -o MaxRSS,State",
        text="traceback : Signal 9 (SIGKILL) received by PID 10245",
        source="failure 38; torch 2.13, elastic/multiprocessing/errors",
    ),
)
