"""Machines from the fixtures, a fake NVML, a fake torch."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from phalanx.machine import Machine

FIXTURES = Path(__file__).parents[2] / "fixtures" / "machines"


@pytest.fixture
def load_machine():
    """The fixture machine of that name."""
    return lambda name: Machine.from_json(json.loads((FIXTURES / f"{name}.json").read_text()))


@pytest.fixture
def use_nvml(monkeypatch):
    """Put a FakePynvml in the place of pynvml."""
    return lambda fake: monkeypatch.setitem(sys.modules, "pynvml", fake)


@pytest.fixture
def use_torch(monkeypatch, tmp_path):
    """Give child processes the fake torch, steered by FAKE_TORCH_<NAME>=value."""

    def use(**settings):
        package = tmp_path / "fake" / "torch"
        package.mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("fake_torch.py"), package / "__init__.py")
        monkeypatch.setenv("PYTHONPATH", str(package.parent))
        monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
        for name, value in settings.items():
            monkeypatch.setenv(f"FAKE_TORCH_{name.upper()}", value)

    return use
