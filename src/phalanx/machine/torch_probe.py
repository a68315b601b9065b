"""Asks torch about itself; only ever run as a child process, by its file, without Phalanx.

Reports one JSON line after each stage, so that a crash or a hang shows where it happened.
`torch_probe.py` reports everything; `torch_probe.py cpu:bf16 ...` only runs these probes.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def _reporter() -> Callable[..., None]:
    """A private copy of stdout; what torch and its libraries print goes to stderr."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def report(**message: Any) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    return report


def _answer(question: Callable[[], Any], otherwise: Any = None) -> Any:
    try:
        return question()
    except Exception:
        return otherwise


def gather_facts(torch: Any) -> dict[str, Any]:
    """The fields of `TorchFacts`, devices and probes apart."""
    distributed = torch.distributed
    has_distributed = bool(_answer(distributed.is_available, False))

    def backend(name: str) -> bool:
        return has_distributed and bool(
            _answer(getattr(distributed, f"is_{name}_available", lambda: False), False)
        )

    has_mps = bool(_answer(torch.backends.mps.is_available, False))
    nccl = _answer(torch.cuda.nccl.version)
    return {
        "version": str(torch.__version__),
        "cuda_version": torch.version.cuda,
        "hip_version": getattr(torch.version, "hip", None),
        "arch_list": list(_answer(torch.cuda.get_arch_list, [])),
        "cudnn_version": _answer(torch.backends.cudnn.version),
        "nccl_version": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else None,
        "has_nccl": backend("nccl"),
        "has_gloo": backend("gloo"),
        "has_mpi": backend("mpi"),
        "has_mps": has_mps,
        "mps_memory_bytes": _answer(torch.mps.recommended_max_memory) if has_mps else None,
        "num_threads": torch.get_num_threads(),
    }


def gather_cuda(torch: Any) -> dict[str, Any]:
    """CUDA as torch sees it; makes the driver's first contact, which is where it can hang."""
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return {"cuda_available": False, "cuda_error": None, "devices": []}
    try:
        torch.cuda.init()
        devices = [_device(torch, index) for index in range(torch.cuda.device_count())]
    except Exception as error:
        return {"cuda_available": False, "cuda_error": str(error).strip(), "devices": []}
    return {"cuda_available": bool(devices), "cuda_error": None, "devices": devices}


def _device(torch: Any, index: int) -> dict[str, Any]:
    facts = torch.cuda.get_device_properties(index)
    uuid = getattr(facts, "uuid", None)
    return {
        "index": index,
        "name": facts.name,
        "compute_capability": [facts.major, facts.minor],
        "memory_total_bytes": int(facts.total_memory),
        "uuid": None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}",
    }


def list_probes(facts: dict[str, Any]) -> list[str]:
    """What to try, as `device:precision`; bf16 on CPU comes last, for it may kill the process."""
    probes = ["cpu:fp32", "cpu:fp16"]
    if facts["has_mps"]:
        probes += ["mps:fp32", "mps:fp16", "mps:bf16"]
    seen = set()
    for device in facts["devices"]:
        capability = tuple(device["compute_capability"])
        if capability in seen:
            continue
        seen.add(capability)
        # Below 8.0 the TF32 switch does nothing: such a product would be fp32.
        has_tf32 = capability >= (8, 0) and facts["hip_version"] is None
        names = ["fp32", "tf32", "fp16", "bf16"] if has_tf32 else ["fp32", "fp16", "bf16"]
        probes += [f"cuda:{device['index']}:{name}" for name in names]
    return [*probes, "cpu:bf16"]


def run_probe(torch: Any, name: str) -> dict[str, Any]:
    """One matrix product, forward and backward, whose result every precision holds exactly."""
    device, _, precision = name.rpartition(":")
    result: dict[str, Any] = {"device": device, "precision": precision}
    is_cuda = device.startswith("cuda")
    try:
        if is_cuda:
            capability = torch.cuda.get_device_capability(device)
            result["compute_capability"] = list(capability)
            least = {"fp32": (0, 0), "fp16": (5, 3), "bf16": (8, 0), "tf32": (8, 0)}[precision]
            result["native"] = capability >= least or torch.version.hip is not None
            _set_tf32(torch, precision == "tf32")
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
        # 256 products of 1/16 x 1/16 add up to 1; each partial sum k/256 fits bf16's 8 bits.
        a = torch.full((256, 256), 1 / 16, dtype=dtype, device=device, requires_grad=True)
        product = a @ a
        product.sum().backward()
        wrong = (product != 1).sum().item()
        finite = bool(torch.isfinite(a.grad).all().item())
        result["ok"] = wrong == 0 and finite
        result["error"] = None if result["ok"] else f"{wrong} of {256 * 256} results are wrong"
    except Exception as error:
        result["ok"] = False
        lines = str(error).strip().splitlines()
        result["error"] = lines[0] if lines else type(error).__name__
    return result


def _set_tf32(torch: Any, on: bool) -> None:
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        matmul.fp32_precision = "tf32" if on else "ieee"
    else:
        matmul.allow_tf32 = on


def main(wanted: list[str]) -> None:
    """Report stages, facts and probes; `wanted` restricts it to these probes."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a probe that kills leaves no core file
    report = _reporter()
    warnings.simplefilter("ignore")
    report(stage="importing torch")
    import torch

    probes = wanted
    if not wanted:
        report(stage="asking torch")
        facts = gather_facts(torch)
        report(stage="starting CUDA")
        facts |= gather_cuda(torch)
        probes = list_probes(facts)
        report(facts=facts, probes=probes)
    for name in probes:
        report(stage=name)
        report(probe=run_probe(torch, name))
    report(done=True)
    # Skips torch's own shutdown: a driver that hangs there would spoil answers already given.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
