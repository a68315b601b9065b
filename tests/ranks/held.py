"""What a rank really holds in a step: the bytes of the storages, and what the planner says."""

import json
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import torch

from phalanx.engine.model.shards import local_part
from phalanx.engine.strategies.ddp import Ddp
from phalanx.engine.strategies.fsdp import Fsdp
from phalanx.engine.strategies.single import Single
from phalanx.engine.training.ema import WeightAverage
from phalanx.job import load_job
from phalanx.planner.memory.shares import Share, largest_share, layout_of, share_of
from phalanx.planner.schema.plan import Plan
from phalanx.tracing.trace import trace_recipe
from tests.ranks import runs


def train(path):
    """Train as a rank of a run; returns the Share that it held in its last step."""
    found = []
    kind = _strategy(path)
    with ExitStack() as stack:
        averages = _watch_averages(stack)
        stack.enter_context(mock.patch.object(kind, "update", looked_at(kind, found)))
        assert runs.worker(path, 0)
    weights, gradients, optimizer = found[-1]
    return Share(weights, gradients, optimizer, bytes_of(averages))


def _strategy(path):
    name = json.loads(Path(path, "plan.json").read_text())["parallel"]["strategy"]["value"]
    if name == "deepspeed":
        from phalanx.engine.strategies.deepspeed import Deepspeed  # it changes torch for good

        return Deepspeed
    return {"single": Single, "ddp": Ddp, "fsdp": Fsdp}[name]


def _watch_averages(stack):
    averages = []
    update = WeightAverage.update

    def watched(self):
        averages[:] = self._averages
        update(self)

    stack.enter_context(mock.patch.object(WeightAverage, "update", watched))
    return averages


def looked_at(kind, found):
    update = kind.update

    def look(self, divisor):
        zero = getattr(self, "_zero", None)
        before = _of_zero(self.model, zero) if zero is not None else _of_torch(self.model)
        norm = update(self, divisor)
        state = [t for values in self.optimizer.state.values() for t in values.values()]
        if zero is not None:  # the fp32 weights that it updates
            state += [p for group in self.optimizer.param_groups for p in group["params"]]
            state += getattr(zero, "fp32_partitioned_groups_flat", [])
        found.append((*before, bytes_of(state)))
        return norm

    return look


def _of_torch(model):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return bytes_of(model.parameters()), bytes_of(gradients)


def _of_zero(model, zero):
    parameters = list(model.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    gradients += [part for parts in zero.averaged_gradients.values() for part in parts]
    if hasattr(zero, "grad_partitions_flat_buffer"):  # stage 3
        gradients += [zero.grad_partitions_flat_buffer]
        gradients += [f.grad for f in zero.fp32_partitioned_groups_flat if f.grad is not None]
        parameters += [p.ds_tensor for p in parameters]
    return bytes_of(parameters), bytes_of(gradients)


def bytes_of(tensors):
    """Bytes of the storages behind tensors, each storage once."""
    storages = [local_part(t).untyped_storage() for t in tensors if isinstance(t, torch.Tensor)]
    return sum({s.data_ptr(): s.nbytes() for s in storages if s.nbytes()}.values())


def predicted(run, ranks):
    """What `predict` says of a run's plan."""
    plan = Plan.from_json(json.loads(run.plan_file.read_text()))
    return predict(
        load_job(run.job_file).job,
        plan.parallel.strategy.value,
        plan.numerics.precision.value,
        shards=plan.parallel.shard_ranks.value,
        ranks=range(ranks),
    )


def predict(job, strategy, precision, *, shards, ranks):
    """The Share of each rank, and that of the rank that holds most."""
    weights = trace_recipe(job.recipe, job.options)[0].weights
    layout = layout_of(job, strategy=strategy, precision=precision, shards=shards)
    shares = [share_of(weights, layout, rank) for rank in ranks]
    return shares, largest_share(weights, layout)
