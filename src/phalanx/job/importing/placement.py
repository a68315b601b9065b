"""Where settings train, and how ranks share the work: devices, nodes, strategy."""

from __future__ import annotations

import re
from typing import Any

from phalanx.job.importing.settings import Setting, as_count, as_flag, as_number, is_number, is_off
from phalanx.job.importing.translation import Translation

_TYPES = ("cuda", "gpu", "cpu", "mps", "auto", "tpu", "hpu", "xpu", "npu")
_STRATEGIES = {
    **dict.fromkeys(("ddp", "ddp_spawn", "ddp_fork", "ddp_notebook", "distributed"), "ddp"),
    **dict.fromkeys(("ddp_find_unused_parameters_true",), "ddp"),
    **dict.fromkeys(("ddp_find_unused_parameters_false", "multi_gpu", "multi_cpu"), "ddp"),
    **dict.fromkeys(("fsdp", "fsdp2", "modelparallel"), "fsdp"),
    **dict.fromkeys(("single", "single_device"), "single"),
    "deepspeed": "deepspeed",
}
_LONGEST_WAIT_S = 10**7


def devices(made: Translation) -> None:
    made.recast("device", "accelerator", lambda s: str(s.value).lower() in _TYPES)
    made.recast("device_count", "accelerator", lambda s: str(s.value).lower() in ("auto", "cpu"))
    nodes = _nodes(made)
    kind = made.value("accelerator", lambda value: str(value).lower())
    is_cpu = made.value("cpu", as_flag) or kind == "cpu"
    if kind in ("tpu", "hpu", "xpu", "npu"):
        made.refuse("accelerator", "a job trains on CUDA GPUs, MPS or CPU processes")
    ids, count = made.value("device", _ids), made.value("device_count", _count)
    if isinstance(count, list):
        ids, count = count, None
    world = made.value("world", as_count)
    if world is not None and world % nodes:
        made.refuse("world", f"{world} processes cannot be shared by {nodes} nodes")
        world = None
    total = world // nodes if world is not None and world > 0 else None
    if isinstance(count, int) and total not in (None, count):
        made.refuse("world", f"{count} and {total} processes are stated for one node")
        return
    count = count if count is not None else total
    if ids == "all" and count is not None:
        made.leave(["device"], "the number of processes says how many")
        ids = None
    if isinstance(ids, list) and isinstance(count, int) and len(ids) != count:
        ids = _fewer(made, ids, count)
    words = ["cpu", "accelerator", "device", "device_count", "world"]
    if is_cpu:
        ranks = count if isinstance(count, int) else 1
        made.put(words, "devices.cpu", ranks, "CPU processes of each node")
    elif ids is not None:
        made.put(["device", "world", "device_count"], "devices.gpus", ids, "one rank for each GPU")
    elif count is not None:
        why = "GPUs of each node" if nodes > 1 else ""
        made.put(["device_count", "world"], "devices.gpus", count, why)
    elif kind in ("cuda", "gpu") and not any(
        s.word == "accelerator" for s in made.settings("accelerator")
    ):
        why = "one process on one GPU; `devices.gpus: all` takes every GPU"
        made.put(["accelerator"], "devices.gpus", 1, why)
    made.leave(["accelerator", "cpu"], "the devices that are there: GPUs, else MPS, else CPU")


def _nodes(made: Translation) -> int:
    if made.settings("spawned"):  # PyTorch's ImageNet example counts nodes so
        made.recast("world", "nodes", lambda setting: True)
    least = made.value("nodes", lambda value: _span(value)[0])
    nodes = made.value("nodes", lambda value: _span(value)[1])
    if least != nodes and least is not None:
        made.say(made.settings("nodes"), "devices.min_nodes", least)
    if nodes is not None and nodes > 1:
        made.nodes = nodes
        made.leave(["nodes"], f"stated when the run starts: phalanx train job.yaml --nodes {nodes}")
    made.leave(["nodes"], "one node")
    return made.nodes


def _span(value: Any) -> tuple[int, int]:
    """`2:4` of torchrun: at least 2 nodes, at most 4."""
    least, _, most = str(value).partition(":")
    return as_count(least), as_count(most or least)


def _fewer(made: Translation, ids: list[int], count: int) -> list[int] | None:
    """The ids that so many processes use, or None where they do not belong together."""
    if count < len(ids):
        return ids[:count]
    if ids == [0]:
        made.leave(["device"], "the device of the first rank; each rank has its own")
    else:
        made.refuse("device", f"{count} processes are stated, and {len(ids)} GPUs")
    return None


def _ids(value: Any) -> list[int] | int | str | None:
    """GPU ids as `0`, `cuda:0`, `0,1`, `[0, 1]` or `localhost:0,1`; -1 is an idle one."""
    if is_off(value):
        return None
    if isinstance(value, str) and value.strip().lower() in ("all", "auto"):
        return "all"
    parts = value if isinstance(value, list) else re.split(r"[,\s]+", str(value).strip("[]() "))
    found = [
        as_count(re.sub(r"^(cuda|gpu|localhost):", "", str(p).strip())) for p in parts if p != ""
    ]
    if found and all(number == -1 for number in found):
        return len(found)
    if any(number < 0 for number in found):
        raise ValueError("GPU ids are 0 or more")
    return found


def _count(value: Any) -> list[int] | int | str | None:
    if is_off(value):
        return None
    if isinstance(value, list) or (isinstance(value, str) and "," in value):
        found = _ids(value)
        return "all" if found == 1 else found  # [-1]
    if str(value).lower() in ("all", "-1", "gpu", "cuda"):
        return "all"
    number = as_count(value)
    if number < 1:
        raise ValueError("it must be 1 or more, or ids such as `[0]`")
    return number


def strategy(made: Translation) -> None:
    made.recast("deepspeed", "distributed_type", lambda s: s.value is True)
    kind = made.value("distributed_type", lambda v: "deepspeed" if v is True else str(v).lower())
    if kind in ("deepspeed", "fsdp"):
        made.put(["distributed_type"], "strategy", kind)
    made.leave(["distributed_type"], "follows from the devices")
    named = made.value("strategy", lambda value: str(value).lower())
    if named is not None:
        stage = re.fullmatch(r"deepspeed(?:_stage_([123])(_offload)?)?", named)
        if stage:
            made.say(made.settings("strategy"), "strategy", "deepspeed")
            if stage[1]:
                made.say(made.settings("strategy"), "deepspeed.stage", int(stage[1]))
            if stage[2]:
                made.say(made.settings("strategy"), "deepspeed.offload_optimizer", True)
            made.drop("strategy")
        elif named in _STRATEGIES:
            made.put(["strategy"], "strategy", _STRATEGIES[named])
        elif named == "auto":
            made.leave(["strategy"], "follows from the devices")
        else:
            made.refuse("strategy", "a job has ddp, fsdp, deepspeed and single", "strategy: ddp")
    _fsdp(made)
    _deepspeed(made)
    _communication(made)


def _fsdp(made: Translation) -> None:
    setting = made.get("fsdp")
    if setting is not None and not is_off(setting.value):
        words = str(setting.value).lower()
        is_off_word = "no_shard" in words
        made.say([setting], "strategy", "ddp" if is_off_word else "fsdp")
        if "offload" in words:
            made.say([setting], "fsdp.offload", True)
        if "shard_grad_op" in words:
            made.say([setting], "fsdp.reshard_after_forward", False)
        made.drop("fsdp")
    made.take("fsdp_offload", "fsdp.offload", as_flag)
    reshard = made.value("fsdp_reshard", _reshards)
    if reshard is not None:
        made.put(["fsdp_reshard"], "fsdp.reshard_after_forward", reshard)
    made.take("fsdp_sharding", "fsdp.reshard_after_forward", _reshards)


def _reshards(value: Any) -> bool:
    """FSDP's strategies by name or number: 2, SHARD_GRAD_OP, keeps weights gathered."""
    if isinstance(value, bool):
        return value
    name = str(value).upper()
    if name in ("FULL_SHARD", "1", "HYBRID_SHARD", "4", "TRUE"):
        return True
    if name in ("SHARD_GRAD_OP", "2", "HYBRID_SHARD_ZERO2", "5", "FALSE"):
        return False
    raise ValueError("a job has FULL_SHARD and SHARD_GRAD_OP")


def _deepspeed(made: Translation) -> None:
    setting = made.get("deepspeed")
    if setting is not None and not is_off(setting.value):
        made.put(["deepspeed"], "deepspeed.config", _beside(setting))
        made.job["strategy"] = "deepspeed"
    made.take("zero_stage", "deepspeed.stage", as_count)
    for what in ("optimizer", "parameters"):
        device = made.value(f"zero_offload_{what}", str)
        if device is not None and device not in ("cpu", "none"):
            made.refuse(f"zero_offload_{what}", "what is offloaded goes to host memory")
        elif device is not None:
            made.put([f"zero_offload_{what}"], f"deepspeed.offload_{what}", device == "cpu")


def _beside(setting: Setting) -> str:
    """A file as it is named, or the one of that name beside the file that names it."""
    from pathlib import Path

    beside = Path(setting.place.rpartition(":")[0]).parent / str(setting.value)
    is_there = Path(str(setting.value)).exists() or setting.rank == 2
    return str(setting.value) if is_there or not beside.exists() else str(beside)


def _communication(made: Translation) -> None:
    backend = made.value("backend", lambda value: str(value).lower())
    if backend in ("nccl", "gloo"):
        made.put(["backend"], "devices.backend", backend)
    elif backend is not None:
        made.refuse("backend", "ranks communicate by nccl or gloo", "devices: {backend: nccl}")
    wait = made.value("timeout", as_number)
    if wait is not None and wait > 0:
        longest = "the longest that a job takes" if wait > _LONGEST_WAIT_S else ""
        made.put(["timeout"], "devices.comm_timeout_s", min(wait, _LONGEST_WAIT_S), longest)
    made.take("restarts", "max_restarts", as_count)
    made.take("find_unused", "ddp.find_unused_parameters", as_flag)
    made.take("bucket_mb", "ddp.bucket_mb", as_number)
    made.take("sync_batchnorm", "sync_batchnorm", as_flag)
    dynamo = made.value("dynamo", lambda value: "no" if is_off(value) else str(value).lower())
    if dynamo not in (None, "no"):
        made.put(["dynamo"], "compile", "on", "with inductor, block by block")
    made.leave(["dynamo"], "off")


def seeds(made: Translation) -> None:
    """The seed, and how much the same two runs of it are."""
    made.recast("seed", "no_seed", lambda s: s.value is True or s.value == "random")
    made.leave(["no_seed"], "any seed; a job has one of its own")
    seed = made.value("seed", as_count)
    if seed is not None and seed < 0:
        made.leave(["seed"], "any seed; a job has one of its own")
    elif seed is not None:
        made.put(["seed"], "seed", seed)
    other = made.value("data_seed", as_count)
    if other is not None and other != seed:
        made.refuse("data_seed", "a job has one seed for samples and weights", f"seed: {other}")
    made.leave(["data_seed"], "the same as the seed")
    is_same = made.value("deterministic", lambda v: True if v == "warn" else as_flag(v))
    if is_same:
        made.put(["deterministic"], "determinism", "resume")
    made.leave(["deterministic"], "off")


def loading(made: Translation) -> None:
    made.take("workers", "loader.workers", as_count)
    made.take("pin_memory", "loader.pin_memory", as_flag)
    made.take("prefetch", "loader.prefetch", as_count)
    for meaning, ours in (("checkpointing", "activation_checkpointing"), ("compile", "compile"),
                          ("channels_last", "channels_last")):  # fmt: skip
        on = made.value(meaning, _switch)
        if on is not None and (on or meaning == "checkpointing"):
            made.put([meaning], ours, "on" if on else "off")
        made.leave([meaning], "chosen where it is faster; `off` never does it")


def _switch(value: Any) -> bool | None:
    """Unsloth and others write a name where they mean true."""
    if isinstance(value, str) and not is_number(value) and not is_off(value):
        return None if value == "auto" else True
    return False if is_off(value) else as_flag(value)
