"""Every Finding of the machine, triggered once, with what, why and fix."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import phalanx.machine
from phalanx.machine import cannot_train, check_machine
from phalanx.machine.facts import PrecisionProbe, Storage

GIB = 1 << 30


def torch_of(machine, **changes):
    return replace(machine, torch=replace(machine.torch, **changes))


def gpu_of(machine, index, **changes):
    gpus = [replace(g, **changes) if g.index == index else g for g in machine.gpus]
    return replace(machine, gpus=tuple(gpus))


def no_torch(machine, error):
    return replace(machine, torch=None, torch_error=error)


def probe_of(machine, **fields):
    return torch_of(machine, probes=(PrecisionProbe(**fields),))


UNUSABLE = {"cuda_available": False, "devices": ()}
SMALL = Storage(path="/dev/shm", total_bytes=64 << 20, free_bytes=64 << 20, writable=True)  # noqa: S108
CURE = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}

# slug: (fixture, change, severity, text of what, text of fix)
CASES = {
    "python-too-old": (
        "cpu",
        lambda m: replace(m, python_version="3.8.19"),
        "error",
        "3.8.19",
        "uv venv",
    ),
    "output-not-writable": (
        "cpu",
        lambda m: replace(m, output=replace(m.output, writable=False)),
        "error",
        "`runs`",
        "--output",
    ),
    "disk-low": (
        "cpu",
        lambda m: replace(m, output=replace(m.output, free_bytes=3 * GIB)),
        "warning",
        "3.0 GiB free for output, at least 5.0 GiB",
        "--output",
    ),
    "shm-small": (
        "8xa100",
        lambda m: replace(m, shm=SMALL),
        "warning",
        "64 MiB, at least 1.0 GiB",
        "--shm-size=16g",
    ),
    "open-files-low": (
        "2x4090",
        lambda m: m,
        "warning",
        "1024 files, at least 4096",
        "ulimit -n 65535",
    ),
    "ram-low": (
        "cpu",
        lambda m: replace(m, memory=replace(m.memory, available_bytes=GIB)),
        "warning",
        "1.0 GiB of RAM available, at least 2.0 GiB",
        "--mem",
    ),
    "few-cores": (
        "8xa100",
        lambda m: replace(m, cpu=replace(m.cpu, usable_cores=4, quota_cores=4.0)),
        "warning",
        "4 CPU cores for 8 GPUs, at least 16",
        "--cpus-per-task=64",
    ),
    "compiler-missing": (
        "cpu",
        lambda m: replace(m, c_compiler=None),
        "note",
        "C compiler",
        "build-essential",
    ),
    "torch-missing": (
        "8xa100",
        lambda m: no_torch(m, "importing torch: ends\nNo module named 'torch'"),
        "error",
        "not installed",
        "pip install 'torch>=2.10' --index-url https://download.pytorch.org/whl/cu130",
    ),
    "torch-broken": (
        "cpu",
        lambda m: no_torch(m, "importing torch: kills the process (SIGILL)\nlast line"),
        "error",
        "SIGILL",
        "--force-reinstall",
    ),
    "torch-too-old": (
        "1xt4",
        lambda m: torch_of(m, version="2.4.1+cu121"),
        "error",
        "2.4.1+cu121",
        "--upgrade",
    ),
    "torch-cpu-build": (
        "2x4090",
        lambda m: torch_of(m, version="2.13.0+cpu", cuda_version=None, **UNUSABLE),
        "error",
        "0 of them",
        "whl/cu130",
    ),
    "driver-too-old": (
        "8xa100",
        lambda m: torch_of(
            replace(m, driver_version="535.183.01", driver_cuda=(12, 2)), **UNUSABLE
        ),
        "error",
        "CUDA 12.2, torch 2.13.0+cu130 needs CUDA 13.0",
        "whl/cu128",
    ),
    "cuda-unavailable": (
        "8xa100",
        lambda m: torch_of(m, cuda_error="system not yet initialized", **UNUSABLE),
        "error",
        "8 x NVIDIA A100-SXM4-80GB",
        "nvidia-fabricmanager",
    ),
    "gpu-architecture": (
        "1xt4",
        lambda m: torch_of(m, arch_list=("sm_80", "sm_90")),
        "error",
        "sm_75",
        "pip install",
    ),
    "nccl-missing": (
        "2x4090",
        lambda m: torch_of(m, has_nccl=False),
        "warning",
        "2 GPUs",
        "pip install",
    ),
    "bf16-needs-env": (
        "cpu",
        lambda m: probe_of(
            m,
            device="cpu",
            precision="bf16",
            ok=True,
            needs_env=CURE,
            error="kills the process (SIGILL)",
        ),
        "note",
        "bf16 on the CPU kills the process (SIGILL)",
        "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16",
    ),
    "precision-failed": (
        "cpu",
        lambda m: probe_of(
            m, device="cpu", precision="bf16", ok=False, error="kills the process (SIGILL)"
        ),
        "warning",
        "bf16 matrix product on cpu",
        "precision=fp32",
    ),
    "bf16-emulated": ("1xt4", lambda m: m, "note", "7.5", "fp16"),
    "driver-broken": (
        "cpu",
        lambda m: replace(m, driver="broken", driver_error="version mismatch"),
        "warning",
        "0 GPUs",
        "nvidia-smi",
    ),
    "gpu-lost": (
        "8xa100",
        lambda m: gpu_of(m, 3, error="GPU is lost"),
        "warning",
        "GPU 3 of 8",
        "Xid",
    ),
    "visible-missing": (
        "2x4090",
        lambda m: replace(
            gpu_of(m, 1, cuda_index=None), cuda_visible_devices="0,7", cuda_visible_missing=("7",)
        ),
        "warning",
        "`7`, which is not one of the 2 GPUs",
        "CUDA_VISIBLE_DEVICES=0,1",
    ),
    "visible-none": (
        "1xt4",
        lambda m: replace(gpu_of(m, 0, cuda_index=None), cuda_visible_devices=""),
        "warning",
        "hides all 1 GPUs",
        "unset CUDA_VISIBLE_DEVICES",
    ),
    "gpu-busy": (
        "8xa100",
        lambda m: gpu_of(m, 2, memory_free_bytes=10 * GIB),
        "warning",
        "1 of 8 GPUs are in use by others: GPU 2 holds 70.0 GiB of 80.0 GiB",
        "CUDA_VISIBLE_DEVICES=0,1,3,4,5,6,7",
    ),
    "gpu-hot": (
        "2x4090",
        lambda m: gpu_of(m, 1, temperature_c=85),
        "warning",
        "GPU 1 is at 85 C",
        "nvidia-smi -i 1 -pl 360",
    ),
    "gpu-mixed": (
        "8xa100",
        lambda m: gpu_of(m, 0, name="Tesla T4", memory_total_bytes=15 * GIB),
        "warning",
        "7 x NVIDIA A100-SXM4-80GB 80.0 GiB, 1 x Tesla T4 15.0 GiB",
        "CUDA_VISIBLE_DEVICES=1,2,3,4,5,6,7",
    ),
    "p2p-missing": ("2x4090", lambda m: m, "note", "1 of 1 GPU pairs", "NCCL_P2P_DISABLE=1"),
    "gpu-mig": (
        "8xa100",
        lambda m: gpu_of(m, 0, is_mig=True, mig_uuids=("MIG-1", "MIG-2")),
        "note",
        "1 of 8 GPUs are cut into slices (MIG): 2 slices",
        "-mig 0",
    ),
}


@pytest.mark.parametrize("slug", CASES)
def test_finding(load_machine, slug):
    fixture, change, severity, what, fix = CASES[slug]
    machine = change(load_machine(fixture))
    (finding,) = [f for f in check_machine(machine) if f.slug == slug]
    assert finding.severity == severity
    assert what in finding.what
    assert len(finding.why) > 20
    assert fix in finding.fix
    assert "check-broken" not in {f.slug for f in check_machine(machine)}
    assert bool(cannot_train(machine)) == (severity == "error")


def test_every_slug_of_the_package_is_tested():
    folder = Path(phalanx.machine.__file__).parent
    used = {
        slug
        for path in folder.glob("*checks.py")
        for slug in re.findall(r'slug="([a-z0-9-]+)"', path.read_text())
    }
    assert used == {*CASES, "check-broken"}


@pytest.mark.parametrize(
    ("name", "slugs"),
    [
        ("cpu", set()),
        ("mps", set()),
        ("8xa100", set()),
        ("1xt4", {"bf16-emulated"}),
        ("2x4090", {"open-files-low", "p2p-missing"}),
        ("16x2080", {"bf16-emulated", "p2p-missing"}),
    ],
)
def test_fixture_machines_can_train(load_machine, name, slugs):
    machine = load_machine(name)
    assert {f.slug for f in check_machine(machine)} == slugs
    assert cannot_train(machine) == []


def test_a_check_that_raises_is_a_finding(load_machine):
    def check_nonsense(machine):
        raise ZeroDivisionError("division by zero")

    (finding,) = check_machine(load_machine("cpu"), checks=[check_nonsense])
    assert (finding.slug, finding.severity) == ("check-broken", "warning")
    assert "check_nonsense" in finding.what
    assert "ZeroDivisionError: division by zero" in finding.why
    assert finding.fix


def test_errors_come_first(load_machine):
    machine = replace(load_machine("2x4090"), python_version="3.9.1")
    assert [f.severity for f in check_machine(machine)] == ["error", "warning", "note"]


def test_a_gpu_beside_better_ones_is_only_a_warning(load_machine):
    machine = gpu_of(load_machine("8xa100"), 5, compute_capability=(6, 1), name="GTX 1080")
    (finding,) = [f for f in check_machine(machine) if f.slug == "gpu-architecture"]
    assert finding.severity == "warning"
    assert "GPU 5 cannot be used" in finding.what
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3,4,6,7" in finding.fix
    assert "whl/cu126" in finding.fix


def test_a_missing_gpu_that_leaves_none_is_an_error(load_machine):
    machine = replace(
        gpu_of(load_machine("1xt4"), 0, cuda_index=None),
        cuda_visible_devices="4",
        cuda_visible_missing=("4",),
    )
    assert [f.slug for f in cannot_train(machine)] == ["visible-missing"]


def test_fp32_that_fails_on_a_gpu_is_an_error(load_machine):
    machine = probe_of(
        load_machine("1xt4"),
        device="cuda:0",
        precision="fp32",
        ok=False,
        error="ECC error",
        compute_capability=(7, 5),
    )
    assert [f.slug for f in cannot_train(machine)] == ["precision-failed"]


def test_an_older_minor_of_the_driver_is_fine(load_machine):
    machine = torch_of(replace(load_machine("8xa100"), driver_cuda=(13, 0)), cuda_version="13.2")
    assert check_machine(machine) == []
