"""Take DeepSpeed's own file into imported settings: its values win over the recipe's own."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from phalanx.job.importing.rules import NOT_SCALED
from phalanx.job.importing.settings import Setting, is_number, read_settings
from phalanx.job.importing.translation import Refusal, Translation
from phalanx.job.load import load_job
from phalanx.job.source.origin import show

_FROM_ZERO = "a warm-up rises in a line from 0"


def absorb(made: Translation, leave: Collection[str]) -> None:
    """Read the file that the job names, if it names one, and say what it states."""
    source = made.job.get("deepspeed.config")
    if not isinstance(source, str):
        return
    path = Path(source)
    settings = read_settings(path) if path.is_file() else []
    kept, left = _without(settings, leave)
    if left:  # a job holds the rest of the file in its place
        made.tell(left, "left", "", "left out by `--leave`")
        made.job["deepspeed.config"] = _pruned(json.loads(path.read_text("utf-8")), leave)
    made.job.pop("strategy", None)
    loaded = load_job({"recipe": "any", **made.job, "strategy": "deepspeed"})
    made.job["strategy"] = "deepspeed"
    stated = {setting.key: setting for setting in kept}
    for key, origin in loaded.origins.items():
        if origin.kind != "deepspeed" or key in ("deepspeed.config", "strategy"):
            continue
        value = loaded.plain(key)
        if key not in made.job:
            made.job[key] = value
        said = stated.get(origin.key, Setting(origin.key, value, str(origin)))
        made.tell([said], "taken", f"{key} = {show(value)}", "read with the job")
    if "optimizer.lr" in made.job and "optimizer.lr_rule" not in made.job:
        rate = [s for key, s in stated.items() if key.endswith((".lr", ".warmup_max_lr"))]
        made.say(rate, "optimizer.lr_rule", "none", NOT_SCALED)
    _gaps(made, stated)
    auto = [setting for setting in kept if setting.value == "auto"]
    made.tell(auto, "left", "", "`auto`: decided by the job")


def _gaps(made: Translation, stated: dict[str, Setting]) -> None:
    """What a job cannot follow to the letter, and reading it alone would only warn of."""
    for name in ("warmup_min_lr", "warmup_min_ratio", "warmup_type"):
        setting = stated.get(f"scheduler.params.{name}")
        if setting is not None and setting.value not in (0, "auto", "linear", None):
            made.refusals.append(Refusal(setting, _FROM_ZERO, ""))
    total = stated.get("scheduler.params.total_num_steps")
    if total is None or not is_number(total.value):
        return
    steps = int(total.value)
    if "steps" not in made.job and "epochs" not in made.job:
        made.say([total], "steps", steps, "the schedule ends with the run")
    elif made.job.get("steps") != steps:
        why = "the schedule ends with the run, whose length is stated differently"
        made.refusals.append(Refusal(total, why, f"steps: {steps}"))


def _without(
    settings: list[Setting], leave: Collection[str]
) -> tuple[list[Setting], list[Setting]]:
    left = [s for s in settings if any(s.key == k or s.key.startswith(f"{k}.") for k in leave)]
    return [setting for setting in settings if setting not in left], left


def _pruned(content: dict[str, Any], leave: Collection[str], prefix: str = "") -> dict[str, Any]:
    return {
        name: _pruned(value, leave, f"{prefix}{name}.") if isinstance(value, dict) else value
        for name, value in content.items()
        if f"{prefix}{name}" not in leave
    }
