"""torch is asked again when anything that can be seen has changed."""

import os
from dataclasses import replace

import pytest

from phalanx.machine.facts import PrecisionProbe, TorchDevice, TorchFacts
from phalanx.machine.gpus import GpuInventory
from phalanx.machine.torch_child import TorchAnswer
from phalanx.prepare.torch_facts import remembering_torch

FACTS = TorchFacts(
    version="2.13.0",
    cuda_available=True,
    devices=(
        TorchDevice(index=0, name="H200", compute_capability=(9, 0), memory_total_bytes=2**37),
    ),
    probes=(PrecisionProbe(device="cuda:0", precision="bf16", ok=True),),
)
FOUND = GpuInventory(driver="ok", driver_version="580.1")


class Torch:
    def __init__(self, facts=FACTS):
        self.times, self.facts = 0, facts

    def __call__(self):
        self.times += 1
        return TorchAnswer(facts=self.facts, worker_env={"A": "1"})


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_it_is_asked_once_and_again_for_another_driver_or_variable(monkeypatch):
    torch = Torch()
    ask = remembering_torch(torch)
    assert ask(FOUND) == ask(FOUND) == TorchAnswer(facts=FACTS, worker_env={"A": "1"})
    assert torch.times == 1
    ask(replace(FOUND, driver_version="580.2"))
    assert torch.times == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    ask(FOUND)
    assert torch.times == 3


def test_problems_and_what_cannot_be_read_are_not_remembered(tmp_path):
    bad = replace(FACTS, probes=(PrecisionProbe(device="cpu", precision="bf16", ok=False),))
    torch = Torch(bad)
    ask = remembering_torch(torch)
    ask(FOUND)
    ask(FOUND)
    assert torch.times == 2
    torch.facts = FACTS
    ask(FOUND)
    (file,) = (tmp_path / "phalanx" / "torch").iterdir()
    file.write_text("{")
    assert ask(FOUND).facts == FACTS
    assert torch.times == 4
    os.utime(file)
    ask(FOUND)
    assert torch.times == 4
