"""How much a rank of FSDP has alive at its peak, counted by the storages, and how much one that
holds the whole model: on torch's fake process group. Run as a program; prints bytes."""

import json
import sys
import weakref

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from phalanx.engine.model.shards import local_part
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.fsdp import make_fsdp
from phalanx.engine.strategies.precision import Precision
from phalanx.job.schema import Fsdp
from phalanx.recipe.loading import load_recipe


class Alive(TorchDispatchMode):
    """The most bytes of storages at one time, but for some that were there before."""

    def __init__(self, before, *, watched=()):
        super().__init__()
        self._before = {t.untyped_storage()._cdata for t in before}
        self._storages = {}
        self.most = 0
        for tensor in watched:
            self._see(tensor)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor):
                self._see(value)
        # FSDP empties storages and fills them again: their sizes change.
        alive = [storage() for storage in self._storages.values()]
        self.most = max(self.most, sum(s.nbytes() for s in alive if s is not None))
        return out

    def _see(self, tensor):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._before:
            self._storages[key] = weakref.ref(storage, lambda _: self._storages.pop(key, None))


def whole(recipe, batch, keys):
    """The peak without gradients, and with them."""
    model = recipe.model()
    peaks = []
    for forget in (True, False):
        with Alive([*model.parameters(), *batch.values()]) as alive:
            handles = [
                p.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
                for p in (model.parameters() if forget else ())
            ]
            recipe.loss(model, batch, keys)["next"].sum.backward()
            for handle in handles:
                handle.remove()
        peaks.append(alive.most)
    return peaks


def sharded(recipe, batch, keys, world):
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    process = Process(0, world, torch.device("cpu"), "fake", dist.group.WORLD)
    precision = Precision("fp32", process.device)
    strategy = make_fsdp(recipe, process, precision, Fsdp(), shard_ranks=world, build="whole")
    strategy.loss(batch, keys)["next"].sum.backward()  # makes what later passes fill again
    for parameter in strategy.model.parameters():
        parameter.grad = None
    held = [local_part(p) for p in strategy.model.parameters()]
    with Alive([*held, *batch.values()], watched=_gathered(strategy)) as alive:
        strategy.loss(batch, keys)["next"].sum.backward()
    dist.destroy_process_group()
    return alive.most


def _gathered(strategy):
    modules = [m for m in strategy.bare_loss.modules() if isinstance(m, FSDPModule)]
    groups = [g for m in modules for g in m._get_fsdp_state()._fsdp_param_groups]
    return [t for g in groups for p in g.fsdp_params for t in p.all_gather_outputs]


def main(spec, options, samples, world):
    recipe = load_recipe(spec, options)
    ids = np.arange(samples)
    batch, keys = recipe.data("train").__getitems__(ids, ids), torch.from_numpy(ids)
    return [*whole(recipe, batch, keys), sharded(recipe, batch, keys, world)]


if __name__ == "__main__":
    print(json.dumps([main(*case) for case in json.loads(sys.argv[1])]))
