"""GPUs that fail, and the driver's words about it. What CUDA says late is a symptom."""

from __future__ import annotations

from phalanx.diagnose.causes.row import Cause

_DRAIN = "scontrol update nodename=$(hostname) state=drain reason='{name}'"
_SYNC = "CUDA_LAUNCH_BLOCKING=1 {again} names the line; `compute-sanitizer` the access"

CAUSES = (
    Cause(
        name="gpu-lost",
        any_of=(
            r"Xid \(PCI:(?P<bus>[\w:.]+)\): 79\b",
            r"GPU has fallen off the bus",
            r"GPU is lost|CUDA error: device .*(lost|unavailable)",
            r"Unable to determine the device handle for GPU ?(?P<bus>[\w:.]+)",
            r"unknown error.*GPU requires reset|GPU requires reset",
        ),
        is_said_before=True,
        words="a GPU ({bus}) is gone from the bus: power, heat or the slot",
        fix=f"{_DRAIN}; power-cycle the machine; the run goes on elsewhere: `{{again}}`",
        text="NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
        source="failure 19; NVIDIA's catalogue of Xids",
    ),
    Cause(
        name="gpu-memory-fault",
        any_of=(
            r"uncorrectable ECC error encountered",
            r"Xid \(PCI:(?P<bus>[\w:.]+)\): (48|63|64|92|94|95)\b",
            r"Row Remapper: New row marked for remapping",
            r"double bit ecc error",
        ),
        is_said_before=True,
        words="the memory of a GPU ({bus}) has a fault that cannot be corrected",
        fix=f"{_DRAIN}; `nvidia-smi --gpu-reset -i GPU`; a card that does it again goes back",
        text="NVRM: Xid (PCI:0000:65:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New "
        "row marked for remapping, reset gpu to activate.",
        source="failure 18 and 20; NVIDIA dynamic page retirement",
    ),
    Cause(
        name="gpu-link-fault",
        any_of=(r"Xid \(PCI:(?P<bus>[\w:.]+)\): 74\b", r"NVLink.*(fatal|uncorrectable)"),
        is_said_before=True,
        words="NVLink of a GPU ({bus}) reports errors",
        fix=f"nvidia-smi nvlink -e; {_DRAIN}; until then `NCCL_P2P_DISABLE=1 {{again}}`",
        text="NVRM: Xid (PCI:0000:4b:00): 74, pid=993, NVLink: fatal error detected on link 3",
        source="NVIDIA's catalogue of Xids",
    ),
    Cause(
        name="driver-mismatch",
        any_of=(r"[Dd]river/library version mismatch",),
        is_said_before=True,
        words="the driver was updated under the running system",
        fix="reboot the machine, or reload the nvidia modules",
        text="Failed to initialize NVML: Driver/library version mismatch",
        source="NVML",
    ),
    Cause(
        name="gpu-fault",
        any_of=(r"Xid \(PCI:(?P<bus>[\w:.]+)\): (?P<number>\d+)",),
        grade="symptom",
        is_said_before=True,
        words="the driver reports Xid {number} for the GPU {bus}; 13 and 31 come from the code "
        "that ran, the others as a rule from the card",
        fix="look it up in NVIDIA's Xid catalogue; `nvidia-smi -q -d ECC,PAGE_RETIREMENT`",
        text="NVRM: Xid (PCI:0000:17:00): 31, pid=2611, name=python, MMU Fault",
        source="failure 19; NVIDIA's catalogue of Xids",
    ),
    Cause(
        name="device-assert",
        any_of=(r"CUDA error: device-side assert triggered",),
        grade="symptom",
        words="a kernel found a value that it may not have: an index or a label out of range, as a "
        "rule",
        fix="CUDA_LAUNCH_BLOCKING=1 {again} names the line; on the CPU the message is plain",
        text="RuntimeError: CUDA error: device-side assert triggered",
        source="CUDA runtime",
    ),
    Cause(
        name="illegal-memory-access",
        any_of=(
            r"an illegal memory access was encountered",
            r"CUDA error: (unspecified launch failure|misaligned address|an illegal instruction)",
        ),
        grade="symptom",
        words="a kernel read or wrote where it may not: a fault in an extension, or of the card",
        fix=_SYNC,
        text="RuntimeError: CUDA error: an illegal memory access was encountered",
        source="CUDA runtime",
    ),
)
