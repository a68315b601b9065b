"""The catalogue: every name finds its own card and no other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import UserError
from phalanx.machine.catalogue import CATALOGUE, aliases, find_gpu, match_gpu

# As NVML, torch, price lists and people write them.
SPELLINGS = {
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "RTX4090": "RTX 4090",
    "4090": "RTX 4090",
    "rtx 4090 24GB": "RTX 4090",
    "3090": "RTX 3090",
    "RTX 2080": "RTX 2080",
    "2080": "RTX 2080",
    "RTX 2080 Ti": "RTX 2080 Ti",
    "RTX2080Ti": "RTX 2080 Ti",
    "NVIDIA GeForce RTX 2080 Ti": "RTX 2080 Ti",
    "A6000": "RTX A6000",
    "Quadro RTX A6000": "RTX A6000",
    "A100-SXM4-80GB": "A100-80 SXM",
    "NVIDIA A100-SXM4-40GB": "A100-40 SXM",
    "A100-80": "A100-80 SXM",
    "A100 80G": "A100-80 SXM",
    "A100 80GB PCIe": "A100-80 PCIe",
    "NVIDIA A100-PCIE-40GB": "A100-40 PCIe",
    "A100-40": "A100-40 SXM",
    "a100_80gb_pci-e": "A100-80 PCIe",
    "H100": "H100 SXM",
    "H100 80GB HBM3": "H100 SXM",
    "H100SXM5": "H100 SXM",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "H100 80GB PCI Express": "H100 PCIe",
    "H100 NVL": "H100 NVL",
    "NVIDIA H100 NVL 94GB": "H100 NVL",
    "H200": "H200",
    "NVIDIA H200": "H200",
    "H200 SXM 141GB": "H200",
    "B200 192GB": "B200",
    "V100-32": "V100-32 SXM",
    "Tesla V100-SXM2-16GB": "V100-16 SXM",
    "Tesla V100-PCIE-32GB": "V100-32 PCIe",
    "Tesla P100-PCIE-16GB": "P100 PCIe",
    "P100": "P100 SXM",
    "Tesla T4": "T4",
    "L4": "L4",
    "NVIDIA L4": "L4",
    "L40S": "L40S",
    "NVIDIA L40S": "L40S",
    "M3 Max": "Apple M3 Max",
    "Apple M1": "Apple M1",
}


@pytest.mark.parametrize(("text", "name"), SPELLINGS.items())
def test_people_and_drivers_mean_one_card(text, name):
    assert find_gpu(text).name == name


@pytest.mark.parametrize("gpu", CATALOGUE, ids=lambda gpu: gpu.name)
def test_every_alias_finds_its_own_row_and_only_it(gpu):
    assert match_gpu(gpu.name) == (gpu,)
    assert match_gpu(gpu.nvml_name) == (gpu,)
    for alias in aliases(gpu):
        found = match_gpu(alias)
        assert gpu in found, alias
        # What a name leaves open is the memory, and nothing else.
        assert {other.form for other in found} == {gpu.form}, alias
        assert len({other.memory_gb for other in found}) == len(found), alias


@given(
    gpu=st.sampled_from(CATALOGUE),
    style=st.sampled_from([str.upper, str.lower, str.title]),
    joint=st.sampled_from([" ", "-", "_", "  "]),
    prefix=st.sampled_from(["", "NVIDIA ", "nvidia geforce "]),
)
def test_case_and_separators_do_not_matter(gpu, style, joint, prefix):
    assert find_gpu(style(prefix + gpu.name.replace(" ", joint))) is gpu


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("L40", "L4"),
        ("RTX 5090", "RTX"),
        ("RTX 4090 Laptop GPU", "RTX 4090"),
        ("A100-60", "A100-"),
        ("h200 nvl", "H200"),
        ("3090 Ti", "RTX 3090"),
        ("A100X", "A100"),
    ],
)
def test_an_unknown_card_is_refused_with_the_nearest_names(text, near):
    with pytest.raises(UserError) as error:
        find_gpu(text)
    (finding,) = error.value.findings
    assert finding.slug == "unknown-gpu"
    assert f"`{text}`" in finding.what
    assert near in finding.why
    assert "--machine machine.json" in finding.fix


@pytest.mark.parametrize("text", ["A100", "V100", "A100 PCIe"])
def test_a_name_that_leaves_the_memory_open_is_not_guessed(text):
    with pytest.raises(UserError) as error:
        find_gpu(text)
    (finding,) = error.value.findings
    assert finding.slug == "which-gpu"
    assert finding.why.count("GB") == 2
    assert len(match_gpu(finding.fix)) == 1


def test_the_facts_are_within_what_is_physically_sold():
    for gpu in CATALOGUE:
        nominal = gpu.memory_gb * 1024**3
        assert 0.93 * nominal <= gpu.memory_bytes <= nominal, gpu.name
        assert gpu.source
        if gpu.kind == "mps":
            continue
        assert gpu.has_bf16 == (gpu.compute_capability >= (8, 0)), gpu.name
        assert (gpu.tf32_tflops is not None) == (gpu.compute_capability >= (8, 0)), gpu.name
        # Vector and sparse rates taken for tensor rates are the usual mistake of public tables.
        assert 1.9 <= gpu.half_tflops / gpu.fp32_tflops <= 29, gpu.name
        if gpu.tf32_tflops is not None:
            assert gpu.half_tflops / gpu.tf32_tflops == pytest.approx(2, rel=0.02), gpu.name
        assert (gpu.nvlink_lanes > 0) == (gpu.nvlink_gb_per_s is not None), gpu.name
        if gpu.nvlink_lanes:
            assert gpu.nvlink_gb_per_s / gpu.nvlink_lanes in (20, 25, 50), gpu.name
