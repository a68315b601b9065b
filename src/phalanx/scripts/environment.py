"""What a launched script finds in its environment: all that torchrun sets, and what `accelerate
launch` (accelerate 1.15) sets for the options and files that were given."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from phalanx.errors import Finding
from phalanx.prepare.rank_environment import waiting_threads
from phalanx.run.launching import Share

PRECISIONS = ("no", "fp16", "bf16", "fp8")

# fsdp_config keys of an accelerate file whose variable has another name.
_FSDP_NAMES = {"fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP"}
_DEEPSPEED_NAMES = {
    "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
}
_DYNAMO_NAMES = {
    "dynamo_backend": "ACCELERATE_DYNAMO_BACKEND",
    "dynamo_mode": "ACCELERATE_DYNAMO_MODE",
    "dynamo_use_fullgraph": "ACCELERATE_DYNAMO_USE_FULLGRAPH",
    "dynamo_use_dynamic": "ACCELERATE_DYNAMO_USE_DYNAMIC",
    "dynamo_use_regional_compilation": "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION",
}
# Read where they are named above, or of no meaning for ranks of one machine.
_KNOWN_KEYS = {
    *("compute_environment", "debug", "distributed_type", "downcast_bf16", "dynamo_config"),
    *("enable_cpu_affinity", "deepspeed_config", "fsdp_config", "gpu_ids", "machine_rank"),
    *("main_process_ip", "main_process_port", "main_training_function", "mixed_precision"),
    *("num_machines", "num_processes", "rdzv_backend", "same_network", "tpu_env"),
    *("tpu_use_cluster", "tpu_use_sudo", "use_cpu", "gradient_accumulation_steps"),
}


@dataclass(frozen=True)
class AccelerateFile:
    """What an accelerate_config.yaml says that matters to whoever starts the ranks."""

    variables: dict[str, str] = field(default_factory=dict)
    num_processes: int | None = None
    gpu_ids: str | None = None
    is_cpu: bool = False


def torchrun_variables(share: Share, local_rank: int, *, max_restarts: int) -> dict[str, str]:
    """All that torchrun sets, and NODE_RANK, which Lightning reads. The store is rank 0's: there is
    no torch in this process to hold it."""
    rank = str(share.first + local_rank)
    world = str(share.nodes * share.ranks)
    return {
        "RANK": rank,
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(share.ranks),
        "GROUP_RANK": str(share.node),
        "GROUP_WORLD_SIZE": str(share.nodes),
        "NODE_RANK": str(share.node),
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": share.address,
        "MASTER_PORT": str(share.port),
        "TORCHELASTIC_RUN_ID": share.run.name,
        "TORCHELASTIC_RESTART_COUNT": str(share.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def default_variables(cores: int, ranks: int) -> dict[str, str]:
    """What is set unless the user has set it."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    return {
        "OMP_NUM_THREADS": str(max(1, cores // ranks)),
        **waiting_threads(),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        # One node: gloo and NCCL need no network.
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
    }


def device_variables(*, is_cpu: bool, gpus: list[int] | None) -> dict[str, str]:
    """Which GPUs scripts see: all of them, of which each takes the one of its LOCAL_RANK; those
    that were named; or none."""
    if is_cpu:
        return {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    if gpus is not None:
        return {"CUDA_VISIBLE_DEVICES": _visible(gpus)}
    return {}


def _visible(gpus: list[int]) -> str:
    """Ids are CUDA's, so they count among those that are visible already."""
    outer = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in outer.split(",")] if outer else None
    return ",".join(names[i] if names and i < len(names) else str(i) for i in gpus)


def hold_port(address: str = "127.0.0.1") -> socket.socket:
    """A free port of an address, loopback's on one node. The socket is kept open and does not
    listen: nobody else is given the port, and rank 0 may still listen there, as both allow its
    reuse."""
    held = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((address, 0))
    return held


def accelerate_variables(
    *, mixed_precision: str | None, gradient_accumulation: int | None, deepspeed: Path | None
) -> dict[str, str]:
    """The options of `accelerate launch` as its scripts read them."""
    found: dict[str, str] = {}
    if mixed_precision is not None:
        found["ACCELERATE_MIXED_PRECISION"] = mixed_precision
    if gradient_accumulation is not None:
        found["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = str(gradient_accumulation)
    if deepspeed is not None:
        found["ACCELERATE_USE_DEEPSPEED"] = "true"
        found["ACCELERATE_CONFIG_DS_FIELDS"] = ""  # none came from an accelerate file
        found["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = str(deepspeed.resolve())
    return found


def read_deepspeed(path: Path) -> list[Finding]:
    """What is wrong with a ds_config.json, as far as it matters before it is read by DeepSpeed."""
    try:
        is_object = isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
    except (OSError, ValueError, RecursionError) as error:
        return [_unreadable("--deepspeed", path, str(error))]
    return [] if is_object else [_unreadable("--deepspeed", path, "it holds no JSON object")]


def read_accelerate(path: Path, nodes: int = 1) -> tuple[AccelerateFile, list[Finding]]:
    """An accelerate_config.yaml as variables, with all that is wrong with it. Its processes are
    those of all nodes; what is returned are those of one."""
    try:
        record = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        return AccelerateFile(), [_unreadable("--accelerate-config", path, str(error))]
    if not isinstance(record, dict):
        return AccelerateFile(), [_unreadable("--accelerate-config", path, "it holds no mapping")]
    findings = [*_check_accelerate(path, record, nodes)]
    precision = _precision(record)
    variables = {} if precision is None else {"ACCELERATE_MIXED_PRECISION": precision}
    variables |= _named(record.get("dynamo_config"), _DYNAMO_NAMES)
    steps = record.get("gradient_accumulation_steps")
    if steps is not None:
        variables["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = _text(steps)
    kind = str(record.get("distributed_type", "NO")).upper()
    deepspeed = record.get("deepspeed_config")
    if kind == "DEEPSPEED" or deepspeed:
        fields = sorted(map(str, deepspeed)) if isinstance(deepspeed, dict) else []
        variables |= {
            "ACCELERATE_USE_DEEPSPEED": "true",
            "ACCELERATE_CONFIG_DS_FIELDS": ",".join(fields).lower(),
            **_named(deepspeed, _DEEPSPEED_NAMES),
        }
    fsdp = record.get("fsdp_config")
    if kind == "FSDP" or fsdp:
        variables |= {"ACCELERATE_USE_FSDP": "true", **_fsdp(fsdp)}
    count = record.get("num_processes")
    gpu_ids = record.get("gpu_ids")
    return (
        AccelerateFile(
            variables=variables,
            num_processes=count // nodes if isinstance(count, int) else None,
            gpu_ids=None if gpu_ids in (None, "all") else str(gpu_ids),
            is_cpu=bool(record.get("use_cpu")) or kind == "MULTI_CPU",
        ),
        findings,
    )


def _check_accelerate(path: Path, record: Mapping[Any, Any], nodes: int) -> list[Finding]:
    findings = []
    machines = record.get("num_machines", nodes)
    if machines not in (None, nodes):
        findings.append(
            Finding(
                slug="launch-several-nodes",
                what=f"`{path}` asks for {machines} machines, ranks are started on {nodes}",
                why=f"num_machines: {machines} in that file; "
                + (f"--nodes {nodes}" if nodes > 1 else "--nodes was not given, which is 1"),
                fix=f"num_machines: {nodes} in the file, or on every node --nodes {machines} "
                "--rendezvous HOST:29500",
            )
        )
    count = record.get("num_processes")
    if isinstance(count, int) and count % nodes:
        findings.append(
            Finding(
                slug="launch-ranks",
                what=f"{count} processes cannot be shared by {nodes} nodes",
                why=f"num_processes: {count} in `{path}`, which counts all nodes; --nodes {nodes}",
                fix=f"num_processes: {nodes * max(1, count // nodes)} in the file",
            )
        )
    precision = _precision(record)
    if precision is not None and precision not in PRECISIONS:
        findings.append(unknown_precision(precision, f"`{path}`"))
    for key in ("megatron_lm_config", "parallelism_config", "fp8_config", "ipex_config"):
        if record.get(key):
            findings.append(
                _ignored(path, key, "its settings are not passed on to the ranks", "error")
            )
    unknown = sorted(map(str, record.keys() - _KNOWN_KEYS))
    unknown = [key for key in unknown if not key.endswith("_config")]
    if unknown:
        findings.append(_ignored(path, ", ".join(unknown), "no such key is known here", "warning"))
    return findings


def unknown_precision(value: str, where: str) -> Finding:
    return Finding(
        slug="launch-precision",
        what=f"mixed precision `{value}` is none of {', '.join(PRECISIONS)}",
        why=f"read from {where}; accelerate knows these",
        fix="--mixed-precision bf16",
    )


def _ignored(path: Path, key: str, why: str, severity: Any) -> Finding:
    return Finding(
        slug="launch-accelerate-key",
        what=f"`{key}` in `{path}` has no effect",
        why=why,
        fix=f"take it out of the file, or `accelerate launch --config_file {path}`",
        severity=severity,
    )


def _unreadable(option: str, path: Path, error: str) -> Finding:
    return Finding(
        slug="launch-file",
        what=f"`{path}` cannot be read",
        why=f"given with {option}: {error}",
        fix=f"{option} a file that is there, or leave it out",
    )


def _named(record: Any, names: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(record, dict):
        return {}
    return {n: _text(record[k]) for k, n in names.items() if record.get(k) is not None}


def _fsdp(record: Any) -> dict[str, str]:
    """`fsdp_offload_params: true` -> FSDP_OFFLOAD_PARAMS=true."""
    if not isinstance(record, dict):
        return {}
    found = {}
    for key, value in record.items():
        name = _FSDP_NAMES.get(str(key), str(key).upper())
        if value is not None and re.fullmatch(r"FSDP_[A-Z0-9_]+", name):
            found[name] = _text(value)
    return found


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _precision(record: Mapping[Any, Any]) -> str | None:
    """YAML reads a bare `no` as false."""
    value = record.get("mixed_precision")
    return "no" if value is False else None if value is None else str(value)
