"""What GPUs and processes use, and what becomes of it in the samples of a script."""

import subprocess
import sys
import time

import pytest

from phalanx.machine.usage import GpuMeter, ProcessMeter
from phalanx.run.event_kinds import to_fields
from phalanx.run.sinks.curves import scalars
from phalanx.supervise import usage
from phalanx.supervise.usage import UsageSampler
from tests.fixtures.event_lines import make_event
from tests.unit.machine.fake_pynvml import FakeGpu, FakePynvml

BUSY = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'while True: pass']).wait()"


@pytest.fixture
def busy():
    process = subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True)
    yield process
    for member in ProcessMeter(process.pid).family():
        member.kill()
    process.wait()


def test_a_process_is_read_with_what_it_started(busy):
    meter = ProcessMeter(busy.pid)
    while len(meter.family()) < 2:
        time.sleep(0.01)
    meter.read()
    percent = 0
    while not percent:  # however busy the machine is, its child gets some of the CPU
        time.sleep(0.05)
        percent, resident = meter.read()
    assert resident > 2 * 2**20
    assert ProcessMeter(2**22 + 1).read() == (None, None)


def test_samples_have_the_gpu_the_driver_sees_a_rank_on(busy, monkeypatch):
    gpus = [
        FakeGpu(utilization=7, used_mib=100),
        FakeGpu(utilization=93, used_mib=2048, processes={busy.pid: ("python", 2**30)}),
    ]
    monkeypatch.setitem(sys.modules, "pynvml", FakePynvml(gpus))
    monkeypatch.setattr(usage, "_FIRST_S", 0.0)
    sampler = UsageSampler([busy.pid, busy.pid + 10**6], gpus=[0, 1])
    (sample,) = sampler.look()
    assert (sample.rank, sample.gpu, sample.gpu_percent) == (0, 1, 93)
    assert sample.gpu_memory_bytes == 2048 * 2**20
    assert sampler.look() == [], "not yet time for another"
    sampler.close()
    curves = scalars(make_event("usage", 0.0, "supervisor", data=to_fields(sample)))
    assert curves["system/rank_0/gpu_percent"] == 93
    assert curves["system/rank_0/gpu_memory_gib"] == 2


def test_in_a_container_it_is_the_gpu_of_its_rank(busy, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakePynvml([FakeGpu(), FakeGpu(utilization=5)]))
    monkeypatch.setattr(usage, "_FIRST_S", 0.0)
    (sample,) = UsageSampler([busy.pid], gpus=[1]).look()
    assert (sample.gpu, sample.gpu_percent) == (1, 5)


def test_without_a_driver_there_are_no_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakePynvml([], init_error=RuntimeError("none")))
    meter = GpuMeter()
    assert meter.read() == []
    meter.close()
