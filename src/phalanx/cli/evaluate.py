"""`phalanx evaluate`: how good a trained model is, on its test split or in a benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.options.job import (
    CHECKPOINT,
    CPU,
    GPUS,
    OPTIONS,
    RECIPE_OF_WEIGHTS,
    RUNS,
    WEIGHTS,
    collect_overrides,
    name_and_overrides,
)
from phalanx.errors import Finding, UserError, format_seconds, short_path
from phalanx.output import console

if TYPE_CHECKING:
    from phalanx.run.event_kinds import BenchmarkTask
    from phalanx.verbs.evaluate import Evaluated


_NO_BENCHMARK = "none"
_SHOWN_EXAMPLES = 2


def evaluate(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|CHECKPOINT|WEIGHTS",
            help="A run directory or its name, a checkpoint folder, or a file: .safetensors, .pt, "
            ".onnx; default: the newest run.",
        ),
    ] = None,
    overrides: Annotated[list[str] | None, OPTIONS] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            "--benchmark",
            metavar="NAME",
            help="Run the model in the loop, in a benchmark of its recipe, instead of its test "
            "split; `none`: the test split alone, where the recipe would run one after it.",
        ),
    ] = None,
    tasks: Annotated[
        int | None, typer.Option("--tasks", min=1, help="So many tasks of the benchmark.")
    ] = None,
    episodes: Annotated[
        int | None, typer.Option("--episodes", min=1, help="Roll-outs of each task.")
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option("--max-steps", min=1, help="Steps after which a roll-out ends.")
    ] = None,
    horizon: Annotated[
        int | None,
        typer.Option("--horizon", min=1, help="Actions taken before the model is asked again."),
    ] = None,
    video: Annotated[
        Path | None, typer.Option("--video", metavar="DIR", help="Film the roll-outs into DIR.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Of the roll-outs; default: the job's.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Processes for roll-outs; default: one per core."),
    ] = None,
    checkpoint: Annotated[str, CHECKPOINT] = "best",
    weights: Annotated[str | None, WEIGHTS] = None,
    recipe: Annotated[str | None, RECIPE_OF_WEIGHTS] = None,
    gpus: Annotated[str | None, GPUS] = None,
    cpu: Annotated[int | None, CPU] = None,
    output: Annotated[Path, RUNS] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> int:
    """Evaluate a trained model: its whole test split, exactly, on any number of devices.

    What training recorded for the same weights is shown beside it. An ONNX file is run by
    onnxruntime on the same samples. With `--benchmark` the model acts: success by task, with its
    95 % interval. Options of roll-outs without it mean the recipe's usual benchmark.

    Examples: phalanx evaluate | phalanx evaluate runs/first --checkpoint latest --gpus all |
    phalanx evaluate model.onnx | phalanx evaluate best.pt --recipe digits width=64
    """
    from phalanx.prepare.trained_model import Which
    from phalanx.verbs.closed_loop import Benchmark, benchmark_trained
    from phalanx.verbs.evaluate import evaluate_trained

    rollouts = Benchmark(
        benchmark,
        tasks=tasks,
        episodes=episodes,
        max_steps=max_steps,
        horizon=horizon,
        video=video,
        seed=seed,
        workers=workers,
    )
    model, words = name_and_overrides(model, overrides)
    placed = {name: value for name, value in (("gpus", gpus), ("cpu", cpu)) if value is not None}
    given = [*collect_overrides(placed)[0], *words]
    which = Which(checkpoint=checkpoint, weights=weights, recipe=recipe, output=output)
    on_split = partial(evaluate_trained, model, given, **which)
    in_loop = partial(benchmark_trained, model, given, **which)
    if benchmark == _NO_BENCHMARK:
        _refuse(rollouts.flags)
        return _run(on_split, None, as_json=as_json)
    if benchmark is not None or rollouts.flags:
        return _run(partial(in_loop, benchmark=rollouts), None, as_json=as_json)
    return _run(on_split, in_loop, as_json=as_json)


def _run(
    run: Callable[..., Evaluated], in_loop: Callable[..., Evaluated] | None, *, as_json: bool
) -> int:
    """Evaluate and show it; `in_loop` runs the benchmark that the recipe wants to follow."""
    with console.working("starting") as say:
        done = run(say=say)
        if not as_json:
            _show(done)
            console.show_findings(done.findings)
        after = None
        if in_loop is not None and done.next_benchmark is not None:
            after = _follow(in_loop, done.next_benchmark, say)
    if as_json:
        console.say_json(done.to_json() | ({"after": after.to_json()} if after else {}))
    elif after is not None:
        _show(after)
        console.show_findings(after.findings)
    return 0


def _follow(
    in_loop: Callable[..., Evaluated], benchmark: str, say: Callable[[str], None]
) -> Evaluated | None:
    """What the recipe wants to be run after the test split. Where that cannot be done the figures
    of the test split stand by themselves, and why is a warning."""
    from phalanx.verbs.closed_loop import Benchmark

    try:
        return in_loop(benchmark=Benchmark(benchmark), say=say)
    except UserError as error:
        console.show_findings([replace(f, severity="warning") for f in error.findings])
        return None


def _refuse(flags: str) -> None:
    """Options of a benchmark that is not wanted."""
    if flags:
        raise UserError(
            Finding(
                slug="no-benchmark",
                what=f"{flags}: of no use with --benchmark none",
                why="the test split is evaluated as a whole, once",
                fix="--benchmark NAME; `phalanx recipes show RECIPE` lists those of a recipe",
            )
        )


def _show(done: Evaluated) -> None:
    from phalanx.output.progress import describe_sample

    step = "" if done.step is None else f", step {done.step}"
    console.say(f"{Path(done.recipe).name}: {done.title}{step}")
    if done.benchmark is not None:
        _show_tasks(done)
        return
    header = ("metric", "now", "in training") if done.recorded is not None else ("metric", "now")
    rows = [
        (name, _figure(value), *([_figure((done.recorded or {}).get(name))] * (len(header) - 2)))
        for name, value in done.metrics.items()
    ]
    console.table(rows, header=header, right=tuple(range(1, len(header))))
    console.say(f"{done.samples:,} samples in {format_seconds(done.seconds)} on {done.where}")
    for example in done.examples[:_SHOWN_EXAMPLES]:
        line = describe_sample(example, console.stdout().width - 2)
        console.stdout().print(f"  {line}", style="dim", markup=False)
    for path in done.media:
        console.say(f"wrote {short_path(path)}")
    if done.is_same:
        console.say("the same as in training, to the last bit")
    elif done.is_same is False and all(f.slug != "evaluation-differs" for f in done.findings):
        console.say("the same as in training but for rounding")


def _show_tasks(done: Evaluated) -> None:
    names = list(dict.fromkeys(name for task in done.tasks for name in task.figures))
    rows = []
    for task in done.tasks:
        rows.append(_task_row(task.task, task, names))
        for whose, others in done.baselines.items():
            rows += [
                _task_row(f"  {whose}", other, names) for other in others if other.task == task.task
            ]
    console.table(
        rows,
        title=done.benchmark,
        header=("task", "successes", "success", "95 % interval", *names),
        right=tuple(range(1, 4 + len(names))),
    )
    whole = ", ".join(f"{name} {_figure(value, 4)}" for name, value in done.metrics.items())
    console.say(f"over all: {whole}; {format_seconds(done.seconds)} on {done.where}")
    for path in done.media:
        console.say(f"wrote {short_path(path)}")


def _task_row(title: str, task: BenchmarkTask, figures: list[str]) -> tuple[str, ...]:
    return (
        title,
        f"{task.successes} of {task.episodes}",
        f"{100 * task.rate:.1f} %",
        f"{100 * task.low:.1f} - {100 * task.high:.1f} %",
        *(_figure(task.figures.get(name), 4) for name in figures),
    )


def _figure(value: float | None, digits: int = 6) -> str:
    return "-" if value is None else f"{value:.{digits}g}"
