"""Makes the forecast of a plan: compute, exchange and data put together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from statistics import NormalDist
from typing import NamedTuple

from phalanx.job.schema import Job
from phalanx.job.strategies import facts_of
from phalanx.machine import Machine
from phalanx.machine.calibration import Calibration, MeasuredStep
from phalanx.planner.memory.deepspeed import BUCKET
from phalanx.planner.memory.shares import (
    Layout,
    layout_of,
    weights_of,
    whole_gradients,
    whole_weights,
)
from phalanx.planner.schema.footprint import COMPILED
from phalanx.planner.schema.forecast import Forecast
from phalanx.planner.schema.micro_batches import deal
from phalanx.planner.schema.operators import Operator
from phalanx.planner.schema.placement import Placement
from phalanx.planner.schema.plan import Plan
from phalanx.planner.schema.trace import Trace
from phalanx.planner.time.bench_points import measured_steps
from phalanx.planner.time.communication import (
    Exchange,
    Ring,
    exchange_ddp,
    exchange_sharded,
    make_ring,
)
from phalanx.planner.time.compile_gain import time_code
from phalanx.planner.time.corrections import Correction, correction
from phalanx.planner.time.offloading import SPREAD, time_offload
from phalanx.planner.time.rates import GRAPH_HOST_S, HOST_STEP_S, Rates
from phalanx.planner.time.roofline import Compute, time_accumulation, time_update
from phalanx.planner.time.untraced import probe_seconds

# Ranks wait for the slowest of them in every step; how much their times differ, as a standard
# deviation. At best as on quiet nodes with data in memory: 97.4 to 98 % are left on 8 A100
# (willgpaik, pytorch-ddp-bench; 0.02 / 1.42). At worst cards that differ by 8 % on average (arXiv
# 2208.11035, "Not All GPUs Are Created Equal": 0.08 / 1.13 = 0.07) on hosts whose own steps differ
# by 7 % (benchmarks/planner): the root of 0.07^2 + 0.07^2.
_JITTER = 0.05
_JITTER_BEST, _JITTER_WORST = 0.015, 0.10
# Other samples than those that were looked at may take another path through the model.
_SAMPLED = 1.5  # times the spread
# Checkpointed blocks call Python for each tensor that they would have kept, in forward and again in
# backward: the host's time grows by half (Gpt2 of benchmarks/planner: 52 ms for 33).
_HOOKED = 1.5


class Computing(NamedTuple):
    """One micro-batch, and the device and the host in a step of several."""

    one: Compute
    device_s: float
    host_s: float

    def corrected(self, factors: Correction) -> Computing:
        one = Compute(
            factors.device * self.one.forward_s,
            factors.device * self.one.backward_s,
            factors.host * self.one.host_s,
        )
        return Computing(one, factors.device * self.device_s, factors.host * self.host_s)


@dataclass(frozen=True)
class Forecaster:
    """All that a forecast needs besides the plan."""

    job: Job
    machine: Machine
    trace: Trace
    placement: Placement
    rates: Rates
    calibration: Calibration | None = None

    def __call__(self, plan: Plan) -> Forecast | None:
        """None where neither the operators are known nor steps were measured."""
        is_checkpointed = plan.execution.activation_checkpointing.value
        known = self.trace.checkpointed_operators if is_checkpointed else self.trace.operators
        precision = plan.numerics.precision.value
        traced = "bf16" if precision in ("bf16", "fp16") else "fp32"
        operators = known.get(traced + COMPILED * (plan.execution.compile.value == "on"))
        batch, ranks = plan.micro_batches, plan.devices.ranks.value
        slots = deal(batch.num_slots, 0, ranks)[1]
        micro = ceil(batch.global_batch_size / batch.num_slots)
        samples = min(batch.global_batch_size, slots * micro)
        found = self._predicted(plan, operators or [], micro, slots)
        if found is None:
            return None
        (one, device, host), spread, source = found
        loader, on_host = self._loader_s(plan, samples)
        host += on_host
        compute = self._together(device, host)
        gradient_bytes = self._gradient_bytes(plan)
        ring = make_ring(
            self.machine,
            self.placement.cards,
            ranks=ranks,
            nodes=self.placement.nodes,
            backend=plan.devices.backend.value,
            calibration=self.calibration,
        )
        exchange = self._exchange(plan, ring, one, slots, gradient_bytes)
        to_host = self._offload_s(plan, slots, gradient_bytes)
        exposed = exchange.exposed_s + exchange.slowed_s + to_host
        waiting = _JITTER * _slowest_of(ranks) * compute
        quick = _JITTER_BEST / _JITTER * waiting + exposed / (1 + ring.spread)
        slow = _JITTER_WORST / _JITTER * waiting + exposed * (1 + ring.spread)
        data = max(0.0, loader - (compute + exposed + waiting))
        parts = {
            "data": data,
            "communication": exposed,
            "host": host if host >= device else 0.0,
            "device": device if device > host else 0.0,
        }
        bottleneck = "data" if data > 0 else max(parts, key=lambda name: parts[name])
        step = compute + exposed + waiting + data
        share, to_host_share = (exposed - to_host) / step, to_host / step
        computing = (1 - share - to_host_share) * spread
        spread = computing + share * ring.spread + to_host_share * SPREAD
        duration = plan.batch.total_steps.value * step + self._evaluations_s(plan, one, micro)
        power = self.rates.board_w
        return Forecast(
            step_s=step,
            step_low_s=step / (1 + spread),
            step_high_s=step * (1 + spread),
            compute_s=compute,
            exposed_s=exposed,
            waiting_s=waiting,
            data_s=data,
            spread=spread,
            device_s=device,
            host_s=host,
            exchange_s=exchange.total_s + to_host,
            loader_s=loader,
            together_low_s=quick,
            together_high_s=slow,
            bottleneck=bottleneck,
            samples_per_s=batch.global_batch_size / step,
            duration_s=duration,
            energy_kwh=ranks * power * duration / 3.6e6 if power is not None else None,
            gpu_hours=ranks * duration / 3600,
            board_w=power or 0.0,
            flops_per_sample=_flops(self.trace.operators.get(traced) or [], micro),
            peak_flops=self._peak_flops(precision),
            source=f"{source}; {ring.text}" if ranks > 1 else source,
        )

    def _predicted(
        self, plan: Plan, operators: list[Operator], micro: int, slots: int
    ) -> tuple[Computing, float, str] | None:
        """Computing, its spread and where the rates are from: by operators, else as measured."""
        if operators:
            factors = self._correction(plan, operators, micro)
            computing = self._computing(plan, operators, micro, slots).corrected(factors)
            return computing, factors.spread, self.rates.source
        probed = probe_seconds(self._measured_steps(plan), micro)
        if probed is None or self.calibration is None:
            return None
        seconds, spread = probed
        one = Compute(seconds / 3, seconds * 2 / 3, 0.0)  # as in most models
        source = f"steps of this job, bench of {self.calibration.measured_at[:10]}"
        return Computing(one, slots * seconds, 0.0), spread, source

    def _peak_flops(self, precision: str) -> float:
        if self.rates.kind == "cpu" and self.calibration is None:
            return 0.0
        unit = "half" if precision in ("bf16", "fp16") else precision
        return 1e12 * self.rates.tflops[unit]

    def _measured_steps(self, plan: Plan) -> list[MeasuredStep]:
        """Of this job, on such a device."""
        if self.calibration is None or self.calibration.device != self.rates.driver_name:
            return []
        return measured_steps(self.calibration, plan)

    def _computing(
        self, plan: Plan, operators: list[Operator], micro: int, slots: int
    ) -> Computing:
        one = time_code(
            operators,
            micro,
            self.rates,
            plan.numerics.precision.value,
            is_turned=plan.execution.channels_last.value == "off",
        )
        if plan.execution.activation_checkpointing.value and plan.execution.compile.value == "off":
            one = replace(one, host_s=_HOOKED * one.host_s)
        gradient_bytes = self._gradient_bytes(plan)
        adding = (slots - 1) * time_accumulation(gradient_bytes, self.rates)
        device = slots * one.device_s + adding + self._update_s(plan)
        host = slots * one.host_s + self.rates.host * HOST_STEP_S
        if plan.execution.cuda_graph.value == "on":
            host = GRAPH_HOST_S
        return Computing(one, device, host)

    def _together(self, device_s: float, host_s: float) -> float:
        """On a CPU the host is the device; otherwise it runs ahead of it."""
        return device_s + host_s if self.rates.kind == "cpu" else max(device_s, host_s)

    def _correction(self, plan: Plan, operators: list[Operator], micro: int) -> Correction:
        """What measured steps of this job say about the prediction, and its spread."""
        is_sampled = self.trace.activations_sampled is not None
        spread = self.rates.spread * (_SAMPLED if is_sampled else 1.0)

        def predict(micro_batch: int, slots: int) -> tuple[float, float]:
            computing = self._computing(plan, operators, micro_batch, slots)
            return computing.device_s, computing.host_s

        is_one = self.rates.kind == "cpu"
        found = correction(self._measured_steps(plan), micro, predict, is_one=is_one)
        return found or Correction(1.0, 1.0, spread)

    def _gradient_bytes(self, plan: Plan) -> int:
        """Of the whole model, whatever a rank keeps of them."""
        return whole_gradients(weights_of(self.trace), self._layout(plan))

    def _layout(self, plan: Plan) -> Layout:
        strategy, precision = plan.parallel.strategy.value, plan.numerics.precision.value
        return layout_of(self.job, strategy=strategy, precision=precision, shards=1)

    def _offload_s(self, plan: Plan, slots: int, gradient_bytes: int) -> float:
        return time_offload(
            plan,
            self.placement.cards,
            weight_bytes=whole_weights(weights_of(self.trace), self._layout(plan)),
            gradient_bytes=gradient_bytes,
            state_copies=self._layout(plan).moments,
            slots=slots,
        )

    def _update_s(self, plan: Plan) -> float:
        job = self.job
        if plan.parallel.offload.value == "state" or "optimizer" in (
            plan.parallel.offload.value or ""
        ):
            return 0.0  # the CPU does it
        return time_update(
            self._gradient_bytes(plan) // plan.parallel.shard_ranks.value,
            state_copies=self._layout(plan).moments,
            has_clip=job.optimizer.clip_norm is not None,
            has_average=job.ema.decay is not None,
            is_scaled=plan.numerics.precision.value == "fp16",
            rates=self.rates,
        )

    def _loader_s(self, plan: Plan, samples: int) -> tuple[float, float]:
        """(what loader processes take for a step, what the training process itself takes)."""
        micro = plan.micro_batches.largest_slot  # fetched at a time
        line = self.trace.fetch_time()
        fetch = samples / micro * line.at(micro) if line is not None else 0.0
        workers = plan.loading.workers.value
        if workers == 0:
            return 0.0, fetch
        cores = max(1, self.machine.cpu.usable_cores // self.placement.node_ranks)
        return fetch / min(workers, cores), 0.0

    def _exchange(
        self, plan: Plan, ring: Ring, one: Compute, slots: int, gradient_bytes: int
    ) -> Exchange:
        if not facts_of(plan.parallel.strategy.value).is_sharded:
            bucket = round((self.job.ddp.bucket_mb or 25) * 2**20)  # torch's own are of 25 MiB
            return exchange_ddp(ring, gradient_bytes, bucket, one.backward_s)
        is_half = plan.numerics.precision.value in ("bf16", "fp16")
        weights = self.trace.parameter_bytes // (2 if is_half else 1)
        stage = plan.parallel.zero_stage.value or 3
        # DeepSpeed's gradients are in the precision of its weights, below stage 3 in buckets.
        blocks = max(1, weights // BUCKET) if stage < 3 else self.trace.num_blocks + 1
        # A job may ask for more than there are: a Finding says so, beside what is predicted.
        groups = max(1, plan.devices.ranks.value // plan.parallel.shard_ranks.value)
        inner = make_ring(
            self.machine,
            self.placement.cards,
            ranks=plan.parallel.shard_ranks.value,
            nodes=max(1, self.placement.nodes // groups),
            backend=plan.devices.backend.value,
            calibration=self.calibration,
        )
        copies = Ring(groups, ring.gb_per_s, ring.latency_s, ring.text) if groups > 1 else None
        return exchange_sharded(
            inner,
            weight_bytes=weights,
            gradient_bytes=gradient_bytes,
            blocks=blocks,
            passes=slots if stage >= 2 else 1,
            forward_s=slots * one.forward_s,
            backward_s=slots * one.backward_s,
            is_kept=stage < 3,
            copies=copies,
        )

    def _evaluations_s(self, plan: Plan, one: Compute, micro: int) -> float:
        every, tests = plan.evaluation.evaluate_every.value, plan.batch.num_test_samples.value
        if tests == 0:
            return 0.0
        count = 1 if every is None else max(1, plan.batch.total_steps.value // every)
        share = one.forward_s / one.device_s if one.device_s else 1 / 3
        forward = max(one.forward_s, share * one.host_s)
        return count * ceil(tests / micro / plan.devices.ranks.value) * forward


def _flops(operators: list[Operator], micro: int) -> float:
    """Of one sample in a micro-batch of so many."""
    return sum(operator.times * operator.flops.at(micro) for operator in operators) / micro


def _slowest_of(ranks: int) -> float:
    """How many standard deviations the slowest of so many lies above their mean (Blom's formula for
    the largest of normal values: 0.6 for 2, 1.4 for 8, 1.8 for 16)."""
    if ranks == 1:
        return 0.0
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
