"""Which tool some settings are for, by what they say, and the job that they become."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.errors import Finding, UserError, did_you_mean
from phalanx.job.importing import cadence, placement, rules, ultralytics
from phalanx.job.importing.command import Launch, read_command
from phalanx.job.importing.deepspeed import absorb
from phalanx.job.importing.settings import Setting, read_settings, without_secrets
from phalanx.job.importing.translation import BatchMeans, Line, Translation, refused
from phalanx.job.importing.vocabulary import meaning_of
from phalanx.job.presets import list_presets
from phalanx.job.source.origin import show

KINDS = {
    "trainer": "TrainingArguments of Hugging Face as JSON or YAML, also TRL and LLaMA-Factory",
    "accelerate": "the file of `accelerate config`",
    "deepspeed": "DeepSpeed's JSON file",
    "ultralytics": "Ultralytics' args.yaml",
    "lightning": "the YAML of Lightning's command line",
    "axolotl": "Axolotl's YAML",
    "lerobot": "LeRobot's train_config.json",
    "yaml": "a YAML of your own with a batch, a learning rate or a length",
    "command": "a line that starts training: torchrun, accelerate launch, deepspeed, yolo, python",
}
# Keys that only such a file has, as sets that must all be there.
_SIGNS: dict[str, tuple[set[str], ...]] = {
    "deepspeed": ({"zero_optimization"}, {"train_micro_batch_size_per_gpu"}),
    "accelerate": ({"distributed_type"}, {"compute_environment"}),
    "ultralytics": ({"imgsz"}, {"close_mosaic"}),
    "axolotl": ({"base_model", "micro_batch_size"}, {"base_model", "datasets"}),
    "lerobot": ({"policy", "steps", "batch_size"},),
    "trainer": ({"per_device_train_batch_size"}, {"lr_scheduler_type"}, {"finetuning_type"}),
    "lightning": ({"seed_everything"}, {"trainer", "model"}, {"trainer", "data"}),
}
_STATES_TRAINING = ("batch", "micro", "global_batch", "lr", "epochs", "steps", "warmup_steps")
_RECORD = {"log_history", "global_step"}  # of a training that was, as Trainer's state
_WORDS: dict[str, dict[str, str]] = {
    "ultralytics": ultralytics.WORDS,
    "lerobot": {"eval.batch_size": "neutral", "eval_freq": "eval_steps", "save_freq": "save_steps"},
}
_RECIPES = Path(__file__).parents[2] / "recipes"


@dataclass(frozen=True)
class Imported:
    """Settings of another tool as a job."""

    kind: str
    place: str
    job: dict[str, Any]
    """Values by dotted key; without a recipe where the settings do not name one."""
    lines: list[Line]
    launch: Launch | None = None
    """What a command line starts, for `phalanx launch`."""
    nodes: int = 1
    preset: str | None = None
    """The preset of the recipe that the settings name."""
    findings: list[Finding] = field(default_factory=list)
    """Settings that could not be placed: errors, and nothing is to be written."""

    @property
    def script(self) -> list[str]:
        """The words that `phalanx launch` can start; none where there are no such words."""
        return self.launch.script if self.launch and self.launch.can_launch else []


@dataclass(frozen=True)
class Asked:
    """What a user adds to the settings."""

    recipe: str | None = None
    leave: Collection[str] = ()
    batch_means: BatchMeans | None = None


_NOTHING = Asked()


def import_file(path: Path, kind: str | None = None, asked: Asked = _NOTHING) -> Imported:
    """Read a file of another tool; raises UserError when it is of no known kind."""
    settings = read_settings(path)
    kind = kind or _kind_of(settings)
    if kind not in KINDS or kind == "command":
        raise UserError(_unknown_kind(path, settings, kind))
    if kind == "deepspeed":
        settings = [Setting("deepspeed", str(path), str(path))]
    return _import(kind, str(path), settings, asked)


def import_command(words: Sequence[str], asked: Asked = _NOTHING) -> Imported:
    """Read a command line that starts training, with the files that it names."""
    settings, launch = read_command(words)
    if not launch.script:
        raise UserError(_no_script(words))
    kind = "ultralytics" if launch.is_yolo else "command"
    return _import(kind, shlex.join(without_secrets(words)), settings, asked, launch)


def _import(
    kind: str,
    place: str,
    settings: Sequence[Setting],
    asked: Asked,
    launch: Launch | None = None,
) -> Imported:
    recipe = asked.recipe or ("detection" if kind == "ultralytics" else None)
    own = _WORDS.get("ultralytics" if recipe == "detection" and kind == "command" else kind, {})
    made = Translation(
        settings, recipe=recipe, leave=asked.leave, batch_means=asked.batch_means, words=own
    )
    if own is ultralytics.WORDS:
        placement.devices(made)
        rules.length(made)
        ultralytics.translate(made)
    _config(made)
    for rule in (
        *(placement.devices, rules.length, rules.batch, rules.optimizer, rules.rate),
        *(rules.precision, placement.strategy, placement.seeds, placement.loading),
        *(cadence.cadence, cadence.average, cadence.adapters),
    ):
        rule(made)
    absorb(made, asked.leave)
    made.finish()
    job = {"recipe": recipe, **made.job} if recipe else made.job
    findings = refused(made.refusals)
    return Imported(kind, place, job, made.lines, launch, made.nodes, made.preset, findings)


def _config(made: Translation) -> None:
    """`--config`: a file that was read, or a preset of the recipe."""
    setting = made.get("config")
    if setting is None:
        return
    known = list_presets(_RECIPES / made.recipe) if made.recipe else {}
    name = str(setting.value)
    if name in known:
        made.preset = name
        made.tell([setting], "taken", f"preset {name}", f"of the recipe `{made.recipe}`")
        made.drop("config")
    elif Path(name).is_file() and Path(name).suffix in (".yaml", ".yml", ".json"):
        made.leave(["config"], "its settings are listed here, too")
    else:
        presets = ", ".join(known) or "none"
        made.refuse("config", "there is no such YAML or JSON file, so what it states is unknown; "
                    f"presets of the recipe: {presets}")  # fmt: skip


def _kind_of(settings: Iterable[Setting]) -> str | None:
    settings = list(settings)
    keys = {setting.key.partition(".")[0] for setting in settings}
    if keys >= _RECORD:
        return None
    for kind, signs in _SIGNS.items():
        if any(sign <= keys for sign in signs):
            return kind
    states = any(meaning_of(setting) in _STATES_TRAINING for setting in settings)
    return "yaml" if states else None


def _no_script(words: Sequence[str]) -> Finding:
    return Finding(
        slug="import-kind",
        what="the command line starts no script",
        why=f"read: {shlex.join(without_secrets(words))}",
        fix="phalanx import torchrun --nproc_per_node 4 train.py --lr 1e-3",
    )


def _unknown_kind(path: Path, settings: Sequence[Setting], kind: str | None) -> Finding:
    known = "; ".join(f"{name}: {meaning}" for name, meaning in KINDS.items() if name != "command")
    if kind is not None:
        what = f"settings of the kind `{kind}` are not known{did_you_mean(kind, KINDS)}"
    else:
        what = f"`{path}` is of no kind that is known"
    keys = dict.fromkeys(setting.key.partition(".")[0] for setting in settings)
    return Finding(
        slug="import-kind",
        what=what,
        why=f"its keys are {show(', '.join(list(keys)[:12]) or 'none')}; known are {known}",
        fix=f"phalanx import {shlex.quote(str(path))} --kind yaml",
    )
