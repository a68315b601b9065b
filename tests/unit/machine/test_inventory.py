"""The Machine noun, its JSON, and the real probe of whatever machine runs this."""

import sys
from pathlib import Path

import pytest

from phalanx.codec import to_json
from phalanx.errors import UserError
from phalanx.machine import Machine, check_machine, probe_machine
from tests.unit.machine.fake_pynvml import FakeGpu, FakePynvml

NAMES = ["cpu", "1xt4", "2x4090", "8xa100", "16x2080", "mps"]


def test_real_probe_tells_what_there_is(tmp_path):
    machine = probe_machine(tmp_path / "not" / "yet" / "there")
    assert machine.python_executable == sys.executable
    assert 1 <= machine.cpu.usable_cores <= machine.cpu.logical_cores
    assert 0 < machine.memory.available_bytes <= machine.memory.total_bytes
    assert machine.memory.total_bytes <= machine.memory.physical_bytes
    assert machine.output.writable
    assert machine.output.free_bytes > 0
    assert machine.torch is not None, machine.torch_error
    assert machine.torch.has_gloo
    tried = {(p.device, p.precision): p for p in machine.torch.probes}
    assert tried["cpu", "fp32"].ok
    assert ("cpu", "bf16") in tried
    assert "fp32" in machine.precisions()
    # A bf16 that kills is either cured, and the ranks are told how, or not counted as working.
    assert tried["cpu", "bf16"].needs_env == machine.worker_env
    assert Machine.from_json(to_json(machine)) == machine


def test_probe_without_torch_starts_no_child(monkeypatch):
    monkeypatch.setattr("subprocess.Popen", None)
    machine = probe_machine(with_torch=False)
    assert machine.torch is None
    assert not {f.slug for f in check_machine(machine)} & {"torch-missing", "torch-broken"}


def test_probe_does_not_import_torch_here():
    before = "torch" in sys.modules
    probe_machine(with_torch=False)
    assert ("torch" in sys.modules) == before


@pytest.mark.parametrize("name", NAMES)
def test_json_round_trip(load_machine, name):
    machine = load_machine(name)
    assert Machine.from_json(to_json(machine)) == machine
    assert len(machine.links) == len(machine.gpus) * (len(machine.gpus) - 1) // 2


def test_every_fixture_is_listed():
    fixtures = Path(__file__).parents[2] / "fixtures" / "machines"
    assert sorted(path.stem for path in fixtures.glob("*.json")) == sorted(NAMES)


def test_another_schema_version_is_a_finding(load_machine):
    data = to_json(load_machine("cpu")) | {"schema_version": 99}
    with pytest.raises(UserError) as error:
        Machine.from_json(data)
    assert "99" in error.value.findings[0].what


@pytest.mark.parametrize(
    ("name", "accelerator", "precisions"),
    [
        ("cpu", "cpu", {"fp32", "fp16", "bf16"}),
        ("1xt4", "cuda", {"fp32", "fp16"}),
        ("8xa100", "cuda", {"fp32", "tf32", "fp16", "bf16"}),
        ("mps", "mps", {"fp32", "fp16", "bf16"}),
    ],
)
def test_emulated_bf16_does_not_count(load_machine, name, accelerator, precisions):
    machine = load_machine(name)
    assert machine.accelerator == accelerator
    gpu = machine.visible_gpus[-1] if machine.visible_gpus else None
    assert machine.precisions(gpu) == precisions


def test_torch_corrects_the_order_of_mixed_gpus(use_nvml, use_torch, monkeypatch):
    # CUDA numbers the fastest GPU first, NVML by PCI bus: only torch's UUIDs tell which is which.
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = [FakeGpu(uuid="GPU-0000-1", memory_mib=None), FakeGpu(uuid="GPU-0000-0")]
    use_nvml(FakePynvml(gpus))
    use_torch(devices="2")
    machine = probe_machine()
    assert [gpu.cuda_index for gpu in machine.gpus] == [1, 0]
    assert [gpu.index for gpu in machine.visible_gpus] == [1, 0]
    assert machine.gpus[0].memory_total_bytes == 24 << 30  # NVML did not say, torch did


def test_gpus_without_nvml_are_taken_from_torch(use_nvml, use_torch):
    use_nvml(None)
    use_torch(devices="1")
    machine = probe_machine()
    assert [gpu.name for gpu in machine.visible_gpus] == ["Fake GPU"]
    assert machine.driver == "broken"
