"""How samples reach the model: loader processes, page-locked memory, data kept on the device."""

from __future__ import annotations

from math import ceil

from phalanx.errors import format_bytes, format_seconds
from phalanx.job.schema import Job
from phalanx.machine import Machine
from phalanx.planner.choices.micro_batch import Predict
from phalanx.planner.memory.budget import describe_room, room_for
from phalanx.planner.memory.prediction import predict_parts, with_memory
from phalanx.planner.schema.placement import Placement
from phalanx.planner.schema.plan import Decision, Plan
from phalanx.planner.schema.trace import FetchTime, Trace

_WITHOUT_FORECAST = 4  # guide value for CUDA: min(4, cores)
_QUICK_FETCH_S = 0.002  # about what passing a batch between processes costs
_MARGIN = 1.5  # samples differ, predictions too, and loader processes share the cores' caches
_KEPT_SHARE = 0.25  # of the memory that the plan leaves free, for data on the device


def choose_workers(
    job: Job,
    placement: Placement,
    machine: Machine,
    *,
    fetch: FetchTime | None,
    micro: int,
    step: tuple[int, float] | None = None,
    are_arrays: bool = False,
) -> Decision[int]:
    """Loader processes per rank; `step`: micro-batches of a step on one rank, and seconds that it
    is predicted to take when samples are there."""
    if job.loader.workers != "auto":
        return Decision(job.loader.workers, f"loader.workers = {job.loader.workers}")
    device = placement.device.value
    if device != "cuda":
        return Decision(0, f"on {device} the cores that would load are the ones that compute")
    if are_arrays:
        return Decision(0, "arrays in memory: the training process gathers many micro-batches")
    if fetch is not None and fetch.at(micro) < _QUICK_FETCH_S:
        took = f"fetching {micro} samples takes {1000 * fetch.at(micro):.2f} ms"
        return Decision(0, f"{took}: a loader process would cost more than it saves")
    share = machine.cpu.usable_cores // placement.node_ranks
    if fetch is None or step is None:
        count = min(_WITHOUT_FORECAST, share)
        return Decision(count, f"min({_WITHOUT_FORECAST}, {share} CPU cores per rank)")
    most = share - (share > 1)  # one core for the training process
    fetch_s, step_s = step[0] * fetch.at(micro), step[1]
    needed = max(1, ceil(_MARGIN * fetch_s / step_s))
    sum_of = (
        f"{_MARGIN:g} x {format_seconds(fetch_s)} to fetch a step's samples / "
        f"{format_seconds(step_s)} to compute it = {needed}"
    )
    if needed <= most:
        return Decision(needed, sum_of)
    return Decision(most, f"{share} CPU cores per rank, less one that trains; wanted: {sum_of}")


def choose_pin_memory(job: Job, device: str) -> Decision[bool]:
    """Page-locked host memory."""
    asked = job.loader.pin_memory
    if asked == "auto":
        return Decision(
            device == "cuda",
            "copies to CUDA overlap with computing"
            if device == "cuda"
            else f"{device} does not use it",
        )
    return Decision(
        asked and device == "cuda",
        f"loader.pin_memory = {asked}"
        + ("" if device == "cuda" else f", ignored: {device} does not use it"),
    )


def choose_loading(
    job: Job, machine: Machine, placement: Placement, trace: Trace, plan: Plan, predict: Predict
) -> Plan:
    """The plan with what depends on its step time and on the memory that it leaves free."""
    if plan.loading.workers.value > 0 and job.loader.workers == "auto":
        forecast = predict(plan) if trace.fetch_time() is not None else None
        if forecast is not None:
            workers = choose_workers(
                job,
                placement,
                machine,
                fetch=trace.fetch_time(),
                micro=plan.batch.micro_batch_size.value,
                step=(plan.batch.accumulation.value, forecast.step_s - forecast.data_s),
            )
            plan = plan.replace(workers=workers)
    return _choose_data_on(trace, plan)


def _choose_data_on(trace: Trace, plan: Plan) -> Plan:
    """The plan with arrays in memory kept on the device, or not."""

    def on_host(reason: str) -> Plan:
        return plan.replace(data_on=Decision("host", reason))

    size = trace.array_bytes
    if size is None:
        return plan
    if plan.devices.device.value != "cuda":
        return on_host(f"{plan.devices.device.value} computes from the host's memory")
    if plan.loading.workers.value > 0:
        return on_host(f"{plan.loading.workers.value} loader processes fetch them")
    used, ranks = plan.predicted.memory_bytes.value, plan.devices.ranks.value
    if used is None or plan.devices.device_bytes is None or predict_parts(plan).activations is None:
        return on_host("how much memory the step leaves free is not known")
    free = max(0, room_for(plan.devices.device_bytes, ranks) - used)
    allowed = int(_KEPT_SHARE * free)
    sum_of = (
        f"arrays of {format_bytes(size)}, {_KEPT_SHARE:.0%} of what the step leaves free is "
        f"{format_bytes(allowed)} ({describe_room(plan.devices.device_bytes, ranks)} less "
        f"{format_bytes(used)})"
    )
    if size > allowed:
        return on_host(sum_of)
    return with_memory(plan.replace(data_on=Decision("device", sum_of), device_data_bytes=size))
