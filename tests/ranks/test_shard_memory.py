"""Building, saving and loading a sharded model never put it together on one rank."""

import gc
import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from phalanx.engine.checkpoint.tensors import collect, load_checkpoint, write_checkpoint
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.fsdp import make_fsdp
from phalanx.engine.strategies.precision import Precision
from phalanx.job.schema import Fsdp
from phalanx.recipe import Options, Recipe
from phalanx.run.checkpoints import SavedCheckpoint

MIB = 2**20
LAYERS, WIDTH = 32, 2048
WEIGHTS = LAYERS * WIDTH * WIDTH * 4  # 512 MiB
STATE = 3 * WEIGHTS  # with AdamW's two moments


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)


class Large(Recipe):
    def model(self):
        return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def limit(share):
    return 1.3 * share + 256 * MIB


class Growth:
    """How much this process grows at most, by the kernel's own count."""

    def __init__(self):
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak of earlier tests
        self._before = self._read("VmRSS")

    def peak(self):
        return self._read("VmHWM") - self._before

    def _read(self, name):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def build():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    process = Process(rank, world, torch.device("cpu"), "gloo", dist.new_group(backend="gloo"))
    torch.manual_seed(3)
    precision = Precision("fp32", process.device)
    strategy = make_fsdp(
        Large(Options()), process, precision, Fsdp(), shard_ranks=world, build="parts"
    )
    optimizer = torch.optim.AdamW(strategy.model.parameters())
    strategy.adopt(optimizer, precision, None)
    return strategy


def save(folder):
    growth = Growth()
    strategy = build()
    peaks = [growth.peak()]
    for number, parameter in enumerate(strategy.model.parameters()):
        strategy.optimizer.state[parameter] = {
            "step": torch.tensor(1.0),
            "exp_avg": torch.full_like(parameter, number, requires_grad=False),
            "exp_avg_sq": torch.full_like(parameter, -number, requires_grad=False),
        }
    content = collect(strategy, {"step": 1})
    write_checkpoint(Path(folder), content, process=strategy.process)
    return [*peaks, growth.peak()], digest(strategy)


def load(folder):
    growth = Growth()
    strategy = build()
    with torch.no_grad():
        for parameter in strategy.model.parameters():
            parameter.zero_()
    path = Path(folder) / "checkpoint-1"
    state = json.loads((path / "state.json").read_text())
    load_checkpoint(SavedCheckpoint(path, 1, state), strategy)
    return growth.peak(), digest(strategy)


def digest(strategy):
    """Sums over this rank's shards; over all ranks they must agree."""
    tensors = [shard.tensor for shard in strategy.model_state().values()]
    tensors += [shard.tensor for shard in strategy.optimizer_state().tensors.values()]
    return [
        [t.sum(dtype=torch.float64).item(), t.abs().sum(dtype=torch.float64).item()]
        for t in tensors
        if t.dim() > 0
    ]


def total(digests):
    return torch.tensor(digests, dtype=torch.float64).sum(0)


@pytest.mark.full
def test_no_rank_grows_beyond_its_share(pool, tmp_path):
    name = "tests.ranks.test_shard_memory"
    saved = pool.run(f"{name}:save", ranks=4, timeout_s=120, folder=str(tmp_path))
    for (built, peak), _ in saved:
        assert built < limit(WEIGHTS / 4) < WEIGHTS
        assert peak < limit(STATE / 4) < STATE
    loaded = pool.run(f"{name}:load", ranks=2, timeout_s=120, folder=str(tmp_path))
    for peak, _ in loaded:
        assert peak < limit(STATE / 2) < STATE
    expected, got = total([d for _, d in saved]), total([d for _, d in loaded])
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-9)
