"""Jobs that were given to Slurm: submitting, finding them again, their state, ending them.

`logs/NAME_JOBID.sbatch` is the script of a job, beside its `.out` and `.err`; its run directory is
`OUTPUT/NAME_JOBID`. So a job is found without a list of ours.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import ExitCode, Finding, UserError
from phalanx.places.slurm.checks import ask_rows, ask_slurm
from phalanx.places.slurm.job import COMMENT, LOGS
from phalanx.run.directory import RunDirectory, write_atomic
from phalanx.run.event_kinds.ranks import Outcome, Step
from phalanx.run.events import parse
from phalanx.run.reading import read_end

_TAIL_BYTES = 65536
_ID = re.compile(r"\d+(_\d+)?", re.ASCII)
_STEM = re.compile(r".+?_(\d+(?:_\d+)?)", re.ASCII)


@dataclass(frozen=True)
class SlurmJob:
    """A job as Slurm knows it, or as its files tell when Slurm has forgotten it."""

    id: str
    name: str
    state: str
    """Slurm's word; `gone` when Slurm knows it no more."""
    ran: str
    limit: str
    reason: str
    folder: Path
    """Where it was submitted."""

    @property
    def stem(self) -> str:
        return f"{self.name}_{self.id}"

    @property
    def logs(self) -> tuple[Path, Path]:
        base = self.folder / LOGS
        return base / f"{self.stem}.out", base / f"{self.stem}.err"


def submit(script: str, name: str) -> str:
    """Give a script to Slurm and keep it beside the job's logs: the job's number."""
    folder = Path(LOGS)
    folder.mkdir(exist_ok=True)  # Slurm makes no folder, and without it the job has no log
    answer = ask_slurm(["sbatch", "--parsable"], text=script)
    number = answer.out.strip().partition(";")[0]
    if answer.code != 0 or not _ID.fullmatch(number):
        raise UserError(
            Finding(
                slug="slurm-refused",
                what=f"Slurm has refused the job: {answer.err.strip() or answer.out.strip()}",
                why="said by `sbatch`",
                fix="see what it says; `--print` shows the script",
            ),
            exit_code=ExitCode.LAUNCH,
        )
    write_atomic(folder / f"{name}_{number}.sbatch", script)
    return number


def parse_reference(reference: str) -> str:
    """The job's number in `42`, `42_3`, `digits_42`, `runs/digits_42` or `logs/digits_42.out`."""
    name = re.sub(r"\.(out|err|sbatch)$", "", Path(reference).name)
    found = _STEM.fullmatch(name)
    if _ID.fullmatch(name):
        return name
    if found is not None:
        return found[1]
    raise UserError(
        Finding(
            slug="slurm-job",
            what=f"{reference!r} names no Slurm job",
            why="a job is named by its number, or by its run or log, which end in _NUMBER",
            fix="phalanx slurm status",
        )
    )


def list_jobs() -> list[SlurmJob]:
    """Our jobs of this user that Slurm knows, the newest first, then those of this folder that it
    has forgotten."""
    rows = ask_rows(["squeue", "--me", "-t", "all"], "%i %j %T %M %l %r %Z %k") or []
    jobs = [
        SlurmJob(number, name, state.lower(), ran, limit, reason, Path(folder))
        for number, name, state, ran, limit, reason, folder, comment in rows
        if comment == COMMENT
    ]
    known = {job.id.partition("_")[0] for job in jobs}
    jobs += [job for job in _forgotten() if job.id.partition("_")[0] not in known]
    return sorted(jobs, key=lambda job: _order(job.id), reverse=True)


def _order(number: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", number)[:2])


def _forgotten() -> Iterator[SlurmJob]:
    for path in Path(LOGS).glob("*.out"):
        found = _STEM.fullmatch(path.stem)
        if found is not None:
            name = path.stem.removesuffix(f"_{found[1]}")
            yield SlurmJob(found[1], name, "gone", "", "", "", Path.cwd())


def find_job(reference: str | None) -> SlurmJob:
    """One job; the newest when none is named."""
    jobs = list_jobs()
    number = parse_reference(reference) if reference is not None else None
    for job in jobs:
        if number in (None, job.id, job.id.partition("_")[0]):
            return job
    raise UserError(
        Finding(
            slug="slurm-job",
            what=f"no job {number} of `phalanx slurm`" if number else "no job was submitted here",
            why=f"`squeue --me` and {LOGS}/ know {', '.join(job.stem for job in jobs[:5])}"
            if jobs
            else f"neither `squeue --me` nor {LOGS}/ knows one",
            fix="phalanx slurm status" if jobs else "phalanx slurm digits --partition gpu",
        )
    )


def progress_of(job: SlurmJob) -> str:
    """How far its run is, in words; nothing when it has not begun."""
    run = _run_of(job)
    files = (run.events / "rank-0.jsonl", run.events / "supervisor.jsonl")
    lines = [line for file in files for line in read_end(file, _TAIL_BYTES).splitlines()]
    said = [event for line in lines if (event := parse(line)) is not None]
    words = ""
    for event in sorted(said, key=lambda event: event.time_s):
        if isinstance(event.body, Step):
            words = f"step {event.body.step}"
        elif isinstance(event.body, Outcome) and event.writer == "supervisor":
            words = f"{event.body.status} at step {event.body.step}"
    return words


def _run_of(job: SlurmJob) -> RunDirectory:
    """The run that the job's script names."""
    script = job.folder / LOGS / f"{job.name}_{job.id.partition('_')[0]}.sbatch"
    output = "runs/"
    if script.is_file():
        line = re.search(r"^run=(.+)$", script.read_text(encoding="utf-8"), re.MULTILINE)
        output = shlex.split(line[1])[0].removesuffix("$name") if line else output
    return RunDirectory(job.folder / output / job.stem)


def cancel(reference: str) -> SlurmJob:
    """End a job. Its ranks are told first, and save if Slurm's KillWait leaves them the time."""
    return _tell(["scancel"], reference, "ended")


def requeue(reference: str) -> SlurmJob:
    """Put a job back into the queue; its run goes on from the last checkpoint."""
    return _tell(["scontrol", "requeue"], reference, "queued again")


def _tell(argv: list[str], reference: str, what: str) -> SlurmJob:
    job = find_job(reference)
    number = parse_reference(reference)
    answer = ask_slurm([*argv, number])
    if answer.code != 0:
        raise UserError(
            Finding(
                slug="slurm-refused",
                what=f"job {number} was not {what}: {answer.err.strip() or answer.code}",
                why=f"said by `{' '.join(argv)}`; the job is {job.state}",
                fix=f"phalanx slurm status {number}",
            ),
            exit_code=ExitCode.FAILED,
        )
    return job
