"""A command line that starts training today: torchrun, `accelerate launch`, `deepspeed`, `yolo`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.job.importing.settings import Setting, read_settings
from phalanx.job.importing.vocabulary import meaning_of
from phalanx.job.source.origin import parse_scalar

PROGRAMS = ("torchrun", "accelerate", "deepspeed", "yolo", "trl", "axolotl", "llamafactory-cli",
            "lerobot-train", "srun", "python", "python3", "lightning")  # fmt: skip
_SCRIPTS_THEMSELVES = ("trl", "axolotl", "llamafactory-cli", "lerobot-train", "yolo", "lightning")
_FLAGS = {"multi_gpu", "cpu", "use_deepspeed", "use_fsdp", "standalone", "debug", "m", "module"}
_FLAGS |= {"no_python", "quiet", "tpu", "enable_cpu_affinity"}
# What may follow a name only where it is its value.
_SWITCHES = ("bf16", "fp16", "tf32", "amp", "checkpointing", "compile", "use_ema", "nesterov",
             "fsdp", "lora.packing", "pin_memory", "deterministic", "cosine")  # fmt: skip
_VARIABLES = {"CUDA_VISIBLE_DEVICES", "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
              "NPROC_PER_NODE", "FORCE_TORCHRUN", "WORLD_SIZE"}  # fmt: skip
_FILES = (".yaml", ".yml", ".json")
_LINE = "the command line"
# Options of starters, and how `phalanx launch` says them; None says that it needs none.
_LAUNCH: dict[str, str | None] = {
    **{"mixed_precision": "--mixed-precision", "config_file": "--accelerate-config"},
    **{"accelerate_config": "--accelerate-config"},
    **{"gradient_accumulation_steps": "--gradient-accumulation", "max_restarts": "--max-restarts"},
    **{"deepspeed_config_file": "--deepspeed", "nnodes": "--nodes", "num_machines": "--nodes"},
    **{"num_nodes": "--nodes", "node_rank": "--node-rank", "machine_rank": "--node-rank"},
    **{"rdzv_endpoint": "--rendezvous"},
    **dict.fromkeys(("nproc_per_node", "num_processes", "num_gpus", "gpu_ids", "include", "cpu")),
    **dict.fromkeys(("multi_gpu", "standalone", "rdzv_backend", "rdzv_id", "same_network")),
    **dict.fromkeys(("master_addr", "master_port", "main_process_ip", "main_process_port")),
    **dict.fromkeys(("module", "m", "use_deepspeed", "num_cpu_threads_per_process", "hostfile")),
}


@dataclass(frozen=True)
class Launch:
    """A command line taken apart: the script it starts, and the options of its starter."""

    script: list[str]
    starter: dict[str, Any] = field(default_factory=dict)
    """Options of the starter with their values."""
    variables: dict[str, str] = field(default_factory=dict)
    is_module: bool = False
    is_yolo: bool = False

    def words(self, job: dict[str, Any], nodes: int) -> list[str]:
        """The line that starts the script as it is, with all that the original line states."""
        kept = [f"{k}={v}" for k, v in self.variables.items() if k not in _VARIABLES]
        words = [*(["env", *kept] if kept else []), "phalanx", "launch"]
        gpus, cpu = job.get("devices.gpus"), job.get("devices.cpu")
        if cpu is not None:
            words += ["--cpu", str(cpu)]
        elif isinstance(gpus, list):
            words += ["--gpus", ",".join(map(str, gpus)) + ("," if len(gpus) == 1 else "")]
        elif gpus is not None:
            words += ["--gpus", str(gpus)]
        stated = {**{k.lower(): v for k, v in self.variables.items()}, **self.starter}
        for name, value in stated.items():
            option = _LAUNCH.get(name)
            if option == "--nodes":
                words += ["--nodes", str(nodes)] if nodes > 1 else []
            elif option is not None and (option != "--node-rank" or nodes > 1):
                words += [option, str(value)]
        host = stated.get("master_addr") or stated.get("main_process_ip")
        port = stated.get("master_port") or stated.get("main_process_port") or 29500
        if host and nodes > 1 and "rdzv_endpoint" not in stated:
            words += ["--rendezvous", f"{host}:{port}"]
        return [*words, *(["-m"] if self.is_module else []), *self.script]

    @property
    def can_launch(self) -> bool:
        """True for a script or module; `yolo` and its like start themselves."""
        return bool(self.script) and self.script[0] not in _SCRIPTS_THEMSELVES

    @property
    def not_carried(self) -> list[str]:
        """Options of the starter that `phalanx launch` has no word for."""
        return [f"--{name} {value}" for name, value in self.starter.items() if name not in _LAUNCH]


def read_command(words: Sequence[str]) -> tuple[list[Setting], Launch]:
    """Every setting of a line: of its starter, of its script, and of the files that it names."""
    rest, variables = list(words), {}
    while rest and (match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", rest[0], re.DOTALL)):
        variables[match[1]] = match[2]
        rest = rest[1:]
    if rest[:1] == ["env"]:
        return read_command([*(f"{k}={v}" for k, v in variables.items()), *rest[1:]])
    starter: dict[str, Any] = {}
    is_module = False
    while rest and _is_starter(rest[0]):
        name = rest[0].rpartition("/")[2]
        rest = rest[2:] if rest[1:2] == ["launch"] else rest[1:]
        if name == "srun":
            found, rest = _of_slurm(rest)
        elif name.startswith("python"):
            found, rest, is_module = _of_python(rest)
        else:
            found, rest = _options(rest)
        starter |= found
    is_module = is_module or bool({"m", "module"} & starter.keys())
    place = _LINE
    settings = [
        _typed(name, value, place) for name, value in starter.items() if name not in ("m", "module")
    ]
    settings += [_typed(k, v, place) for k, v in variables.items() if k in _VARIABLES]
    name = rest[0].rpartition("/")[2] if rest else ""
    arguments, _ = _options(rest[1:], until_script=False)
    named = [str(arguments.pop(key)) for key in ("accelerate_config",) if key in arguments]
    named += [str(starter["config_file"])] if "config_file" in starter else []
    settings = [s for s in settings if s.key != "config_file"]
    for file in named:
        settings += _file(file, 0)
    typed = [_typed(key, value, place) for key, value in arguments.items()]
    for setting in list(typed):
        if meaning_of(setting) == "config" and str(setting.value).endswith(_FILES):
            settings += _file(str(setting.value), 1, must_be=False)
    launch = Launch(rest, starter, variables, is_module, name == "yolo")
    return [*settings, *typed], launch


def _of_slurm(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Read nodes and GPUs from the options of `srun`; the others are the cluster's."""
    is_program = [_is_starter(w) or w in PROGRAMS or w.endswith(".py") for w in words]
    end = is_program.index(True) if True in is_program else 0
    found, _ = _options(words[:end], until_script=False)
    names = {"nodes": "num_nodes", "N": "num_nodes", "gpus_per_node": "gpus_per_node"}
    return {names[k]: v for k, v in found.items() if k in names}, list(words[end:])


def _of_python(words: Sequence[str]) -> tuple[dict[str, Any], list[str], bool]:
    """Drop the interpreter's own options; `-m` names a module."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        if rest[0] == "-m":
            return {}, rest[1:], not _is_starter(rest[1]) if rest[1:] else True
        rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
    return {}, rest, False


def _typed(key: str, value: Any, place: str) -> Setting:
    sections = tuple(part.lower() for part in key.split(".")[:-1])
    return Setting(key, value, place, sections, rank=2)


def _file(name: str, rank: int, *, must_be: bool = True) -> list[Setting]:
    if not must_be and not Path(name).is_file():
        return []  # said where the option is judged
    return [setting._replace(rank=rank) for setting in read_settings(Path(name))]


def _is_starter(word: str) -> bool:
    name = word.rpartition("/")[2]
    is_python = re.fullmatch(r"python[0-9.]*", name)
    return bool(is_python) or name in ("torchrun", "accelerate", "deepspeed", "srun") or word in (
        "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"
    )  # fmt: skip


def _options(
    words: Sequence[str], *, until_script: bool = True
) -> tuple[dict[str, Any], list[str]]:
    """Options with their values, and what follows: up to the first word that is none."""
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest[0]
        override = re.fullmatch(r"[+~]{0,2}([A-Za-z_][\w.]*(?:[./][\w.]+)*)=(.*)", word, re.DOTALL)
        if not re.match(r"--?[A-Za-z]", word):
            if until_script:
                break
            rest = rest[1:]
            if override and not Path(word).exists():
                found[override[1]] = _value(override[2])
            elif word.endswith((*_FILES, ".py")) and not word.startswith(("http", "-")):
                free = [key for key in ("config", "preset", "config_name") if key not in found]
                found[free[0] if free else "config"] = word
            continue
        name, has_value, value = word.lstrip("-").partition("=")
        name, rest = name.replace("-", "_"), rest[1:]
        is_switch = name in _FLAGS or meaning_of(_typed(name, True, "")) in _SWITCHES
        if has_value:
            found[name] = _value(value)
            continue
        values: list[str] = []
        while rest and not re.match(r"--?[A-Za-z]", rest[0]):
            is_more = values and not re.fullmatch(r"[-+.\d][\d.eE_+-]*", rest[0])
            if is_more or (values and until_script):
                break
            if is_switch and not re.fullmatch(r"(?i)true|false|yes|no|on|off|0|1|auto", rest[0]):
                break
            values.append(rest[0])
            rest = rest[1:]
        found[name] = (
            True
            if not values
            else _value(values[0])
            if len(values) == 1
            else list(map(_value, values))
        )
    return found, rest


def _value(text: str) -> Any:
    text = text.strip()
    if re.fullmatch(r"\[.*\]", text):
        return [parse_scalar(part.strip(" '\"")) for part in text[1:-1].split(",") if part.strip()]
    return parse_scalar(text)
