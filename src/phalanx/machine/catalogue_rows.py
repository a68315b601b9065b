"""What is known of each GPU without asking it: one row per card, each with its sources.

Rates are dense (no sparsity) and at the boost clock. Public tables disagree, and several hold
vector rates, sparse rates or wrong bandwidths; where sources conflict the row says which it took.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MIB = 1 << 20

# One direction, 16 lanes (Stas Bekman, ml-engineering, network/README.md; 3 is half of 4).
PCIE_GB_PER_S = {3: 15.5, 4: 31.0, 5: 63.0}
# Double precision units per single precision unit, by compute capability: 1:2 (sysrqmts: P100,
# V100, A100), 1:32 (sysrqmts: T4), 1:64 (hmc-tech: A40 0.59 of 37.4, L4 0.49 of 31.3).
_FP64_SHARE = {6: 1 / 2, 7.0: 1 / 2, 7.5: 1 / 32, 8.0: 1 / 2, 8.6: 1 / 64, 8.9: 1 / 64, 9.0: 1 / 2}


@dataclass(frozen=True, kw_only=True)
class CatalogueGpu:
    """The facts of one card, or of one Apple chip; None is what no source says."""

    name: str
    """As people call it, short and unlike every other: `A100-80 SXM`."""
    nvml_name: str
    """As the driver calls it: `NVIDIA A100-SXM4-80GB`."""
    words: tuple[str, ...]
    """Other ways to write the model, without memory and form."""
    form: Literal["sxm", "pcie", "nvl", "soc"]
    is_usual_form: bool
    """Whether the model without a form means this one."""
    memory_gb: int
    """As it is sold; for an Apple chip the most there is."""
    memory_bytes: int
    """As NVML reports it, where a source has it; otherwise the GB it is sold with, counted as GiB
    (right within 1 % on cards with HBM; GDDR with error correction has up to 6 % less)."""
    compute_capability: tuple[int, int] | None
    has_bf16: bool
    """Whether there is bf16 hardware: from compute capability 8.0 on, and on Apple chips."""
    half_tflops: float | None
    """fp16, and bf16 where there is bf16, on tensor cores adding up in fp32, which is half the
    advertised rate on GeForce cards. Without tensor cores (P100) the plain fp16 rate."""
    tf32_tflops: float | None
    fp32_tflops: float | None
    fp64_tflops: float | None
    """On the ordinary units, not on tensor cores."""
    memory_gb_per_s: float | None
    nvlink_gb_per_s: float | None
    """All lanes of one GPU, one direction; None without NVLink on the board."""
    nvlink_lanes: int
    pcie_generation: int | None
    board_w: float | None
    """The power limit the board is sold with."""
    processors: int
    """Streaming multiprocessors, or cores of an Apple GPU."""
    source: str

    @property
    def kind(self) -> Literal["cuda", "mps"]:
        return "mps" if self.form == "soc" else "cuda"

    @property
    def link_gb_per_s(self) -> float | None:
        """To another GPU of the same node, one direction; None on one chip."""
        if self.nvlink_gb_per_s is not None:
            return self.nvlink_gb_per_s
        return PCIE_GB_PER_S[self.pcie_generation] if self.pcie_generation else None


def _card(
    name: str,
    nvml_name: str,
    words: str,
    form: Literal["sxm", "pcie", "nvl"],
    memory: tuple[int, int | None],
    capability: tuple[int, int],
    tflops: tuple[float, float | None, float],
    bandwidth: float | None,
    links: tuple[int, float | None, int],
    board_w: float | None,
    source: str,
) -> CatalogueGpu:
    """One NVIDIA row; memory is (GB, MiB in NVML), tflops (half, tf32, fp32), links (PCIe
    generation, NVLink GB/s, lanes)."""
    gb, mib = memory
    version = float(f"{capability[0]}.{capability[1]}")
    share = _FP64_SHARE.get(version)
    model = words.split(",")
    return CatalogueGpu(
        name=name,
        nvml_name=nvml_name,
        words=tuple(model),
        form=form,
        is_usual_form=form == "sxm" or model[0] not in _ALSO_AS_SXM,
        memory_gb=gb,
        memory_bytes=(mib if mib is not None else gb * 1024) * MIB,
        compute_capability=capability,
        has_bf16=capability >= (8, 0),
        half_tflops=tflops[0],
        tf32_tflops=tflops[1],
        fp32_tflops=tflops[2],
        fp64_tflops=round(tflops[2] * share, 3) if share is not None else None,
        memory_gb_per_s=bandwidth,
        pcie_generation=links[0],
        nvlink_gb_per_s=links[1],
        nvlink_lanes=links[2],
        board_w=board_w,
        processors=_PROCESSORS.get(name) or _PROCESSORS[model[0]],
        source=source,
    )


# NVIDIA's architecture white papers (Pascal to Hopper), boards as they are sold; B200: CUDA's
# documentation. By name where the form matters, otherwise by model.
_PROCESSORS = {
    "p100": 56,
    "v100": 80,
    "t4": 40,
    "rtx 2080": 46,
    "rtx 2080 ti": 68,
    "rtx 3090": 82,
    "rtx 4090": 128,
    "rtx a6000": 84,
    "a100": 108,
    "h100": 132,
    "H100 PCIe": 114,
    "h200": 132,
    "b200": 148,
    "l4": 58,
    "l40s": 142,
}

_ALSO_AS_SXM = ("p100", "v100", "a100", "h100")  # the form must be said unless SXM is meant

_CC = "compute capability: developer.nvidia.com/cuda-gpus"
_MODAL = "MiB as nvidia-smi shows them: modal-client pull request 2797"
# Lanes: 20 GB/s each in NVLink 1, 25 in 2 to 4, 50 in 5.
_P100_NVLINK, _V100_NVLINK, _A100_NVLINK = (3, 80.0, 4), (3, 150.0, 6), (4, 300.0, 12)
_H100_NVLINK, _B200_NVLINK = (5, 450.0, 18), (5, 900.0, 18)
_PCIE3, _PCIE4, _PCIE5 = (3, None, 0), (4, None, 0), (5, None, 0)

_P100 = f"hmc-tech, sysrqmts, Tom's Hardware (W); fp16 without tensor cores; {_CC}"
_V100 = (
    f"Composer, Lightning, NeuSight, ml-engineering; W: hmc-tech (sysrqmts has 300 for PCIe); {_CC}"
)
_A100 = f"torchtitan, NeuSight, torch device_info; W: sysrqmts, glennklockwood.com; {_MODAL}; {_CC}"
_A100_80_PCIE = f"torch device_info, NeuSight; W: sources conflict (250, 300, 400); {_MODAL}; {_CC}"
_H100 = f"torchtitan, Lightning, ml-engineering; W: NVIDIA product briefs; {_MODAL}; {_CC}"
_H100_NVL = f"torchtitan, Lightning; memory and W (350 to 400): gpu.blog; {_CC}"
_TURING = (
    "fp32: Lightning, 3dfxzone; half is calculated from SMs x 8 x 64 x 2 x boost clock, halved for "
    f"adding up in fp32; {_CC}"
)

# fmt: off
NVIDIA = (
    _card("P100 SXM", "Tesla P100-SXM2-16GB", "p100", "sxm", (16, None), (6, 0),
          (21.2, None, 10.6), 732, _P100_NVLINK, 300, _P100),
    _card("P100 PCIe", "Tesla P100-PCIE-16GB", "p100", "pcie", (16, None), (6, 0),
          (18.7, None, 9.3), 732, _PCIE3, 250, _P100),
    _card("V100-16 SXM", "Tesla V100-SXM2-16GB", "v100", "sxm", (16, None), (7, 0),
          (125, None, 15.7), 900, _V100_NVLINK, 300, _V100),
    _card("V100-32 SXM", "Tesla V100-SXM2-32GB", "v100", "sxm", (32, None), (7, 0),
          (125, None, 15.7), 900, _V100_NVLINK, 300, _V100),
    _card("V100-16 PCIe", "Tesla V100-PCIE-16GB", "v100", "pcie", (16, None), (7, 0),
          (112, None, 14), 900, _PCIE3, 250, _V100),
    _card("V100-32 PCIe", "Tesla V100-PCIE-32GB", "v100", "pcie", (32, None), (7, 0),
          (112, None, 14), 900, _PCIE3, 250, _V100),
    _card("T4", "Tesla T4", "t4", "pcie", (16, 15360), (7, 5),
          (65, None, 8.1), 320, _PCIE3, 70, f"Composer; sysrqmts; {_MODAL}; {_CC}"),
    _card("RTX 2080", "NVIDIA GeForce RTX 2080", "rtx 2080,2080", "pcie", (8, None), (7, 5),
          (42.4, None, 10.6), 448, _PCIE3, 215, f"{_TURING}; W: cputronic"),
    _card("RTX 2080 Ti", "NVIDIA GeForce RTX 2080 Ti", "rtx 2080 ti,2080 ti", "pcie",
          (11, None), (7, 5), (56.9, None, 14.2), 616, _PCIE3, None, _TURING),
    _card("RTX 3090", "NVIDIA GeForce RTX 3090", "rtx 3090,3090", "pcie", (24, None), (8, 6),
          (71.2, 35.6, 35.6), 936, _PCIE4, 350,
          f"ctc.archdevil, triteia (Lightning has vector rates); W: gpu_spec table; {_CC}"),
    _card("RTX 4090", "NVIDIA GeForce RTX 4090", "rtx 4090,4090", "pcie", (24, 24564), (8, 9),
          (165.2, 82.6, 82.6), 1008, _PCIE4, 450,
          f"waredb, mikasenghaas (Lightning has vector rates); W: gpu_spec table; {_CC}"),
    _card("RTX A6000", "NVIDIA RTX A6000", "rtx a6000,a6000", "pcie", (48, None), (8, 6),
          (154.85, 77.4, 38.7), 768, _PCIE4, 300,
          f"torchtitan, sysrqmts (Lightning has vector rates); W: gpu_spec table; {_CC}"),
    _card("A100-40 SXM", "NVIDIA A100-SXM4-40GB", "a100", "sxm", (40, 40960), (8, 0),
          (312, 156, 19.5), 1555, _A100_NVLINK, 400, _A100),
    _card("A100-40 PCIe", "NVIDIA A100-PCIE-40GB", "a100", "pcie", (40, 40960), (8, 0),
          (312, 156, 19.5), 1555, _PCIE4, 250, _A100),
    _card("A100-80 SXM", "NVIDIA A100-SXM4-80GB", "a100", "sxm", (80, 81920), (8, 0),
          (312, 156, 19.5), 2039, _A100_NVLINK, 400, _A100),
    _card("A100-80 PCIe", "NVIDIA A100 80GB PCIe", "a100", "pcie", (80, 81920), (8, 0),
          (312, 156, 19.5), 1935, _PCIE4, None, _A100_80_PCIE),
    _card("H100 SXM", "NVIDIA H100 80GB HBM3", "h100", "sxm", (80, 81559), (9, 0),
          (989, 494.5, 67), 3350, _H100_NVLINK, 700, _H100),
    _card("H100 PCIe", "NVIDIA H100 PCIe", "h100", "pcie", (80, 81559), (9, 0),
          (756, 378, 51), 2000, _PCIE5, 350, _H100),
    _card("H100 NVL", "NVIDIA H100 NVL", "h100", "nvl", (94, None), (9, 0),
          (835, 417.5, 60), None, _PCIE5, 400, _H100_NVL),
    _card("H200", "NVIDIA H200", "h200", "sxm", (141, 143771), (9, 0),
          (989, 494.5, 67), 4800, _H100_NVLINK, 700,
          f"torchtitan, ml-engineering; MiB, W: nvidia-smi, driver 580; lanes: MLPerf 4.1; {_CC}"),
    _card("B200", "NVIDIA B200", "b200", "sxm", (180, None), (10, 0),
          (2250, 1125, 80), 8000, _B200_NVLINK, 1000,
          f"torchtitan; memory: ml-engineering (others 192); W: llmbook.apartsin.com; {_CC}"),
    _card("L4", "NVIDIA L4", "l4", "pcie", (24, 23034), (8, 9),
          (121, 60, 30.3), 300, _PCIE4, 72,
          f"Lightning, NeuSight (torch has 242, 3350 GB/s); W: hmc-tech; {_MODAL}; {_CC}"),
    _card("L40S", "NVIDIA L40S", "l40s", "pcie", (48, 46068), (8, 9),
          (362, 183, 91.6), 864, _PCIE4, 350,
          f"torchtitan, ml-engineering; W: llmbook.apartsin.com; {_MODAL}; {_CC}"),
)
# fmt: on


def _chip(name: str, gb: int, fp32: float | None, bandwidth: float | None) -> CatalogueGpu:
    return CatalogueGpu(
        name=f"Apple {name}",
        nvml_name=f"Apple {name}",
        words=(name.lower(),),
        form="soc",
        is_usual_form=True,
        memory_gb=gb,
        memory_bytes=gb * 1024 * MIB,
        compute_capability=None,
        has_bf16=True,
        half_tflops=None,  # sources conflict: once or twice the fp32 rate
        tf32_tflops=None,
        fp32_tflops=fp32,
        fp64_tflops=None,
        memory_gb_per_s=bandwidth,
        nvlink_gb_per_s=None,
        nvlink_lanes=0,
        pcie_generation=None,
        board_w=None,
        processors=1,
        source="akunu book; huggingface.js hardware.ts; M4: wccftech",
    )


APPLE = (
    _chip("M1", 16, 2.6, 68),
    _chip("M1 Pro", 32, 5.2, 200),
    _chip("M1 Max", 64, 10.4, 400),
    _chip("M1 Ultra", 128, 20.8, 800),
    _chip("M2", 24, 3.6, 100),
    _chip("M2 Max", 96, 13.5, None),
    _chip("M2 Ultra", 192, 27.2, 800),
    _chip("M3 Max", 128, 14.2, None),
    _chip("M4 Pro", 64, None, 273),
    _chip("M4 Max", 128, None, 546),
)
