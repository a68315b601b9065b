"""GPUs, their visibility and their links, from a fake NVML."""

import pytest

from phalanx.machine.gpus import numa_node, number_visible, probe_gpus
from phalanx.machine.topology import link_groups, link_matrix
from tests.unit.machine.fake_pynvml import FakeGpu, FakePynvml, NVMLError, NVMLError_LibraryNotFound


def make(count, **fields):
    return [
        FakeGpu(uuid=f"GPU-{i:02d}ab-{i}", bus_id=f"00000000:{i + 16:02X}:00.0", **fields)
        for i in range(count)
    ]


def test_one_gpu_with_everything(use_nvml):
    fake = FakePynvml(make(1, processes={41: ("/usr/bin/python --token abc", 512)}))
    use_nvml(fake)
    found = probe_gpus()
    (gpu,) = found.gpus
    assert (found.driver, found.driver_version, found.driver_cuda) == ("ok", "580.95.05", (13, 0))
    assert gpu.memory_total_bytes == 80 << 30
    assert gpu.memory_free_bytes == (81920 - 700) << 20
    assert gpu.compute_capability == (8, 0)
    assert gpu.power_limit_w == 400.0
    assert not gpu.is_mig
    assert gpu.processes[0].name == "python"  # arguments may hold secrets
    assert gpu.processes[0].used_bytes == 512 << 20
    assert found.links == ()
    assert fake.open == 0


def test_a_driver_that_refuses_every_field_still_gives_the_gpu(use_nvml):
    silent = FakeGpu(
        name=b"Old GPU",
        memory_mib=None,
        capability=None,
        temperature=None,
        power_mw=None,
        utilization=None,
        processes={7: ("", None)},
    )
    use_nvml(FakePynvml([silent]))
    (gpu,) = probe_gpus().gpus
    assert gpu.name == "Old GPU"
    assert gpu.memory_total_bytes is None
    assert gpu.compute_capability is None
    assert gpu.temperature_c is None
    assert (gpu.processes[0].name, gpu.processes[0].used_bytes) == (None, None)


@pytest.mark.parametrize(
    ("error", "driver"),
    [
        (NVMLError_LibraryNotFound("NVML Shared Library Not Found"), "absent"),
        (NVMLError("Driver/library version mismatch"), "broken"),
    ],
)
def test_no_driver_is_not_a_broken_driver(use_nvml, error, driver):
    use_nvml(FakePynvml([], init_error=error))
    found = probe_gpus()
    assert (found.driver, found.driver_error, found.gpus) == (driver, str(error), ())


def test_a_lost_gpu_keeps_its_place(use_nvml):
    gpus = make(3)
    gpus[1].lost = True
    use_nvml(FakePynvml(gpus))
    found = probe_gpus()
    assert [gpu.error for gpu in found.gpus] == [None, "GPU is lost", None]
    assert [(link.first, link.second) for link in found.links] == [(0, 2)]
    numbered, _ = number_visible(found.gpus, None)
    assert [gpu.cuda_index for gpu in numbered] == [0, None, 1]


@pytest.mark.parametrize("end", ["switch", "hidden"])
def test_eight_gpus_on_nvswitch(use_nvml, end):
    use_nvml(FakePynvml(make(8, lanes=[end] * 12), p2p_nvlink=0))
    found = probe_gpus()
    assert len(found.links) == 28
    assert {link.label for link in found.links} == {"NV12"}
    assert all(link.p2p for link in found.links)


def test_nvlink_bridges_join_only_their_pairs(use_nvml):
    gpus = make(4)
    for first, second in [(0, 1), (2, 3)]:
        gpus[first].lanes = [gpus[second].bus_id] * 4
        gpus[second].lanes = [gpus[first].bus_id.lower()] * 4
    use_nvml(FakePynvml(gpus, ancestor=30))
    found = probe_gpus()
    assert link_matrix(found.gpus, found.links) == [
        ["X", "NV4", "PHB", "PHB"],
        ["NV4", "X", "PHB", "PHB"],
        ["PHB", "PHB", "X", "NV4"],
        ["PHB", "PHB", "NV4", "X"],
    ]


def test_eight_gpus_on_pcie_of_two_sockets(use_nvml):
    use_nvml(FakePynvml(make(8), ancestor=lambda i, j: 20 if i // 4 == j // 4 else 50, p2p=1))
    found = probe_gpus()
    assert {link.nvlink_lanes for link in found.links} == {0}
    assert {link.p2p for link in found.links} == {False}
    assert link_groups(found.gpus, found.links) == [
        ("PXB", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("SYS", [[0, 1, 2, 3, 4, 5, 6, 7]]),
    ]


def test_unknown_links_are_question_marks(use_nvml):
    use_nvml(FakePynvml(make(2), ancestor=77, p2p=None, p2p_nvlink=None))
    (link,) = probe_gpus().links
    assert (link.label, link.p2p) == ("?", None)


ALL = list(range(4))


@pytest.mark.parametrize(
    ("variable", "order", "missing"),
    [
        (None, ALL, ()),
        ("0,1,2,3", ALL, ()),
        (" 3 , 1 ", [3, 1], ()),
        ("", [], ()),
        ("-1", [], ()),
        ("0,-1,2", [0], ()),
        ("0,9,1", [0], ("9", "1")),
        ("9", [], ("9",)),
        ("1,1", [], ("1",)),
        ("GPU-02ab-2,GPU-00", [2, 0], ()),
        ("GPU-0", [], ("GPU-0",)),
        ("GPU-ffff", [], ("GPU-ffff",)),
        ("MIG-7,MIG-8", [1], ()),
        ("MIG-GPU-03ab-3/1/0", [3], ()),
        ("all", [], ("all",)),
    ],
)
def test_cuda_visible_devices(use_nvml, variable, order, missing):
    gpus = make(4)
    gpus[1].mig = ["MIG-7", "MIG-8"]
    use_nvml(FakePynvml(gpus))
    numbered, absent = number_visible(probe_gpus().gpus, variable)
    seen = sorted(
        (gpu for gpu in numbered if gpu.cuda_index is not None), key=lambda g: g.cuda_index
    )
    assert [gpu.index for gpu in seen] == order
    assert [gpu.cuda_index for gpu in seen] == list(range(len(order)))
    assert absent == missing


def test_numa_node_comes_from_sysfs(tmp_path):
    folder = tmp_path / "0000:3b:00.0"
    folder.mkdir()
    (folder / "numa_node").write_text("1\n")
    assert numa_node("00000000:3B:00.0", tmp_path) == 1
    (folder / "numa_node").write_text("-1\n")
    assert numa_node("00000000:3B:00.0", tmp_path) is None
    assert numa_node("00000000:FF:00.0", tmp_path) is None
