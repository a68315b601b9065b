"""`phalanx bench`: how fast this machine is, and a job on it; `plan` then predicts with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.options.job import GivenJob, whole_numbers, with_job_options
from phalanx.errors import Finding, UserError, format_bytes, format_seconds
from phalanx.output import console

if TYPE_CHECKING:
    from phalanx.machine.calibration import Calibration
    from phalanx.planner.time.bench_points import Measured
    from phalanx.verbs.bench import Bench


@with_job_options
def bench(
    given: GivenJob,
    micro: Annotated[
        str | None,
        typer.Option(
            "--micro",
            metavar="N,N",
            help="Micro-batches to measure; default: the planned one, half, a quarter, double.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was measured.")] = False,
) -> int:
    """Measure this machine and a job's real steps; `plan` predicts with it from then on.

    Without a job: matrix products, memory, small operators, all-reduce between the ranks. With one:
    also its steps at a few micro-batches, where their time goes, and what to change.

    Examples: phalanx bench | phalanx bench digits | phalanx bench job.yaml --gpus 1 --micro 8,16,32
    """
    from phalanx.verbs.bench import bench as measure

    sizes = parse_micro_batches(micro)
    with console.working("starting") as say:
        done = measure(given.job, given.overrides, micro_batches=sizes, say=say)
    if as_json:
        record = done.to_json()
        record["findings"] = [*(note.to_json() for note in given.notes), *record["findings"]]
        console.say_json(record)
        return 0
    _show_machine(done.calibration)
    if done.recipe is not None:
        _show_steps(done)
        _show_predicted(done)
    console.say(f"stored for `phalanx plan`: {done.stored}")
    console.show_findings([*given.notes, *done.findings])
    return 0


def parse_micro_batches(text: str | None) -> list[int]:
    """`8,16` -> [8, 16]."""
    if text is None:
        return []
    if (numbers := whole_numbers(text)) is not None:
        return numbers

    raise UserError(
        Finding(
            slug="bench-micro",
            what=f"`{text}` is no list of micro-batches",
            why=f"--micro {text}; numbers of samples with commas between them",
            fix="--micro 8,16,32",
        )
    )


def _show_machine(measured: Calibration) -> None:
    from phalanx.machine.catalogue import match_gpu

    known = next(iter(match_gpu(measured.device)), None)
    peaks = {
        "fp32": known.fp32_tflops if known else None,
        "tf32": known.tf32_tflops if known else None,
        "bf16": known.half_tflops if known else None,
        "fp16": known.half_tflops if known else None,
    }
    rows = [
        (f"matrix product, {name}", f"{rate:,.3g} TFLOP/s", _share(rate, peaks.get(name)))
        for name, rate in measured.product_tflops.items()
    ]
    if measured.copy_gb_per_s is not None:
        peak = known.memory_gb_per_s if known else None
        rate = measured.copy_gb_per_s
        rows.append(("copy, read and written", f"{rate:,.0f} GB/s", _share(rate, peak)))
    if measured.host_call_us is not None:
        rows.append(("host, per small operator", f"{measured.host_call_us:.2f} us", "-"))
    if measured.kernel_us is not None:
        rows.append(("device, per small kernel", f"{measured.kernel_us:.2f} us", "-"))
    if measured.context_bytes is not None:
        rows.append(("held besides tensors", format_bytes(measured.context_bytes), "-"))
    for link in measured.links:
        what = f"all-reduce, {link.ranks} ranks, {link.backend}"
        figure = f"{link.gb_per_s:,.3g} GB/s + {link.latency_us:,.0f} us"
        rows.append((what, figure, "-"))
    console.table(
        rows,
        title=f"{measured.device}, torch {measured.torch_version}",
        header=("", "measured", "of the catalogue's"),
        right=(1, 2),
    )


def _share(rate: float, peak: float | None) -> str:
    return f"{round(100 * rate / peak)} % of {peak:,.3g}" if peak else "-"


def _show_steps(done: Bench) -> None:
    plan = done.plan
    recipe = (done.recipe or "").rpartition("/")[2]
    ranks, device = plan.devices.ranks.value, plan.devices.device.value
    console.table(
        [_row(measured) for measured in done.measured],
        title=f"{recipe}: one step on {ranks} rank{'s' * (ranks > 1)} ({device}, "
        f"{plan.parallel.strategy.value}, {plan.numerics.precision.value})",
        header=(
            *("micro-batch", "step", "samples/s", "data", "compute", "communication"),
            *("overhead", "allocated", "process"),
        ),
        right=tuple(range(9)),
    )
    for note in dict.fromkeys(note for measured in done.measured for note in measured.notes):
        console.say(f"mind: {note}")
    found, fastest = done.bottleneck, done.fastest
    if found is not None:
        console.say(f"bottleneck: {found.part}; {found.what}")
        console.say(f"to change: {found.change or 'nothing that was measured here'}")
    if fastest is not None:
        from phalanx.planner.time.bottleneck import throughput

        console.say(
            f"most samples per second: micro-batch {fastest.micro_batch}, "
            f"{throughput(fastest):,.0f}"
        )


def _row(measured: Measured) -> tuple[str, ...]:
    from phalanx.planner.time.bottleneck import throughput

    step = measured.step
    if step is None:
        why = {"memory": "out of memory", "samples": "too few samples"}[measured.missing or ""]
        return (str(measured.micro_batch), why, *7 * ("-",))
    parts = (step.data_s, step.compute_s, step.communication_s, step.overhead_s)
    return (
        str(step.micro_batch),
        format_seconds(step.step_s),
        f"{throughput(step):,.0f}",
        *(f"{round(100 * part / step.step_s)} %" for part in parts),
        _bytes(step.allocated_bytes),
        _bytes(step.process_bytes),
    )


def _bytes(count: int | None) -> str:
    return "-" if count is None else format_bytes(count)


def _show_predicted(done: Bench) -> None:
    rows = []
    for step in done.steps:
        made = done.predicted[step.micro_batch]
        seconds = made.predicted.step_s.value
        rows.append(
            (
                str(step.micro_batch),
                "-" if seconds is None else format_seconds(seconds),
                format_seconds(step.step_s),
                _error(seconds, step.step_s),
                _bytes(made.predicted.memory_bytes.value),
                _bytes(step.allocated_bytes),
                _error(made.predicted.memory_bytes.value, step.allocated_bytes),
                _bytes(made.predicted.process_bytes.value),
                _bytes(step.process_bytes),
                _error(made.predicted.process_bytes.value, step.process_bytes),
            )
        )
    if rows:
        console.table(
            rows,
            title="predicted before, and measured",
            header=(
                *("micro-batch", "step", "measured", "error"),
                *("allocated", "measured", "error", "process", "measured", "error"),
            ),
            right=tuple(range(10)),
        )


def _error(predicted: float | None, measured: float | None) -> str:
    if predicted is None or not measured:
        return "-"
    return f"{100 * (predicted / measured - 1):+.0f} %"
