"""A `Machine` from words: `2 nodes x 8x A100-80 SXM, 200 Gb/s`, or from a machine.json.

It is what the inventory would find there, from the catalogue; what the words leave out is assumed,
and said in `Machine.assumed`. Nothing is measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from phalanx.errors import Finding, UserError, format_bytes
from phalanx.machine.catalogue import PCIE_GB_PER_S, CatalogueGpu, find_gpu
from phalanx.machine.facts import (
    Cpu,
    Gpu,
    Link,
    Machine,
    Memory,
    Precision,
    PrecisionProbe,
    Storage,
    TorchDevice,
    TorchFacts,
)
from phalanx.machine.inventory import probe_machine

EXAMPLES = (
    "16x RTX 2080",
    "2 nodes x 8x A100-80 SXM, 200 Gb/s",
    "4x L40S, PCIe4, 64 cores, 256 GB",
    "machine.json",
    "this",
)
_CORES_PER_GPU = 8
_HOST_PER_GPU_MEMORY = 2  # host memory per memory of the GPUs, a usual size of servers
_METAL_SHARE = 0.75  # of an Apple chip's memory that Metal recommends to use
_MAX_GPUS, _MAX_NODES = 64, 10_000
_GIB = 1 << 30

_DEVICES = re.compile(
    r"(?:(?P<nodes>\d{1,9})\s*nodes?\s*(?:x|of|\*)?\s*)?"
    r"(?:(?P<count>\d{1,9})\s*[x*]\s*)?(?P<name>\S.*)",
    re.IGNORECASE,
)
_NETWORK = re.compile(
    r"(?P<rate>\d{1,9}(?:\.\d{1,9})?)\s*G(?P<unit>b|B|bit)(?:/s|ps|it/s)", re.ASCII
)
_LINK = re.compile(r"(?:pci[\s-]?e[\s-]*(?:gen)?\s*(?P<generation>\d)?|nvlink)", re.IGNORECASE)
_CORES = re.compile(r"(?P<cores>\d{1,9})\s*(?:cpu\s*)?cores?", re.IGNORECASE)
_MEMORY = re.compile(
    r"(?P<size>\d{1,9}(?:\.\d{1,9})?)\s*(?P<unit>[GT])i?B(?:\s*ram)?", re.IGNORECASE
)


def parse_machine(text: str) -> Machine:
    """The machine described by `text`, of a machine.json or a run, or (`this`) the one at hand.

    Raises UserError with every problem of the words.
    """
    text = text.strip()
    if text == "this":
        return probe_machine()
    folder = Path(text, "machine.json")
    if text.endswith(".json"):
        return _load(Path(text))
    if len(text) < 256 and folder.is_file():
        return _load(folder)
    return _build(_read(text))


@dataclass
class _Words:
    """What the words say; None is what they leave out. The numbers are those of one node."""

    text: str
    gpu: CatalogueGpu | None = None
    count: int = 1
    nodes: int = 1
    link: Literal["nvlink", "pcie"] | None = None
    pcie_generation: int | None = None
    network_gbps: float | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    findings: list[Finding] = field(default_factory=list)


def _read(text: str) -> _Words:
    words = _Words(text)
    first, *rest = (part.strip() for part in text.split(","))
    match = _DEVICES.fullmatch(first)
    if match is None:
        raise UserError(_wrong(text, f"`{first}` names no GPU"))
    words.nodes, words.count = int(match["nodes"] or 1), int(match["count"] or 1)
    try:
        words.gpu = find_gpu(match["name"])
    except UserError as error:
        words.findings += error.findings
    for part in rest:
        _read_part(words, part)
    words.findings += _limits(words)
    if words.findings:
        raise UserError(words.findings)
    return words


def _read_part(words: _Words, part: str) -> None:
    if found := _NETWORK.fullmatch(part):
        words.network_gbps = float(found["rate"]) * (8 if found["unit"] == "B" else 1)
    elif found := _LINK.fullmatch(part):
        words.link = "nvlink" if part.lower() == "nvlink" else "pcie"
        words.pcie_generation = int(found["generation"]) if found["generation"] else None
    elif found := _CORES.fullmatch(part):
        words.cores = int(found["cores"])
    elif found := _MEMORY.fullmatch(part):
        scale = 1024 if found["unit"].upper() == "T" else 1
        words.memory_bytes = int(float(found["size"]) * scale * _GIB)
    else:
        words.findings.append(
            _wrong(
                words.text,
                f"`{part}` is neither a link (`PCIe4`, `NVLink`), a network between nodes "
                "(`200 Gb/s`), `64 cores` nor `256 GB`",
            )
        )


def _limits(words: _Words) -> Iterator[Finding]:
    if not 1 <= words.count <= _MAX_GPUS:
        yield _wrong(words.text, f"{words.count} GPUs in a node, it must be 1 to {_MAX_GPUS}")
    if not 1 <= words.nodes <= _MAX_NODES:
        yield _wrong(words.text, f"{words.nodes} nodes, it must be 1 to {_MAX_NODES}")
    if words.cores == 0 or words.memory_bytes == 0:
        yield _wrong(words.text, "0 cores or 0 GB of memory")
    if words.network_gbps is not None and words.nodes == 1:
        yield _wrong(words.text, f"{words.network_gbps:g} Gb/s between nodes, there is 1 node")
    if words.pcie_generation not in (None, *PCIE_GB_PER_S):
        known = ", ".join(map(str, PCIE_GB_PER_S))
        yield _wrong(words.text, f"PCIe {words.pcie_generation}, it must be one of {known}")
    gpu = words.gpu
    if gpu is None:
        return
    if gpu.kind == "mps" and (words.count, words.nodes) != (1, 1):
        yield _wrong(words.text, f"{words.count * words.nodes} x {gpu.name}, MPS is one device")
    if words.link == "nvlink" and not gpu.nvlink_lanes:
        yield _wrong(words.text, f"NVLink, but {gpu.name} has 0 lanes on its board")


def _wrong(text: str, problem: str) -> Finding:
    return Finding(
        slug="machine-words",
        what=f"`{text}` is no machine: {problem}",
        why="read as [NODES nodes x] [GPUS x] NAME, then in any order, for each node: link, "
        "network, cores, host memory",
        fix=" or ".join(f'--machine "{example}"' for example in EXAMPLES),
    )


def _build(words: _Words) -> Machine:
    gpu = words.gpu
    assert gpu is not None
    assumed = []
    cores = words.cores
    if cores is None:
        cores = _CORES_PER_GPU * words.count
        assumed.append(f"{cores} CPU cores ({_CORES_PER_GPU} per GPU)")
    memory = words.memory_bytes
    if memory is None and gpu.kind == "mps":
        memory = gpu.memory_bytes
        assumed.append(f"{format_bytes(memory)} of memory, the most {gpu.name} is sold with")
    elif memory is None:
        memory = _HOST_PER_GPU_MEMORY * words.count * gpu.memory_bytes
        assumed.append(
            f"{format_bytes(memory)} of host memory ({_HOST_PER_GPU_MEMORY} x that of the GPUs)"
        )
    if words.nodes > 1 and words.network_gbps is None:
        assumed.append("a network between the nodes of unknown speed")
    if gpu.compute_capability is not None and gpu.compute_capability < (7, 5):
        # The same border as in torch_checks.install_line.
        assumed.append(f"a torch for CUDA 12.6: later ones have no kernels for {gpu.name}")
    is_cuda = gpu.kind == "cuda"
    return Machine(
        probed_at="never",
        host=words.text,
        os="Linux" if is_cuda else "macOS",
        kernel="unknown",
        architecture="x86_64" if is_cuda else "arm64",
        python_version="unknown",
        python_executable="python",
        cpu=Cpu(model="unknown", physical_cores=None, logical_cores=cores, usable_cores=cores),
        memory=Memory(total_bytes=memory, available_bytes=memory, physical_bytes=memory),
        output=Storage(path="runs", total_bytes=0, free_bytes=0, writable=True),
        driver="ok" if is_cuda else "absent",
        gpus=tuple(_gpu(gpu, index) for index in range(words.count)) if is_cuda else (),
        links=_links(gpu, words) if is_cuda else (),
        torch=_torch(gpu, words.count, cores, memory),
        nodes=words.nodes,
        node_link_gbps=words.network_gbps,
        assumed=("the GPU's facts are the catalogue's", *assumed),
    )


def _gpu(gpu: CatalogueGpu, index: int) -> Gpu:
    return Gpu(
        index=index,
        name=gpu.nvml_name,
        cuda_index=index,
        memory_total_bytes=gpu.memory_bytes,
        memory_free_bytes=gpu.memory_bytes,
        compute_capability=gpu.compute_capability,
        power_limit_w=gpu.board_w,
    )


def _links(gpu: CatalogueGpu, words: _Words) -> tuple[Link, ...]:
    """All pairs alike: as through NVSwitch, or as on the PCIe of one processor."""
    lanes, rate = gpu.nvlink_lanes, gpu.link_gb_per_s
    if words.link == "pcie":
        lanes, rate = 0, PCIE_GB_PER_S.get(words.pcie_generation or gpu.pcie_generation or 0)
    return tuple(
        Link(
            first=i,
            second=j,
            path="NODE",
            nvlink_lanes=lanes,
            p2p=True if lanes else None,
            gb_per_s=rate,
        )
        for i, j in combinations(range(words.count), 2)
    )


def _torch(gpu: CatalogueGpu, count: int, cores: int, memory: int) -> TorchFacts:
    capability = gpu.compute_capability
    if capability is None:
        return TorchFacts(
            version="assumed",
            has_gloo=True,
            has_mps=True,
            mps_memory_bytes=int(_METAL_SHARE * memory),
            num_threads=cores,
            probes=_probes("mps", None),
        )
    return TorchFacts(
        version="assumed",
        cuda_version="13.0" if capability >= (7, 5) else "12.6",
        cuda_available=True,
        arch_list=(f"sm_{capability[0]}{capability[1]}",),
        nccl_version="(assumed)",
        has_nccl=True,
        has_gloo=True,
        num_threads=cores,
        devices=tuple(
            TorchDevice(
                index=index,
                name=gpu.nvml_name,
                compute_capability=capability,
                memory_total_bytes=gpu.memory_bytes,
            )
            for index in range(count)
        ),
        probes=_probes("cuda:0", capability),
    )


def _probes(device: str, capability: tuple[int, int] | None) -> tuple[PrecisionProbe, ...]:
    """The outcomes to expect; before 8.0 torch emulates bf16, and MPS has no TF32."""
    tried: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")
    return tuple(
        PrecisionProbe(
            device=device,
            precision=precision,
            ok=not (precision == "tf32" and (capability or (0, 0)) < (8, 0)),
            native=None
            if capability is None
            else capability >= (8, 0) or precision not in ("tf32", "bf16"),
            compute_capability=capability,
        )
        for precision in tried
    )


def _load(path: Path) -> Machine:
    """A machine.json, or the output of `check --json` or `plan --json`, which hold one."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        return Machine.from_json(data.get("machine", data))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            Finding(
                slug="machine-file",
                what=f"`{path}` holds no machine that can be read",
                why=f"{type(error).__name__}: {error}",
                fix=f"on that machine `phalanx check --json > {path.name}`, or in words: "
                f'--machine "{EXAMPLES[0]}"',
            )
        ) from error
