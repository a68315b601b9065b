"""One rank that trains twice: steps as they run eagerly, and with passes, exchange and update as
three separate calls. Run as a program, since a process has one group: prints whether each gave the
same bits."""

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from phalanx.engine.data.micro_batches import MicroBatch
from phalanx.engine.data.step_feed import StepInput
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.ddp import Ddp
from phalanx.engine.strategies.optimizers import Schedule, make_optimizer
from phalanx.engine.strategies.precision import Precision
from phalanx.engine.strategies.single import Single
from phalanx.engine.training.step import StepResult, TrainStep
from phalanx.job.schema import Ddp as DdpJob
from phalanx.job.schema import Optimizer
from phalanx.job.schema import Schedule as ScheduleJob
from phalanx.planner.schema.micro_batches import Slot, StepShare, deal
from phalanx.recipe import Options, Recipe, Term

CPU = torch.device("cpu")
SLOTS = (5, 4, 3, 1, 2)  # in a step; the last step has one, so that one of two ranks has none


class Noisy(Recipe):
    """Dropout, BatchNorm, two groups; the weight may depend on the predictions."""

    is_late = False

    def groups(self, model):
        return [
            {"params": list(model[0].parameters())},
            {"params": list(model[1:].parameters()), "lr_scale": 0.5},
        ]

    def loss(self, model, batch, keys):
        errors = (model(batch["x"]) - batch["y"]).square().sum(1)
        return {"fit": Term(errors.sum(), (errors < 1e6).sum() if self.is_late else len(errors))}


class ThreeCalls:
    """Stands in for an executor that captures passes and update, without the exchange."""

    def __init__(self, step):
        self._step = step

    def run(self, step):
        strategy = self._step.strategy
        result = StepResult(step.weights, self._step.schedule.apply(strategy.optimizer, 0))
        self.passes(step, result)
        self.exchange(step, result)
        self.update(result)
        return result

    def passes(self, step, result):
        with self._step.strategy.hold_gradients():
            self._step.run_passes(step, result)

    def exchange(self, step, result):
        process = self._step.strategy.process
        for gradient in self._step.strategy.gradients():
            process.sum_(gradient.div_(process.world))
        self._step.run_collective(step, result)

    def update(self, result):
        self._step.run_update(result)


def train(process, execute, *, is_late):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 3)
    )
    recipe = Noisy(Options())
    recipe.is_late = is_late
    if process.world == 1:
        strategy = Single(recipe, model, process)
    else:
        strategy = Ddp(recipe, model, process, DdpJob())
    job = Optimizer(name="adamw")
    strategy.adopt(make_optimizer(recipe, model, job, 1e-2), Precision("fp32", CPU), 1.0)
    schedule = Schedule(ScheduleJob(name="constant"), peak_lr=1e-2, warmup_steps=0, total_steps=9)
    step = TrainStep(strategy=strategy, schedule=schedule, seed=5, gain=1.5, least_weight=2.0)
    strategy.settle(make_step(process, 0, SLOTS, is_late).micro_batches[0], step.discard)
    strategy.resume()
    executor = execute(step)
    seen = []
    for index, sizes in enumerate([SLOTS, SLOTS, (4,)]):
        result = executor.run(make_step(process, index, sizes, is_late))
        seen += [result.lr, result.grad_norm, *result.sums.values(), result.late_weight]
    return [*seen, *model.state_dict().values()]


def make_step(process, index, sizes, is_late):
    random = torch.Generator().manual_seed(index)

    def draw(*shape):
        return torch.randn(*shape, generator=random)

    batches = [{"x": draw(size + 1, 8), "y": draw(size + 1, 3)} for size in sizes]
    weights = None if is_late else {"*": float(sum(sizes))}
    first, last = deal(len(sizes), process.rank, process.world)
    mine = [
        MicroBatch(slot, batches[slot], torch.arange(sizes[slot] + 1), weights)
        for slot in range(first, last)
    ]
    slots = tuple(Slot(slot, 0, sizes[slot]) for slot in range(first, last))
    share = StepShare(index, 0, 0, slots, len(sizes))
    return StepInput(share, mine, weights, must_stop=False, must_save=False)


def is_same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return one == other


if __name__ == "__main__":
    rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    me = Process(rank, world, CPU, "none")
    if world > 1:
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(store, world),
            rank=rank,
            world_size=world,
            timeout=timedelta(minutes=2),
        )
        me = Process(rank, world, CPU, "gloo", dist.new_group(backend="gloo"))
    same = []
    for is_late in (False, True):
        eager = train(me, lambda step: step, is_late=is_late)
        apart = train(me, ThreeCalls, is_late=is_late)
        same.append(all(map(is_same, eager, apart)) and len(eager) == len(apart))
    print(json.dumps(same))
