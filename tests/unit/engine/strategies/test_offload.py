"""Ranks keep in host memory what the plan says, whatever the job leaves open."""

from types import SimpleNamespace

import pytest
import torch
from torch.distributed.fsdp import CPUOffloadPolicy

from phalanx.engine.checkpoint.pretrained import Pretrained
from phalanx.engine.process.group import Process
from phalanx.engine.rank.assembly import Assembly
from phalanx.engine.strategies import fsdp
from phalanx.engine.strategies.precision import Precision
from phalanx.job import load_job
from phalanx.recipe.loading import load_recipe
from tests.fixtures.plans import plan_with


@pytest.mark.parametrize("kept", ["state", None])
def test_the_plan_says_what_is_kept_in_host_memory(monkeypatch, kept):
    policies = []
    monkeypatch.setattr(fsdp, "_make_mesh", lambda *_: None)
    monkeypatch.setattr(
        fsdp, "fully_shard", lambda _, **keys: policies.append(keys["offload_policy"])
    )
    device = torch.device("cpu")
    rank = SimpleNamespace(
        job=load_job({"recipe": "digits", "steps": 1, "global_batch_size": 8}).job,
        plan=plan_with(strategy="fsdp", shard_ranks=1, build="whole", offload=kept),
        process=Process(0, 1, device, "gloo"),
        recipe=load_recipe("digits", {}),
        precision=Precision("fp32", device),
        pretrained=Pretrained(),
        _adapt=lambda model: None,
    )
    Assembly._make_strategy(rank)
    assert policies
    assert {isinstance(policy, CPUOffloadPolicy) for policy in policies} == {kept is not None}
