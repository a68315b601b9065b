"""Speed without the time spent on other things."""

import os
from types import SimpleNamespace

import psutil
import pytest
import torch

from phalanx.engine.process import telemetry
from phalanx.engine.process.telemetry import SpeedMeter, memory_bytes, memory_trouble


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(telemetry, "time", SimpleNamespace(perf_counter=lambda: clock.now_s))
    return clock


def test_speed_is_samples_over_seconds_since_the_last_reading(clock):
    meter = SpeedMeter(1000)
    clock.now_s += 2
    assert meter.read(1100) == pytest.approx(50)
    clock.now_s += 1
    assert meter.read(1110) == pytest.approx(10)


def test_pauses_do_not_count(clock):
    meter = SpeedMeter(0)
    clock.now_s += 1
    with meter.paused():
        clock.now_s += 100
    clock.now_s += 1
    assert meter.read(20) == pytest.approx(10)
    clock.now_s += 1
    assert meter.read(30) == pytest.approx(10)


def test_the_share_of_waiting_is_of_the_time_since_the_last_reading(clock):
    meter = SpeedMeter(0)
    clock.now_s += 4
    meter.wait(1.0)
    meter.read(10)
    assert meter.data_wait == pytest.approx(0.25)
    clock.now_s += 4
    meter.read(20)
    assert meter.data_wait == 0.0


def test_trouble_with_memory_is_counted():
    retries, faults = memory_trouble(torch.device("cpu"))
    assert retries == 0
    assert faults >= 0


def test_no_time_at_all_is_no_division_by_zero(clock):
    assert SpeedMeter(0).read(10) > 0


def test_memory_on_the_cpu_is_the_process():
    resident = psutil.Process(os.getpid()).memory_info().rss
    assert memory_bytes(torch.device("cpu")) == pytest.approx(resident, rel=0.2)
