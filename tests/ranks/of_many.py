"""Single ranks of a group of 64 that is not there: torch's fake process group, whose collectives
move nothing. Run as a program, since a process has one group: prints what each rank holds."""

import json
import sys
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from deepspeed.runtime.zero import partitioned_param_coordinator
from torch.testing._internal.distributed.fake_pg import FakeStore

from phalanx.engine.process.group import Process
from phalanx.engine.strategies.deepspeed import Deepspeed
from phalanx.engine.strategies.fsdp import make_fsdp
from phalanx.engine.strategies.optimizers import make_optimizer
from phalanx.engine.strategies.precision import Precision
from phalanx.engine.training.ema import WeightAverage
from phalanx.job import load_job
from phalanx.planner.memory.deepspeed import deepspeed_settings
from phalanx.planner.memory.shares import Share
from phalanx.recipe.loading import load_recipe
from tests.fixtures.plans import plan_with
from tests.ranks import fresh_deepspeed, held

WORLD = 64


def hold(record, rank):
    """The Share of one rank after a step."""
    job = load_job(record).job
    recipe = load_recipe(job.recipe, job.options)
    dist.init_process_group("fake", rank=rank, world_size=WORLD, store=FakeStore())
    process = Process(rank, WORLD, torch.device("cpu"), "fake", dist.group.WORLD)
    is_narrow = job.strategy == "fsdp"
    precision = Precision(job.precision, process.device, is_frozen_narrow=is_narrow)
    if job.strategy == "fsdp":
        shards = job.fsdp.shard_ranks or WORLD
        strategy = make_fsdp(
            recipe, process, precision, job.fsdp, shard_ranks=shards, build="whole"
        )
    else:
        plan = plan_with(
            zero_stage=job.deepspeed.stage,
            parameters=10**6,
            precision=job.precision,
            micro_batch_size=2,
            accumulation=1,
        )
        model = recipe.model()
        strategy = Deepspeed(recipe, model, process, deepspeed_settings(job, plan))
    strategy.adopt(make_optimizer(recipe, strategy.model, job.optimizer, 0.01), precision, None)
    average = WeightAverage(strategy, decay=0.9)
    ids = np.arange(2)
    batch = recipe.data("train").__getitems__(ids, ids)
    found = []
    for _ in range(2):  # stage 3 gathers what it keeps whole after the first update
        strategy.before_step(1)
        with precision.autocast():
            terms = strategy.loss(batch, torch.from_numpy(ids))
            objective = sum(term.sum for term in terms.values())
        strategy.backward(objective)
        held.looked_at(type(strategy), found)(strategy, None)
    dist.destroy_process_group()
    fresh_deepspeed.forget()
    return Share(*found[-1], held.bytes_of(average._averages))


if __name__ == "__main__":
    records, ranks = json.loads(sys.argv[1])
    with (
        # What nobody sends is zero and not any number: a step that overflows is not taken.
        mock.patch.object(torch, "empty", torch.zeros),
        # At stage 3 DeepSpeed asks the first rank whether it runs the same: nobody answers.
        mock.patch.object(partitioned_param_coordinator, "assert_ints_same_as_other_ranks"),
    ):
        print(json.dumps([[hold(record, rank) for rank in ranks] for record in records]))
