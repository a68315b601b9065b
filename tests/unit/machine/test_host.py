"""Cgroup limits, storage and extras, on made-up directories."""

from pathlib import Path

import pytest

from phalanx.machine.host import (
    CgroupLimits,
    probe_cgroup,
    probe_cpu,
    probe_extras,
    probe_memory,
    probe_storage,
)

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_cgroup_v2_takes_the_tightest_parent(tmp_path):
    root = write(
        tmp_path,
        {
            "self": "0::/slurm/job_7/step_0\n",
            "slurm/job_7/step_0/memory.max": "max\n",
            "slurm/job_7/step_0/cpu.max": "max 100000\n",
            "slurm/job_7/memory.max": f"{8 * GIB}\n",
            "slurm/job_7/memory.current": f"{6 * GIB}\n",
            "slurm/job_7/memory.stat": f"anon 1\ninactive_file {4 * GIB}\n",
            "slurm/job_7/cpu.max": "350000 100000\n",
        },
    )
    limits = probe_cgroup(root / "self", root)
    assert limits.memory_bytes == 8 * GIB
    assert limits.memory_free_bytes == 6 * GIB  # the page cache can be taken back
    assert limits.cpu_cores == 3.5
    assert probe_cpu(limits).usable_cores <= 3


def test_cgroup_v1_in_a_container_falls_back_to_the_mount(tmp_path):
    root = write(
        tmp_path,
        {
            "self": "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n",
            "memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            "memory/memory.usage_in_bytes": f"{GIB}\n",
            "cpu/cpu.cfs_quota_us": "50000\n",
            "cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    limits = probe_cgroup(root / "self", root)
    assert (limits.memory_bytes, limits.memory_free_bytes) == (2 * GIB, GIB)
    assert limits.cpu_cores == 0.5
    assert probe_cpu(limits).usable_cores == 1  # half a core is still one
    memory = probe_memory(limits)
    assert memory.total_bytes == min(2 * GIB, memory.physical_bytes)
    assert memory.available_bytes <= GIB


def test_no_cgroup_limit(tmp_path):
    root = write(
        tmp_path,
        {
            "self": "4:memory:/\n1:cpu:/\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "cpu/cpu.cfs_quota_us": "-1\n",
            "cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert probe_cgroup(root / "self", root) == CgroupLimits()
    assert probe_cgroup(root / "absent", root) == CgroupLimits()


def test_storage_of_a_path_that_is_not_there_yet(tmp_path):
    storage = probe_storage(tmp_path / "a" / "b")
    assert storage.writable
    assert storage.path == str(tmp_path / "a" / "b")


def test_storage_under_a_file_is_not_writable(tmp_path):
    (tmp_path / "file").write_text("")
    assert not probe_storage(tmp_path / "file" / "runs").writable
    assert not probe_storage(tmp_path / "file").writable


def test_extras_are_found_by_any_of_their_names(monkeypatch):
    from importlib.metadata import PackageNotFoundError

    def version(name):
        if name == "onnxruntime-gpu":
            return "1.2"
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    assert probe_extras() == {"onnxruntime": "1.2"}


@pytest.mark.parametrize("quota", [None, 1.0])
def test_cores_respect_the_affinity_mask(monkeypatch, quota):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    cores = probe_cpu(CgroupLimits(cpu_cores=quota)).usable_cores
    assert cores == (3 if quota is None else 1)
