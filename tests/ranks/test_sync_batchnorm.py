"""BatchNorm over all ranks: N ranks with parts of a batch are one rank with all of it."""

import copy
from itertools import zip_longest

import pytest
import torch
import torch.distributed as dist
from torch import nn

from phalanx.engine.model.recompute import recompute_in_backward
from phalanx.engine.model.sync_batchnorm import synchronise_norms
from phalanx.engine.process.group import Process
from phalanx.planner.schema.micro_batches import deal
from tests.ranks.runs import make_run, train
from tests.ranks.test_parity import assert_close, plain_loop

TOLERANCE = 1e-12

NORMS = {
    "1d": (lambda: nn.BatchNorm1d(5), (5,)),
    "sequence": (lambda: nn.BatchNorm1d(5, momentum=None), (5, 3)),
    "2d": (lambda: nn.BatchNorm2d(5, momentum=0.3), (5, 4, 3)),
    "3d": (lambda: nn.BatchNorm3d(5, affine=False), (5, 2, 2, 3)),
    "without-statistics": (lambda: nn.BatchNorm2d(5, track_running_stats=False), (5, 2, 2)),
    "far-from-zero": (lambda: nn.BatchNorm1d(5), (5,)),
}


def part_of(rank, step, shape):
    """Unequal parts: rank 0 has 4 samples, rank 1 has 3, rank 2 has 2."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(4 - rank, *shape, generator=generator, dtype=torch.float64)


def run_norm(kind, silent_rank, is_recomputed):
    """Three steps on this rank: how far each figure is from one norm over all samples."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    make, shape = NORMS[kind]
    shift = 1e6 if kind == "far-from-zero" else 0.0
    torch.manual_seed(0)
    plain = nn.Sequential(make(), nn.Tanh()).double()
    for parameter in plain.parameters():
        nn.init.normal_(parameter)
    synced = copy.deepcopy(plain)
    statistics = synchronise_norms(synced, Process(rank, world, torch.device("cpu"), "gloo"))
    statistics.is_silent = lambda: rank == silent_rank
    if is_recomputed:
        recompute_in_backward([("", synced)])
    names = list(synced.state_dict())
    found = {}
    for step in range(3):
        parts = [part_of(r, step, shape) + shift for r in range(world)]
        inputs = [part.clone().requires_grad_() for part in parts]
        loud = [part for r, part in enumerate(inputs) if r != silent_rank]
        outputs = plain(torch.cat(loud)).split([len(part) for part in loud])
        expected = dict(zip((r for r in range(world) if r != silent_rank), outputs, strict=True))
        for r, output in expected.items():
            ((r + 1) * output.square()).sum().backward(retain_graph=True)
        mine = (parts[rank] if rank != silent_rank else parts[rank] * float("nan")).requires_grad_()
        output = synced(mine)
        factor = rank + 1 if rank != silent_rank else 0.0
        (factor * output.nan_to_num().square()).sum().backward()
        if rank == silent_rank:
            found["input"] = (mine.grad, torch.zeros_like(mine))
        else:
            found["output"] = (output, expected[rank])
            found["input"] = (mine.grad, inputs[rank].grad)
        for (key, one), other in zip(synced.named_parameters(), plain.parameters(), strict=True):
            dist.all_reduce(one.grad)
            found[key] = (one.grad, other.grad)
        for key, buffer in synced.named_buffers():
            found[key] = (buffer, plain.get_buffer(key))
        for model in (plain, synced):
            model.zero_grad(set_to_none=True)
    assert list(plain.state_dict()) == names
    synced.eval(), plain.eval()
    if kind != "without-statistics":
        found["evaluation"] = (synced(parts[rank]), plain(parts[rank]))
    dist.barrier()
    return {
        key: ((one - other).abs().max() / other.abs().max().clamp(min=1)).item()
        for key, (one, other) in found.items()
    }


@pytest.mark.parametrize("name", NORMS)
def test_parts_of_a_batch_are_normalized_like_the_whole(pool, name):
    silent_rank = 1 if name in ("2d", "without-statistics") else None
    is_recomputed = name in ("2d", "1d")
    ranks = pool.run(
        "tests.ranks.test_sync_batchnorm:run_norm",
        ranks=3,
        kind=name,
        silent_rank=silent_rank,
        is_recomputed=is_recomputed,
    )
    for rank, found in enumerate(ranks):
        assert found, "nothing was compared"
        # A mean of 1e6 leaves ten digits of the deviations from it.
        tolerance = 1e-8 if name == "far-from-zero" else TOLERANCE
        assert max(found.values()) < tolerance, (rank, found)


def rounds_of(ranks):
    """The slots that the ranks run at the same time."""

    def together(slots):
        shares = [slots[slice(*deal(len(slots), rank, ranks))] for rank in range(ranks)]
        return [[s for s in round if s is not None] for round in zip_longest(*shares)]

    return together


# 50 samples at 12: the last step of an epoch has 2 samples in one slot, other ranks are idle.
# 10 in slots of 2, 3, 2, 3: rank 0 of 3 has two, and the second one to itself.
@pytest.mark.parametrize(
    ("ranks", "total", "micro", "changes"),
    [
        pytest.param(2, 12, 6, {}, id="ddp"),
        pytest.param(3, 10, 3, {"activation_checkpointing": "on"}, id="ddp-rounds"),
        pytest.param(3, 12, 4, {"strategy": "fsdp"}, id="fsdp"),
        pytest.param(3, 10, 3, {"strategy": "fsdp"}, id="fsdp-rounds"),
    ],
)
def test_a_run_equals_one_rank_with_all_samples_of_a_round(
    pool, tmp_path, ranks, total, micro, changes
):
    options = {"batchnorm": True, "dropout": 0.0, "blocks": 2}
    sizes = {"global_batch_size": total, "micro_batch_size": micro}
    run = make_run(tmp_path, ranks=ranks, options=options, sync_batchnorm=True, **sizes, **changes)
    train(pool, run, ranks=ranks)
    together = rounds_of(ranks)
    assert_close(run, plain_loop(options, global_batch=total, micro=micro, together=together))
