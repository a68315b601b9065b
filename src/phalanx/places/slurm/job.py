"""A job for Slurm: what is asked of it, judged by itself, and the batch script as text.

The script is made to be read. Values stand in it only after `value_findings` has judged them, and
words of the command line only quoted: nothing that a user or a job file says is run by a shell.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from phalanx.errors import ExitCode, Finding
from phalanx.places.slurm.script import LAUNCH, MEETING, ONE_NODE, SCRIPT, SEVERAL_NODES, TRAIN
from phalanx.run.secrets import unfit_words

TASK = "{task}"
"""In a word of a job array: the number of the task."""
LOGS = "logs"
"""Folder of what Slurm jobs print, below the folder they are submitted from."""
COMMENT = "phalanx"
"""How our jobs are known among a user's others."""

# field -> (what it may be, an example); Slurm's own rules are wider, none of its sites needs more.
_SHAPES = {
    "name": (r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", "--name first"),
    "partition": (r"[A-Za-z0-9_][A-Za-z0-9_.+,-]{0,127}", "--partition gpu"),
    "account": (r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}", "--account my_group"),
    "qos": (r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}", "--qos normal"),
    "constraint": (r"[A-Za-z0-9_\[(][A-Za-z0-9_.&|*()\[\]-]{0,127}", "--constraint a100"),
    "array": (
        r"\d{1,7}(-\d{1,7}(:\d{1,5})?)?(,\d{1,7}(-\d{1,7})?){0,63}(%\d{1,5})?",
        "--array 0-3",
    ),
    "memory": (r"[1-9]\d{0,9}[KMGT]?", "--mem 64G"),
    "gpus": (r"([A-Za-z][A-Za-z0-9_.-]{0,62}:)?\d{1,4}", "--gpus-per-node 4"),
}
_OPTION = {"memory": "--mem", "gpus": "--gpus-per-node"}
_TIME = re.compile(
    r"(?:(?P<days>\d{1,4})-(?P<dh>\d{1,2})(?::(?P<dm>\d{1,2})(?::(?P<ds>\d{1,2}))?)?"
    r"|(?:(?P<h>\d{1,5}):)?(?P<m>\d{1,6}):(?P<s>\d{1,2})|(?P<only>\d{1,7}))",
    re.ASCII,
)


@dataclass(frozen=True, kw_only=True)
class SlurmRequest:
    """What is asked of Slurm; None leaves a value to the cluster."""

    name: str
    """Of the job; run and logs are called NAME_JOBID."""
    words: tuple[str, ...]
    """What follows `phalanx train` or `phalanx launch`, without name and output."""
    output: str
    """Folder for run directories."""
    python: str
    """The interpreter on the nodes."""
    verb: str = "train"
    """`train`, or `launch` for a script of the user's own."""
    partition: str | None = None
    nodes: int = 1
    gpus: str = "1"
    """Per node: a number, or `TYPE:NUMBER`; `0` for none."""
    cpus: int | None = None
    """Per node, as one task runs on each."""
    memory: str | None = None
    time: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    array: str | None = None
    signal_s: int = 120
    """How long before the time limit the ranks are told to save."""
    max_requeues: int = 5

    @property
    def gpu_count(self) -> int:
        return int(self.gpus.rpartition(":")[2])


def parse_time(text: str) -> int | None:
    """Seconds of a time as Slurm writes it: `90`, `90:00`, `1:30:00`, `1-12`, `1-12:30`; None for
    what is none."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    part = {name: int(value or 0) for name, value in found.groupdict().items()}
    seconds = (part["days"] * 24 + part["dh"] + part["h"]) * 3600
    seconds += (part["dm"] + part["m"] + part["only"]) * 60 + part["ds"] + part["s"]
    return seconds or None


def value_findings(request: SlurmRequest, environment: Mapping[str, str]) -> list[Finding]:
    """What is wrong with the values, without asking Slurm. Nothing else may be made of a request
    with errors."""
    return [
        *_wrong_shapes(request),
        *_wrong_words(request, environment),
        *_wrong_numbers(request),
        *_array_findings(request),
        *_overridden(environment),
    ]


def _wrong_shapes(request: SlurmRequest) -> Iterator[Finding]:
    for field, (pattern, example) in _SHAPES.items():
        value = getattr(request, field)
        option = _OPTION.get(field, f"--{field}")
        if value is not None and not re.fullmatch(pattern, value, re.ASCII):
            yield Finding(
                slug="slurm-value",
                what=f"{option} {value!r} cannot stand in a batch script",
                why=f"it would have to match {pattern}: what else it holds could be taken for "
                "another option or be run",
                fix=example,
            )
    if request.time is not None and parse_time(request.time) is None:
        yield Finding(
            slug="slurm-time",
            what=f"--time {request.time!r} is no time that Slurm knows",
            why="it takes minutes, MM:SS, HH:MM:SS, DAYS-HH, DAYS-HH:MM and DAYS-HH:MM:SS",
            fix="--time 4:00:00",
        )


def _wrong_words(request: SlurmRequest, environment: Mapping[str, str]) -> Iterator[Finding]:
    words = (*request.words, request.output, request.python)
    for word, name in unfit_words(words, environment):
        if name is None:
            yield Finding(
                slug="slurm-word",
                what=f"{word!r} holds a line break, a control character or no valid text",
                why="it would stand in a batch script and in logs that people read",
                fix="take the character out, or rename the file",
            )
        else:
            yield Finding(
                slug="slurm-secret",
                what=f"a word of the command line holds the value of {name}",
                why="it would stand in the batch script, in argv and in logs for all to read",
                fix=f"leave it out: {name} reaches the ranks through the environment",
            )


def _wrong_numbers(request: SlurmRequest) -> Iterator[Finding]:
    for option, value, least in (
        ("--nodes", request.nodes, 1),
        ("--cpus-per-task", request.cpus, 1),
        ("--signal-s", request.signal_s, 1),
        ("--max-requeues", request.max_requeues, 0),
    ):
        if value is not None and not least <= value <= 65535:
            yield Finding(
                slug="slurm-value",
                what=f"{option} {value} is not between {least} and 65535",
                why="Slurm keeps it in 16 bits",
                fix=f"{option} {max(least, 1)}",
            )
    limit_s = parse_time(request.time) if request.time is not None else None
    if limit_s is not None and request.signal_s >= limit_s:
        yield Finding(
            slug="slurm-signal",
            what=f"--signal-s {request.signal_s} is not less than --time {request.time}, "
            f"which is {limit_s} s",
            why="the job would be told to stop as soon as it has started",
            fix=f"--signal-s {max(1, limit_s // 10)}",
        )


def _array_findings(request: SlurmRequest) -> Iterator[Finding]:
    has_task = any(TASK in word for word in request.words)
    if request.array is not None and not has_task:
        yield Finding(
            slug="slurm-array",
            what=f"every task of --array {request.array} trains the same",
            why=f"no word of the job holds {TASK}, which stands for the number of the task",
            fix=f"seed={TASK}",
            severity="warning",
        )
    if request.array is None and has_task:
        yield Finding(
            slug="slurm-array",
            what=f"{TASK} stands for the number of a task, and there is no job array",
            why="--array was not given",
            fix="--array 0-3",
        )


def _overridden(environment: Mapping[str, str]) -> Iterator[Finding]:
    names = sorted(name for name in environment if name.startswith("SBATCH_"))
    if names:
        yield Finding(
            slug="slurm-environment",
            what=f"{', '.join(names)} in the environment win over what the script says",
            why="sbatch reads them before the script; SBATCH_EXPORT=NONE keeps the environment "
            "from the ranks",
            fix=f"unset {' '.join(names)}",
            severity="warning",
        )


def batch_script(request: SlurmRequest) -> str:
    """The text of a request that has been judged."""
    task = "_%A_%a" if request.array else "_%j"
    identity = "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}" if request.array else "$SLURM_JOB_ID"
    directives = {
        "job-name": request.name,
        "comment": COMMENT,
        "partition": request.partition,
        "account": request.account,
        "qos": request.qos,
        "constraint": request.constraint,
        "array": request.array,
        "nodes": request.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": request.gpus if request.gpu_count else None,
        "cpus-per-task": request.cpus,
        "mem": request.memory,
        "time": request.time,
        "output": f"{LOGS}/{request.name}{task}.out",
        "error": f"{LOGS}/{request.name}{task}.err",
        "open-mode": "append",
        "requeue": "",
        "signal": f"B:USR1@{request.signal_s}",
    }
    lines = [
        f"#SBATCH --{key}" + (f"={value}" if value != "" else "")
        for key, value in directives.items()
        if value is not None
    ]
    cpus = f" --cpus-per-task={request.cpus}" if request.cpus else ""  # srun does not inherit it
    step = SEVERAL_NODES if request.nodes > 1 else ONE_NODE
    choice = TRAIN if request.verb == "train" else LAUNCH
    return SCRIPT.format(
        directives="\n".join(lines),
        name=request.name,
        identity=identity,
        choice=choice.format(
            output=shlex.quote(request.output.rstrip("/") + "/"),
            words=" ".join(_quoted(word) for word in request.words),
            output_word=shlex.quote(f"--output={request.output}"),
        ),
        signal_s=request.signal_s,
        heard="the ranks finish the step and save"
        if request.verb == "train"
        else "the script gets SIGTERM",
        meeting=MEETING if request.nodes > 1 else "",
        step=step.format(
            nodes=request.nodes,
            cpus=cpus,
            python=shlex.quote(request.python),
            verb=request.verb,
        ),
        stopped=int(ExitCode.STOPPED),
        max_requeues=request.max_requeues,
    )


def _quoted(word: str) -> str:
    parts = [shlex.quote(part) if part else "" for part in word.split(TASK)]
    return '"$SLURM_ARRAY_TASK_ID"'.join(parts) or "''"


def train_words(job: str, overrides: Sequence[str], options: Sequence[str]) -> tuple[str, ...]:
    """Options first; a job or an override that looks like an option comes after `--`."""
    positional = (job, *overrides)
    mark = ("--",) if any(word.startswith("-") for word in positional) else ()
    return (*options, *mark, *positional)
