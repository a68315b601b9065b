"""A fake of the package `torch` for the child process; variables FAKE_TORCH_* steer it."""

import os
import signal
import sys
import time
from types import SimpleNamespace

print("a library that talks on stdout")
sys.stderr.write("first line\n")
if os.environ.get("FAKE_TORCH_RAISES"):
    raise ImportError(os.environ["FAKE_TORCH_RAISES"])
if os.environ.get("FAKE_TORCH_MISSING"):
    raise ModuleNotFoundError("No module named 'torch'")
if os.environ.get("FAKE_TORCH_DIES"):
    os.kill(os.getpid(), signal.SIGILL)
if os.environ.get("FAKE_TORCH_HANGS"):
    time.sleep(60)

_KILLS = os.environ.get("FAKE_TORCH_KILLS", "").split()
_CURED = os.environ.get("ONEDNN_MAX_CPU_ISA") == os.environ.get("FAKE_TORCH_CURE", "never")
_DEVICES = int(os.environ.get("FAKE_TORCH_DEVICES", "0"))

__version__ = "2.13.0+fake"
version = SimpleNamespace(cuda="13.0" if _DEVICES else None, hip=None)
bfloat16, float16, float32 = "bf16", "fp16", "fp32"


def _no():
    return False


def _yes():
    return True


def get_num_threads():
    return 2


class _Value:
    def __init__(self, value):
        self.value = value

    def item(self):
        return self.value

    def all(self):
        return self

    def sum(self):
        return self

    def backward(self):
        pass


class _Matrix(_Value):
    def __init__(self, name):
        super().__init__(0)
        self.name = name
        self.grad = self

    def __matmul__(self, other):
        if self.name in _KILLS and not _CURED:
            os.kill(os.getpid(), signal.SIGILL)
        if f"hang={self.name}" in _KILLS:
            time.sleep(60)
        if f"raise={self.name}" in _KILLS:
            raise RuntimeError("CUDA error: no kernel image\nmore lines")
        return self

    def __ne__(self, other):
        return _Value(0)

    __hash__ = None


def full(shape, value, *, dtype, device, requires_grad):
    return _Matrix(f"{device}:{dtype}")


def isfinite(matrix):
    return _Value(True)


def _properties(index):
    return SimpleNamespace(
        name="Fake GPU", major=8, minor=index, total_memory=24 << 30, uuid=f"0000-{index}"
    )


def _init():
    if os.environ.get("FAKE_TORCH_CUDA_HANGS"):
        time.sleep(60)


cuda = SimpleNamespace(
    nccl=SimpleNamespace(version=lambda: (2, 28, 9)),
    get_arch_list=lambda: ["sm_80"],
    init=_init,
    device_count=lambda: _DEVICES,
    get_device_properties=_properties,
    get_device_capability=lambda device: (8, int(device.split(":")[1])),
)
distributed = SimpleNamespace(
    is_available=_yes, is_nccl_available=_no, is_gloo_available=_yes, is_mpi_available=_no
)
backends = SimpleNamespace(
    mps=SimpleNamespace(is_available=_no),
    cudnn=SimpleNamespace(version=lambda: None),
    cuda=SimpleNamespace(matmul=SimpleNamespace(fp32_precision="none")),
)
