"""Evaluates a trained model on its test split, in ranks like those that train."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from phalanx.codec import to_json
from phalanx.errors import ExitCode, Finding, UserError
from phalanx.job import Override
from phalanx.job.schema import Job
from phalanx.machine import Machine
from phalanx.planner.evaluation_plan import devices_here, plan_evaluation
from phalanx.prepare.launcher import Launcher
from phalanx.prepare.plan import Prepared, prepare
from phalanx.prepare.scratch_run import run_folder
from phalanx.prepare.trace import trace_recipe
from phalanx.prepare.trained_model import Trained, Which, find_trained
from phalanx.run import event_kinds
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import BenchmarkTask, MediaWritten, ModelSample, Samples
from phalanx.run.events import EVALUATOR, Event, EventWriter
from phalanx.run.lock import is_held
from phalanx.run.media import write_media
from phalanx.run.purpose import Evaluate
from phalanx.supervise.sinks import SinkProcess, sinks_of
from phalanx.verbs.short_run import run_short

Say = Callable[[str], None]

_ROUNDING = 1e-5
"""Relative: what another device, precision or number of threads may change of a figure."""


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation found."""

    title: str
    file: Path
    recipe: str
    step: int | None
    weights: str
    metrics: dict[str, float]
    """Figures over the whole test split, or over all tasks of a benchmark."""
    samples: int | None
    seconds: float
    where: str
    """`2 CPU processes, fp32`."""
    recorded: dict[str, float] | None = None
    """What training found for these weights."""
    is_same: bool | None = None
    """Whether that is what was found now, to the last bit; None: there is nothing to compare."""
    benchmark: str | None = None
    next_benchmark: str | None = None
    """Of the test split: the benchmark that the recipe wants to be run after it."""
    tasks: list[BenchmarkTask] = field(default_factory=list)
    baselines: dict[str, list[BenchmarkTask]] = field(default_factory=dict)
    """How others did in the same tasks, such as an expert."""
    media: list[Path] = field(default_factory=list)
    """Pictures and films that were written."""
    examples: list[ModelSample] = field(default_factory=list)
    """What the model made of a few test samples: given, made, wanted."""
    run: Path | None = None
    """The run whose events have a row about it."""
    findings: list[Finding] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        record: dict[str, Any] = to_json(self)
        return record


def evaluate_trained(
    reference: str | None,
    overrides: Sequence[Override | str] = (),
    *,
    say: Say = lambda phase: None,
    **which: Unpack[Which],
) -> Evaluated:
    """Evaluate a run, a checkpoint, a file of weights or an ONNX file on the test split of its
    recipe; raises UserError."""
    say("looking for the weights")
    trained = find_trained(reference, overrides, command="phalanx evaluate", **which)
    with Launcher() as launcher, run_folder("evaluate") as folder:
        say("looking at the machine and the recipe")
        prepared, notes = _prepare(trained, overrides, folder, launcher)
        say(f"evaluating {prepared.plan.batch.num_test_samples.value:,} samples")
        heard = _Listener()
        done = run_short(
            prepared,
            folder,
            "evaluate",
            launcher=launcher,
            purpose=Evaluate(str(trained.file)),
            on_event=heard.take,
        )
        done.raise_if_failed()
        if heard.found is None:
            raise UserError(_stopped(done.outcome.reason), exit_code=ExitCode.INTERRUPTED)
        say("writing down what was found")
        return _report(trained, prepared, heard, [*notes, *done.findings], done.directory)


def _prepare(
    trained: Trained, overrides: Sequence[Override | str], folder: Path, launcher: Launcher
) -> tuple[Prepared, list[Finding]]:
    notes: list[Finding] = []
    is_onnx = trained.file.suffix == ".onnx"
    is_placed = any(
        (o.key if isinstance(o, Override) else o.partition("=")[0]).startswith("devices")
        for o in overrides
    )

    def place(job: Job, machine: Machine) -> Job:
        if is_onnx and job.devices.cpu is None:
            return job.model_copy(update={"devices": job.devices.model_copy(update=_ONE_CPU)})
        if is_placed:
            return job
        devices, note = devices_here(job, machine)
        notes.extend([note] if note else [])
        return job.model_copy(update={"devices": devices})

    values = trained.job.model_dump(mode="json", exclude_unset=True)
    values |= {
        "output": str(folder),
        "name": "evaluate",
        "init_from": None if is_onnx else str(trained.file),
        "stop_after": None,
        # How a step is cut is training's business, and may not fit what is here.
        "micro_batch_size": None,
        "gradient_accumulation": None,
    }
    # Weights by themselves say nothing of training, and a plan wants to know.
    if values.get("epochs") is None and values.get("steps") is None:
        values["steps"] = 1
    if values.get("global_batch_size") is None and values.get("batch_per_gpu") is None:
        values["global_batch_size"] = _BATCH
    values["loader"] = {**(values.get("loader") or {}), "cache": "off"}  # samples are seen once
    ask_trace = partial(trace_recipe, launcher=launcher, is_evaluation=True)
    prepared = prepare(values, adapt=place, launcher=launcher, ask_trace=ask_trace)
    if prepared.plan.batch.num_test_samples.value == 0:
        raise UserError(_no_test_split(trained.job.recipe))
    plan = plan_evaluation(
        prepared.plan,
        prepared.job,
        trained=trained.plan,
        trained_job=trained.trained_job,
    )
    # Notes of the planner are about training, which this is not.
    warnings = [finding for finding in prepared.findings if finding.severity == "warning"]
    findings = [*trained.findings, *trained.changes(), *notes, *warnings]
    return replace(prepared, plan=plan, findings=[]), findings


_BATCH = 32
_ONE_CPU = {"gpus": None, "cpu": 1, "backend": "auto"}


class _Listener:
    """Collects what the ranks say."""

    def __init__(self) -> None:
        self.found: event_kinds.Evaluated | None = None
        self.examples: list[ModelSample] = []
        self.media: list[MediaWritten] = []

    def take(self, event: Event) -> None:
        match event.body:
            case event_kinds.Evaluated() as found:
                self.found = found
            case Samples(samples=samples):
                self.examples = samples
            case MediaWritten() as written:
                self.media.append(written)


def _report(
    trained: Trained,
    prepared: Prepared,
    heard: _Listener,
    notes: list[Finding],
    run: RunDirectory,
) -> Evaluated:
    assert heard.found is not None
    plan = prepared.plan
    metrics = heard.found.metrics
    recorded = trained.recorded
    is_onnx = trained.file.suffix == ".onnx"
    if recorded is not None and is_onnx:
        # A file gives what the recipe exports, from which not every figure can be had.
        recorded = {name: value for name, value in recorded.items() if name in metrics}
    is_same, difference = compare_recorded(metrics, recorded)
    found = [difference] if difference is not None and not trained.is_rounded else []
    ranks, device = plan.devices.ranks.value, plan.devices.device.value
    unit = {"cuda": "GPU", "cpu": "CPU process"}.get(device, device)
    plural = "" if ranks == 1 else "es" if unit.endswith("s") else "s"
    done = Evaluated(
        title=trained.title,
        file=trained.file,
        recipe=trained.job.recipe,
        step=trained.step,
        weights=trained.weights,
        metrics=metrics,
        samples=heard.found.samples,
        seconds=heard.found.seconds,
        where=f"{ranks} {unit}{plural}, {plan.numerics.precision.value}",
        recorded=dict(recorded) if recorded is not None else None,
        is_same=is_same if is_same or not trained.is_rounded else None,
        next_benchmark=None if is_onnx else prepared.trace.default_benchmark,
        examples=heard.examples,
        run=trained.run.path if trained.run is not None else None,
        findings=[*notes, *found],
    )
    return record_in_run(
        trained,
        done,
        [
            {"path": run.path / one.file, "name": one.name, "caption": one.caption}
            for one in heard.media
        ],
    )


def compare_recorded(
    found: Mapping[str, float], recorded: Mapping[str, float] | None
) -> tuple[bool | None, Finding | None]:
    """Whether training found the same to the last bit, and a warning where it is not even near."""
    if recorded is None:
        return None, None
    if dict(found) == dict(recorded):
        return True, None
    far = [
        f"{name} is {found.get(name)} now and was {recorded.get(name)}"
        for name in {**recorded, **found}
        if not _is_near(found.get(name), recorded.get(name))
    ]
    if not far:
        return False, None
    return False, Finding(
        slug="evaluation-differs",
        what="the figures are not those that training recorded for these weights",
        why="; ".join(far),
        fix="the same recipe, options and data as in training give the same; a quantized or "
        "half-precision file gives its own",
        severity="warning",
    )


def _is_near(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return False
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return one == other or abs(one - other) <= _ROUNDING * max(abs(one), abs(other))


def record_in_run(
    trained: Trained, done: Evaluated, media: Sequence[Mapping[str, Any]] = ()
) -> Evaluated:
    """Write what was found into the events of the run, where there is one, and copy its pictures
    and films (path, name, caption) to where `watch` looks for them."""
    run = trained.run
    if run is None:
        return done
    events = EventWriter(run.events, EVALUATOR)
    try:
        events.write(
            event_kinds.Evaluated(
                file=done.file.relative_to(run.path).as_posix(),
                step=done.step,
                weights=done.weights,
                metrics=done.metrics,
                samples=done.samples,
                seconds=done.seconds,
                is_same=done.is_same,
                benchmark=done.benchmark,
                tasks=done.tasks,
                baselines=done.baselines,
            )
        )
        if done.examples:
            events.write(Samples(step=done.step, samples=done.examples))
        copies = []
        for one in media:
            path, name, step = Path(one["path"]), one["name"], done.step or 0
            content = path.read_bytes()
            file = write_media(run, step=step, name=name, suffix=path.suffix, content=content)
            events.write(MediaWritten(step=step, name=name, file=file, caption=one["caption"]))
            copies.append(run.path / file)
    finally:
        events.close()
    done = replace(done, media=done.media or copies)
    if is_held(run):  # the command that trains in it feeds its sinks
        return done
    settings = replace(sinks_of(trained.job.logging), is_eager=False)
    return replace(done, findings=[*done.findings, *SinkProcess(run, settings).close()])


def _stopped(reason: str) -> Finding:
    return Finding(
        slug="evaluate-stopped",
        what="stopped before the test split was through",
        why=reason,
        fix="run it again",
    )


def _no_test_split(recipe: str) -> Finding:
    return Finding(
        slug="no-test-split",
        what="there is nothing to evaluate on: the test split has 0 samples",
        why=f"recipe = {recipe}; its data('test') is empty with these options",
        fix="options that give it a test split, or --benchmark NAME where the recipe has one",
    )
