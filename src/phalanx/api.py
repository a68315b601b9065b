"""Phalanx from Python: `check`, `plan`, `estimate`, `train`, `launch`, `verify`, `bench`,
`evaluate`, `export`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from phalanx.diagnose.compare import TOLERANCE
from phalanx.diagnose.examine import Diagnosis, examine
from phalanx.errors import Finding, UserError
from phalanx.job import Override
from phalanx.machine import Machine, check_machine, probe_machine
from phalanx.output import console
from phalanx.output.progress import RunView
from phalanx.output.script_view import ScriptView
from phalanx.output.script_view import show_end as show_script_end
from phalanx.planner.schema.plan import Plan
from phalanx.prepare.job import Source
from phalanx.prepare.plan import other_machine
from phalanx.prepare.trained_model import Which
from phalanx.run.directory import find_run
from phalanx.scripts.request import ScriptRequest, prepare_script
from phalanx.verbs.bench import Bench
from phalanx.verbs.bench import bench as _measure
from phalanx.verbs.closed_loop import Benchmark, benchmark_trained
from phalanx.verbs.estimate import STEPS, Estimate, estimate_job
from phalanx.verbs.evaluate import Evaluated, evaluate_trained
from phalanx.verbs.export import Export, Settings, export_trained
from phalanx.verbs.launch import ScriptResult
from phalanx.verbs.launch import launch as _launch
from phalanx.verbs.plan import plan as _plan
from phalanx.verbs.train import Hooks, Result
from phalanx.verbs.train import train as _train
from phalanx.verbs.verify import Verification, verify_job


def check(output: str | Path = "runs") -> tuple[Machine, list[Finding]]:
    """What there is on this machine, and what is wrong with it."""
    machine = probe_machine(Path(output))
    return machine, check_machine(machine)


def plan(
    job: Source, *overrides: str, machine: str | None = None, fresh: bool = False, **keys: Any
) -> Plan:
    """What training a job would do, here or on a machine described in words; `fresh` asks the
    recipe also when its answer is remembered.

    `plan("digits", epochs=3)`, `plan("digits", machine="8x A100-80")`; raises UserError."""
    return _plan(
        job, _overrides(overrides, keys), machine=other_machine(machine), is_fresh=fresh
    ).plan


def estimate(
    job: Source = "digits",
    *overrides: str,
    gpus: int | None = None,
    gpu: str | None = None,
    dataset_size: int | None = None,
    step_time: float | None = None,
    steps: Sequence[int] = STEPS,
    price: float | None = None,
    **keys: Any,
) -> Estimate:
    """How long a job takes on `gpus` cards named `gpu`, or on those that are here, what that saves
    against one, and what it costs at a price per GPU and hour.

    `estimate("digits", gpus=16, gpu="RTX 2080", epochs=100).total_s`; raises UserError."""
    found, _ = estimate_job(
        job,
        _overrides(overrides, keys),
        gpus=gpus,
        gpu=gpu,
        dataset_size=dataset_size,
        step_time=step_time,
        steps=steps,
        price=price,
    )
    return found


def train(
    job: Source | None = None, *overrides: str, resume: str | Path | None = None, **keys: Any
) -> Result:
    """Train a job to its end. `train("digits", epochs=3)`; raises UserError if it cannot start or
    if a rank fails."""
    result = _train(
        job,
        _overrides(overrides, keys),
        resume=str(resume) if resume is not None else None,
        hooks=Hooks(
            on_finding=lambda finding: console.show_findings([finding]),
            say=console.say,
            show=RunView,
        ),
    )
    if result.status == "failed":
        raise UserError(result.findings, exit_code=result.exit_code)
    return result


def launch(script: str | Path, *arguments: str, quiet: bool = False, **keys: Any) -> ScriptResult:
    """Run an unmodified training script to its end, on several ranks; `keys` are those of
    `ScriptRequest`, named as the options of `phalanx launch`.

    `launch("train.py", "--epochs", "3", cpu=2).loss`; raises UserError if it cannot start. Whether
    it failed is said by the result's `exit_code`."""
    for name in {"output", "accelerate_config", "deepspeed"} & keys.keys():
        keys[name] = Path(keys[name]) if keys[name] is not None else None
    request = ScriptRequest(script=str(script), arguments=list(arguments), **keys)
    result = _launch(prepare_script(request), show=partial(ScriptView, is_quiet=quiet))
    show_script_end(result)
    return result


def verify(
    job: Source,
    *overrides: str,
    ranks: int = 2,
    steps: int = 5,
    tolerance: float = TOLERANCE,
    keep: str | Path | None = None,
    **keys: Any,
) -> Verification:
    """Prove that training on `ranks` ranks is training on one. `verify("digits", ranks=4).passed`;
    raises UserError if the job is wrong or a rank fails."""
    return verify_job(
        job,
        _overrides(overrides, keys),
        ranks=ranks,
        steps=steps,
        tolerance=tolerance,
        keep=Path(keep) if keep is not None else None,
    )


def bench(
    job: Source | None = None, *overrides: str, micro_batches: Sequence[int] = (), **keys: Any
) -> Bench:
    """Measure this machine, and a job's real steps on it. `bench("digits").bottleneck`; `plan`
    predicts with it from then on. Raises UserError if the job is wrong or a rank fails."""
    return _measure(job, _overrides(overrides, keys), micro_batches=micro_batches)


def evaluate(
    model: str | Path | None = None,
    *overrides: str,
    benchmark: Benchmark | str | None = None,
    checkpoint: str | int = "best",
    weights: str | None = None,
    recipe: str | None = None,
    output: str | Path = "runs",
    **keys: Any,
) -> Evaluated:
    """How good a trained model is on its test split, or in a closed-loop benchmark: a run (the
    newest if none is named), a checkpoint folder, a file of weights or an ONNX file.

    `evaluate("runs/first").metrics`, `evaluate(run, benchmark=Benchmark("reach", episodes=50))`;
    raises UserError."""
    which = Which(checkpoint=str(checkpoint), weights=weights, recipe=recipe, output=Path(output))
    reference = str(model) if model is not None else None
    if benchmark is None:
        return evaluate_trained(reference, _overrides(overrides, keys), **which)
    asked = Benchmark(benchmark) if isinstance(benchmark, str) else benchmark
    return benchmark_trained(reference, _overrides(overrides, keys), benchmark=asked, **which)


def export(
    model: str | Path | None = None,
    *overrides: str,
    to: str = "safetensors",
    half: bool = False,
    int8: bool = False,
    dynamic: bool = False,
    batch: int = 1,
    opset: int | None = None,
    checkpoint: str | int = "best",
    out: str | Path | None = None,
    weights: str | None = None,
    recipe: str | None = None,
    output: str | Path = "runs",
    **keys: Any,
) -> Export:
    """Write a trained model (the newest run's if none is named) as files that other tools read and
    run. `export("runs/first", to="onnx", dynamic=True).compared`; raises UserError."""
    return export_trained(
        str(model) if model is not None else None,
        _overrides(overrides, keys),
        form=to,
        settings=Settings(half=half, int8=int8, dynamic=dynamic, batch=batch, opset=opset),
        checkpoint=str(checkpoint),
        out=Path(out) if out is not None else None,
        weights=weights,
        recipe=recipe,
        output=Path(output),
    )


def doctor(run: str | Path | None = None, output: str | Path = "runs") -> Diagnosis:
    """Why a run died or is slow, from its directory alone; without one: the newest."""
    reference = None if run is None else str(run)
    return examine(find_run(reference, Path(output), command="phalanx doctor", with_scripts=True))


def _overrides(texts: Sequence[str], keys: dict[str, Any]) -> list[Override | str]:
    return [*texts, *(Override(key, value, "python") for key, value in keys.items())]
