"""A command line that starts training today: torchrun, `accelerate launch`, `deepspeed`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.job.importing import accelerate, trainer
from phalanx.job.importing.translation import Line, Translation
from phalanx.job.origin import parse_scalar, show

STARTERS = ("torchrun", "accelerate", "deepspeed")
_FLAGS = {"multi_gpu", "cpu", "use_deepspeed", "use_fsdp", "standalone", "debug", "m", "module"}
# What a starter calls a thing that accelerate's file calls so.
_AS_IN_FILE = {
    **{"nproc_per_node": "num_processes", "num_gpus": "num_processes", "cpu": "use_cpu"},
    **{"nnodes": "num_machines", "num_nodes": "num_machines", "node_rank": "machine_rank"},
    **{"master_addr": "main_process_ip", "master_port": "main_process_port"},
    "gpus": "gpu_ids",
}
_PER_NODE = ("nproc_per_node", "num_gpus")
# Options of scripts by the names that most of them use.
_SCRIPT = {
    **dict.fromkeys(("train_batch_size", "total_batch_size"), "global_batch_size"),
    **dict.fromkeys(("batch_size", "batch_size_per_gpu"), "batch_per_gpu"),
    **dict.fromkeys(("lr", "learning_rate"), "optimizer.lr"),
    **dict.fromkeys(("epochs", "num_epochs", "num_train_epochs"), "epochs"),
    **dict.fromkeys(("max_train_steps", "max_steps", "steps"), "steps"),
    **dict.fromkeys(("dataloader_num_workers", "num_workers", "workers"), "loader.workers"),
    **dict.fromkeys(("gradient_accumulation_steps", "accum"), "gradient_accumulation"),
    **{"weight_decay": "optimizer.weight_decay", "seed": "seed"},
    **dict.fromkeys(("max_grad_norm", "clip_grad"), "optimizer.clip_norm"),
}


def read_command(words: Sequence[str]) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
    """The starter's settings, the script with its words, and these as options."""
    rest = list(words)
    while rest and (rest[0] in ("launch", "run", "-m") or _is_starter(rest[0])):
        rest = rest[1:]
    settings, rest = _options(rest)
    arguments, _ = _options(rest[1:], until_script=False)
    return settings, rest, arguments


def translate(made: Translation) -> None:
    """`made` holds the starter's settings by their names, and the script's under `script`."""
    script = made.get("script") or {}
    started = {k: v for k, v in made.settings.items() if k != "script"}
    as_file = {_AS_IN_FILE.get(key, key): value for key, value in started.items()}
    nodes = as_file.get("num_machines") or 1
    if any(key in started for key in _PER_NODE) and isinstance(as_file["num_processes"], int):
        as_file["num_processes"] *= nodes if isinstance(nodes, int) else 1
    inner = Translation(as_file, made.place)
    accelerate.translate(inner)
    of_script = Translation(script, made.place)
    if "per_device_train_batch_size" in script:
        trainer.translate(of_script)
    else:
        of_script.take_all(_SCRIPT)
        of_script.leave_rest("the script's own: options of a recipe of your own")
    typed = {_AS_IN_FILE[key]: key for key in started if key in _AS_IN_FILE}
    made.job |= inner.job | of_script.job
    made.lines += [_as_typed(line, typed, started) for line in inner.lines] + of_script.lines


def _as_typed(line: Line, typed: Mapping[str, str], started: Mapping[str, Any]) -> Line:
    """A line with the settings by the names and values that stand in the command line."""
    said = [part.partition(" = ")[0] for part in line.theirs.split(", ")]
    if not any(name in typed for name in said):
        return line
    names = [typed.get(name, name) for name in said]
    return line._replace(theirs=", ".join(f"--{name} {show(started[name])}" for name in names))


def _is_starter(word: str) -> bool:
    name = word.rpartition("/")[2]
    return (
        name in STARTERS
        or word == "torch.distributed.run"
        or bool(re.fullmatch(r"python[0-9.]*", name))
    )


def _options(
    words: Sequence[str], *, until_script: bool = True
) -> tuple[dict[str, Any], list[str]]:
    """Options with their values, and what follows: up to the first word that is none."""
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest[0]
        if not word.startswith("-"):
            if until_script:
                break
            rest = rest[1:]
            continue
        name, has_value, value = word.lstrip("-").partition("=")
        name, rest = name.replace("-", "_"), rest[1:]
        is_flag = name in _FLAGS or not rest or rest[0].startswith("--")
        if has_value:
            found[name] = parse_scalar(value)
        elif is_flag:
            found[name] = True
        else:
            found[name], rest = parse_scalar(rest[0]), rest[1:]
    return {k: v for k, v in found.items() if k not in ("m", "module")}, rest
