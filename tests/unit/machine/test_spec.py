"""Machines from words and from files."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.codec import to_json
from phalanx.errors import UserError
from phalanx.machine import Machine, parse_machine
from phalanx.machine.catalogue import CATALOGUE, match_gpu
from phalanx.machine.checks import cannot_train
from phalanx.machine.spec import EXAMPLES

GIB = 1 << 30


def problems(text):
    with pytest.raises(UserError) as error:
        parse_machine(text)
    return error.value.findings


def test_a_server_as_the_inventory_would_find_it():
    machine = parse_machine("16x RTX 2080")
    assert machine.accelerator == "cuda"
    assert [gpu.cuda_index for gpu in machine.visible_gpus] == list(range(16))
    assert {gpu.name for gpu in machine.gpus} == {"NVIDIA GeForce RTX 2080"}
    assert machine.gpus[0].memory_total_bytes == 8 * GIB
    assert machine.gpus[0].compute_capability == (7, 5)
    assert len(machine.links) == 120
    assert {link.label for link in machine.links} == {"NODE"}
    assert machine.precisions(machine.gpus[3]) == {"fp32", "fp16"}
    assert machine.torch.has_nccl
    assert machine.cpu.usable_cores == 128
    assert any("128 CPU cores (8 per GPU)" in line for line in machine.assumed)


def test_nodes_with_a_network():
    machine = parse_machine("2 nodes x 8x A100-80 SXM, 200 Gb/s")
    assert (machine.nodes, machine.node_link_gbps, len(machine.gpus)) == (2, 200.0, 8)
    assert {link.label for link in machine.links} == {"NV12"}
    assert machine.precisions(machine.gpus[0]) == {"fp32", "tf32", "fp16", "bf16"}


def test_all_that_can_be_said_of_a_node():
    machine = parse_machine("4x L40S, PCIe4, 64 cores, 256 GB")
    assert machine.cpu.usable_cores == 64
    assert machine.memory.total_bytes == 256 * GIB
    assert machine.assumed == ("the GPU's facts are the catalogue's",)


@pytest.mark.parametrize(
    ("text", "label", "rate"),
    [
        ("2x H100", "NV18", 450),
        ("2x H100, PCIe", "NODE", 63),
        ("2x H100, PCIe gen 4", "NODE", 31),
        ("2x 4090", "NODE", 31),
        ("2x H200, NVLink", "NV18", 450),
    ],
)
def test_links_are_the_cards_own_unless_pcie_is_said(text, label, rate):
    (link,) = parse_machine(text).links
    assert (link.label, link.gb_per_s) == (label, rate)


@pytest.mark.parametrize(
    ("text", "gbps"),
    [("200 Gb/s", 200), ("100Gbps", 100), ("25 GB/s", 200), ("400 Gbit/s", 400)],
)
def test_a_network_in_bits_or_bytes(text, gbps):
    assert parse_machine(f"2 nodes x 8x H100, {text}").node_link_gbps == gbps


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("1x H100", "NVIDIA H100 80GB HBM3", 1),
        ("A100-80", "NVIDIA A100-SXM4-80GB", 1),
        ("2080 Ti", "NVIDIA GeForce RTX 2080 Ti", 1),
        ("4 X 4090", "NVIDIA GeForce RTX 4090", 4),
        ("8*V100-32", "Tesla V100-SXM2-32GB", 8),
    ],
)
def test_one_or_many(text, name, count):
    gpus = parse_machine(text).gpus
    assert ({gpu.name for gpu in gpus}, len(gpus)) == ({name}, count)


def test_an_apple_chip():
    machine = parse_machine("M3 Max, 64 GB, 16 cores")
    assert (machine.accelerator, machine.gpus) == ("mps", ())
    assert machine.memory.total_bytes == 64 * GIB
    assert machine.torch.mps_memory_bytes == 48 * GIB
    assert "bf16" in machine.precisions(device="mps")


@given(
    gpu=st.sampled_from(CATALOGUE),
    count=st.integers(1, 16),
    nodes=st.integers(1, 4),
    cores=st.integers(1, 512),
)
def test_every_card_of_the_catalogue_makes_a_machine_that_survives_json(gpu, count, nodes, cores):
    if gpu.kind == "mps":
        count = nodes = 1
    machine = parse_machine(f"{nodes} nodes x {count}x {gpu.name}, {cores} cores")
    assert Machine.from_json(json.loads(json.dumps(to_json(machine)))) == machine
    assert len(machine.links) == len(machine.gpus) * (len(machine.gpus) - 1) // 2
    assert cannot_train(machine) == []
    for found in machine.gpus:
        assert match_gpu(found.name) == (gpu,)
        assert ("bf16" in machine.precisions(found)) == gpu.has_bf16


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "names no GPU"),
        ("8x H100, 3 cups", "`3 cups`"),
        ("0x H100", "0 GPUs"),
        ("100x H100", "100 GPUs"),
        ("0 nodes x 8x H100", "0 nodes"),
        ("8x H100, 200 Gb/s", "there is 1 node"),
        ("2x M3 Max", "MPS is one device"),
        ("2x 4090, NVLink", "0 lanes"),
        ("2x H100, 0 cores", "0 cores"),
        ("2x H100, PCIe9", "PCIe 9"),
    ],
)
def test_wrong_words_are_answered_with_examples(text, word):
    (finding,) = problems(text)
    assert finding.slug == "machine-words"
    assert word in finding.what
    for example in EXAMPLES:
        assert example in finding.fix


@given(text=st.text(alphabet="0123456789x, nodesGb/HT4.\0-", max_size=40) | st.just("9" * 5000))
def test_no_text_is_a_crash(text):
    try:
        assert parse_machine(text).host == text.strip()
    except UserError as error:
        assert all(finding.fix for finding in error.findings)


def test_all_problems_at_once():
    slugs = [finding.slug for finding in problems("8x H300, 3 cups, 1 Gb/s")]
    assert slugs == ["unknown-gpu", "machine-words", "machine-words"]


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_machine_file_or_the_output_of_check(tmp_path, load_machine, wrapped):
    machine = load_machine("8xa100")
    data = to_json(machine)
    path = tmp_path / "machine.json"
    path.write_text(json.dumps({"machine": data, "findings": []} if wrapped else data))
    assert parse_machine(str(path)) == machine
    assert parse_machine(str(tmp_path)) == machine  # a run directory


@pytest.mark.parametrize("content", [None, "{", "[]", "3", "{}", '{"schema_version": 1, "x": 2}'])
def test_a_file_that_is_no_machine(tmp_path, content):
    path = tmp_path / "machine.json"
    if content is not None:
        path.write_text(content)
    (finding,) = problems(str(path))
    assert finding.slug in ("machine-file", "machine-schema")


def test_a_machine_file_of_before_nodes_loads(load_machine):
    data = to_json(load_machine("2x4090"))
    for name in ("nodes", "node_link_gbps", "assumed"):
        del data[name]
    assert Machine.from_json(data).nodes == 1
