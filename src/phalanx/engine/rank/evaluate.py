"""All that a rank of `phalanx evaluate` does: put the model together as for training, with weights
that were trained, and evaluate it once. An ONNX file takes the model's place."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import torch

from phalanx.engine.data.micro_batches import Fetcher, Request
from phalanx.engine.model.exported_forward import find_exported, stand_in
from phalanx.engine.model.onnx_model import OnnxModel
from phalanx.engine.process.group import Process
from phalanx.engine.rank.assembly import Assembly
from phalanx.engine.strategies.base import Strategy
from phalanx.engine.strategies.precision import Precision
from phalanx.engine.strategies.single import Single
from phalanx.engine.training.evaluation import Evaluator
from phalanx.errors import ExitCode
from phalanx.job.schema import Job
from phalanx.planner.schema.micro_batches import Slot
from phalanx.planner.schema.plan import Plan
from phalanx.recipe.interface import Data, Recipe
from phalanx.run.directory import RunDirectory
from phalanx.run.event_kinds import (
    Evaluated,
    FindingMade,
    MediaWritten,
    ModelSample,
    Outcome,
    Samples,
)
from phalanx.run.events import EventWriter
from phalanx.run.media import write_media

ONNX = ".onnx"


def run_evaluation(
    run: RunDirectory,
    job: Job,
    plan: Plan,
    process: Process,
    recipe: Recipe,
    events: EventWriter,
    path: Path,
) -> Outcome:
    """Evaluate the model in a file; the first rank writes what was found."""
    recipe.splits = ("test",)
    is_onnx = path.suffix == ONNX
    strategy, data = (
        _around_file(recipe, plan, process, path)
        if is_onnx
        else _as_trained(job, plan, process, recipe, events)
    )
    evaluator = Evaluator(
        recipe,
        data,
        plan=plan,
        strategy=strategy,
        prefetch=job.loader.prefetch,
        seed=job.seed,
        has_samples=not is_onnx,  # a recipe may make them with more than a forward
    )
    if plan.loading.workers.value > 0:
        with process.resting() if process.world > 1 else nullcontext():
            evaluator.start()
    done = evaluator.run()
    if process.is_first:
        events.write(
            Evaluated(
                file=path.name,
                step=None,
                weights="",
                metrics=done.metrics,
                samples=done.samples,
                seconds=round(done.seconds, 6),
                is_same=None,
                benchmark=None,
                tasks=[],
                baselines={},
            )
        )
        if done.made:
            events.write(Samples(samples=[ModelSample(*map(str, sample)) for sample in done.made]))
        charts, findings = evaluator.charts(done)
        for name, suffix, content, caption in (*done.media, *charts):
            file = write_media(run, step=0, name=name, suffix=suffix, content=content)
            events.write(MediaWritten(name=name, file=file, caption=str(caption or "")))
        for finding in findings:
            events.write(FindingMade(finding=finding))
    return Outcome(
        status="finished", step=None, reason="evaluated", findings=[], exit_code=int(ExitCode.OK)
    )


def _as_trained(
    job: Job, plan: Plan, process: Process, recipe: Recipe, events: EventWriter
) -> tuple[Strategy, Data]:
    """What trains, not trained: the same kernels give the same bits. The train split has no part in
    it, and may not be here."""
    parts = Assembly(
        job, plan, process, recipe=recipe, data=recipe.data("test"), is_evaluation=True
    )
    for finding in parts.findings if process.is_first else ():
        events.write(FindingMade(finding=finding))
    return parts.strategy, parts.test_data()


def _around_file(recipe: Recipe, plan: Plan, process: Process, path: Path) -> tuple[Strategy, Data]:
    file = OnnxModel(path, threads=plan.execution.threads.value)
    data = recipe.data("test")
    model = recipe.model().eval()  # its weights are not looked at, only how it is called
    slot = Slot(0, 0, min(2, len(data)))
    fetched = Fetcher(recipe, data, seed=0, is_shuffled=False)[Request(0, slot, is_training=False)]
    with torch.no_grad():
        exported = find_exported(recipe, model, fetched.batch)
    strategy = Single(recipe, stand_in(exported, file), process)
    strategy.precision = Precision("fp32", process.device)
    return strategy, data
