"""Wrong job files as one table, for the loader's tests and for the whole command line.

`prepare` writes the job into a folder and returns its path relative to that folder: go there first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

GOOD = "recipe: digits\nepochs: 10\nglobal_batch_size: 64\n"
"""Three lines that are right; what a row adds begins at line 4."""

KNOWN_RECIPES = ("digits", "detection")
GPU_IDS = (0, 1)
"""The GPUs of the machine on which rows of the stage `gpus` are wrong."""


@dataclass(frozen=True)
class WrongJob:
    name: str
    make: str | bytes | Callable[[Path], str]
    """The content of job.yaml, or a maker that fills the folder and returns the path to give."""
    slugs: tuple[str, ...]
    """Exactly the errors and warnings that must come, in order."""
    says: tuple[str, ...] = ()
    """What the Findings must say somewhere: the line, both values, the nearest name."""
    stage: Literal["load", "rules", "gpus"] = "load"

    def prepare(self, folder: Path) -> Path:
        if isinstance(self.make, bytes):
            (folder / "job.yaml").write_bytes(self.make)
        elif isinstance(self.make, str):
            (folder / "job.yaml").write_text(self.make, encoding="utf-8")
        else:
            return Path(self.make(folder))
        return Path("job.yaml")


def _huge(folder: Path) -> str:
    with (folder / "job.yaml").open("wb") as file:
        file.truncate(100 * 1000 * 1000)  # sparse: no block of it is on the disk
    return "job.yaml"


def _folder(folder: Path) -> str:
    (folder / "configs").mkdir()
    (folder / "configs" / "base.yaml").write_text(GOOD)
    return "configs"


def _misspelt(folder: Path) -> str:
    (folder / "job.yaml").write_text(GOOD)
    return "jobb.yaml"


def _output_under_file(folder: Path) -> str:
    (folder / "taken").write_text("a file")
    (folder / "job.yaml").write_text(GOOD + "output: taken/runs\n")
    return "job.yaml"


def _output_is_file(folder: Path) -> str:
    (folder / "taken").write_text("a file")
    (folder / "job.yaml").write_text(GOOD + "output: taken\n")
    return "job.yaml"


def _recipe_near(folder: Path) -> str:
    (folder / "my_recipe.py").write_text("class Mine:\n    pass\n")
    (folder / "job.yaml").write_text(GOOD.replace("digits", "my_recipes.py:Mine"))
    return "job.yaml"


def _recipe_without_class(folder: Path) -> str:
    (folder / "my_recipe.py").write_text("class Mine:\n    pass\n")
    (folder / "job.yaml").write_text(GOOD.replace("digits", "my_recipe.py"))
    return "job.yaml"


def _deepspeed(content: str) -> Callable[[Path], str]:
    """A good job with a DeepSpeed file of this content."""

    def make(folder: Path) -> str:
        (folder / "ds_config.json").write_text(content)
        (folder / "job.yaml").write_text(GOOD + "deepspeed: {config: ds_config.json}\n")
        return "job.yaml"

    return make


_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)

_LOAD: tuple[tuple[str, str | bytes | Callable[[Path], str], tuple[str, ...], tuple[str, ...]], ...]
_LOAD = (
    ("unknown key", GOOD + "epohcs: 3\n", ("unknown-key",), ("epohcs", "`epochs`", "job.yaml:4")),
    (
        "unknown key in a section",
        GOOD + "optimizer:\n  lr: 0.1\n  weight_decy: 0.2\n",
        ("unknown-key",),
        ("`optimizer.weight_decay`", "job.yaml:6", "optimizer.weight_decay: 0.2"),
    ),
    ("unknown key far from all", GOOD + "zzz: 3\n", ("unknown-key",), ("options.zzz", ":4")),
    (
        "DeepSpeed file missing",
        GOOD + "deepspeed: {config: nowhere.json}\n",
        ("deepspeed-file",),
        ("nowhere.json", "job.yaml:4"),
    ),
    (
        "DeepSpeed file is no JSON",
        _deepspeed('{"zero_optimization": {"stage": 2,}}'),
        ("deepspeed-json",),
        ("ds_config.json:1:", "json.tool"),
    ),
    (
        "DeepSpeed file against the job",
        _deepspeed('{"train_batch_size": 32,\n "amp": {"enabled": true}, "stage": 2}'),
        ("deepspeed-contradiction", "deepspeed-refused", "deepspeed-key"),
        ("64 in the job and 32", "job.yaml:3", "ds_config.json:1", "ds_config.json:2"),
    ),
    (
        "key of a section at the top",
        GOOD + "learning_rate: 0.1\n",
        ("unknown-key",),
        ("optimizer.lr: 0.1", "job.yaml:4"),
    ),
    (
        "two problems",
        GOOD + "epohcs: 3\noptimizer: {lr: fast}\n",
        ("wrong-value", "unknown-key"),
        ("job.yaml:4", "job.yaml:5", '"fast"', "optimizer.lr: 0.001"),
    ),
    (
        "text for a number",
        "recipe: digits\nepochs: ten\nglobal_batch_size: 64\n",
        ("wrong-value",),
        ('"ten"', "a whole number (1 or more, at most 1000000000)", "job.yaml:2", "epochs: 10"),
    ),
    (
        "absurd sizes",
        "recipe: digits\nepochs: 1000000000000000\nglobal_batch_size: 1000000000000\n",
        ("wrong-value", "wrong-value"),
        ("1000000000000000", "1000000000000", "at most 1000000000"),
    ),
    (
        "quoted number",
        GOOD + 'optimizer:\n  lr: "1e-3"\n',
        ("wrong-value",),
        ('"1e-3"', "job.yaml:5", "optimizer.lr: 0.001"),
    ),
    (
        "fraction for a whole number",
        GOOD + "micro_batch_size: 8.0\n",
        ("wrong-value",),
        ("8.0", "job.yaml:4", "micro_batch_size: 8"),
    ),
    ("yes for true", GOOD + "logging: {tensorboard: yes}\n", ("wrong-value",), ("true", ":4")),
    ("true for a number", GOOD + "steps: true\n", ("wrong-value",), ("true", "job.yaml:4")),
    (
        "negative batch",
        "recipe: digits\nepochs: 1\nglobal_batch_size: -64\n",
        ("wrong-value",),
        ("-64", "1 or more", "job.yaml:3"),
    ),
    (
        "zero epochs",
        "recipe: digits\nepochs: 0\nglobal_batch_size: 64\n",
        ("wrong-value",),
        ("is 0", "1 or more", "job.yaml:2"),
    ),
    ("number that is not one", GOOD + "optimizer.lr: .nan\n", ("wrong-value",), ("NaN", ":4")),
    ("infinite number", GOOD + "optimizer: {eps: 1e999}\n", ("wrong-value",), ("Infinity", ":4")),
    ("infinite option", GOOD + "options: {a: [.inf]}\n", ("wrong-value",), ("options.a", ":4")),
    ("huge number", GOOD + f"seed: {'9' * 6000}\n", ("wrong-value",), ("999...", "job.yaml:4")),
    (
        "betas of three",
        GOOD + "optimizer:\n  betas: [0.9, 0.99, 0.999]\n",
        ("wrong-value",),
        ("[0.9, 0.99, 0.999]", "a list of 2 numbers", "job.yaml:5"),
    ),
    (
        "interval without sense",
        GOOD + "checkpoint:\n  every: now and then\n",
        ("wrong-value",),
        ("now and then", "`500 steps`", "job.yaml:5"),
    ),
    (
        "union reported once",
        GOOD + "schedule:\n  warmup: [1]\n",
        ("wrong-value",),
        ("schedule.warmup", "`auto` or an interval", "job.yaml:5"),
    ),
    (
        "wrong choice",
        GOOD + "precision: bf61\n",
        ("wrong-value",),
        ("`bf16`", "`fp64`", "precision: bf16", "job.yaml:4"),
    ),
    (
        "value for a section",
        GOOD + "optimizer: sgd\n",
        ("wrong-value",),
        ("a section", "optimizer.name: sgd", "job.yaml:4"),
    ),
    ("list for options", GOOD + "options: [1]\n", ("wrong-value",), ("a mapping", "job.yaml:4")),
    ("name with a slash", GOOD + "name: a/b\n", ("wrong-value",), ("a/b", "job.yaml:4")),
    ("future format", GOOD + "schema_version: 2\n", ("wrong-value",), ("`1`", "job.yaml:4")),
    ("no recipe", "epochs: 1\nglobal_batch_size: 64\n", ("missing-key",), ("recipe: digits",)),
    ("empty file", "", ("job-empty",), ("job.yaml", "recipe: digits")),
    ("only comments", "# nothing\n---\n", ("job-empty",), ("job.yaml",)),
    ("binary file", b"\x00\x01PK\x03\x04", ("job-binary",), ("byte 0",)),
    ("not UTF-8", b"recipe: d\xe9j\xe0\n", ("job-binary",), ("byte 9",)),
    ("control character", GOOD + "name: \x07\n", ("yaml-syntax",), ("job.yaml:4",)),
    (
        "Python tag",
        GOOD + "name: !!python/object/apply:os.system [id]\n",
        ("yaml-tag",),
        ("python/object/apply", "job.yaml:4"),
    ),
    ("alias bomb", GOOD + _BOMB, ("yaml-alias",), ("&a", "job.yaml:4")),
    (
        "merge key",
        GOOD + "optimizer: &o {lr: 1}\nschedule:\n  <<: *o\n",
        ("yaml-alias",),
        ("&o", "job.yaml:4"),
    ),
    ("deep nesting", GOOD + "options: " + "[" * 5000, ("too-deep",), ("32", "job.yaml:4")),
    ("tab indentation", GOOD + "optimizer:\n\tlr: 1\n", ("yaml-syntax",), ("job.yaml:5:1", "lr")),
    ("colon twice", GOOD + "name: a: b\n", ("yaml-syntax",), ("job.yaml:4:8", "a: b")),
    ("open bracket", GOOD + "devices: {gpus: [0, 1\n", ("yaml-syntax",), ("job.yaml:5",)),
    ("escape out of range", GOOD + 'name: "\\UFFFFFFFF"\n', ("yaml-syntax",), ("job.yaml:4",)),
    ("list at the top", "- recipe\n- digits\n", ("job-not-a-mapping",), ("a list", "job.yaml:1")),
    ("text at the top", "digits\n", ("job-not-a-mapping",), ("a single value", "job.yaml:1")),
    ("two documents", GOOD + "---\n" + GOOD, ("yaml-documents",), ("job.yaml:4",)),
    (
        "duplicate key",
        GOOD + "epochs: 20\n",
        ("duplicate-key",),
        ("`epochs`", "job.yaml:2", "job.yaml:4"),
    ),
    (
        "duplicate key, nested and dotted",
        GOOD + "optimizer:\n  lr: 1\noptimizer.lr: 2\n",
        ("duplicate-key",),
        ("`optimizer.lr`", "job.yaml:5", "job.yaml:6"),
    ),
    ("number as a key", GOOD + "options:\n  0: car\n", ("key-not-text",), ("0", "job.yaml:5")),
    ("list as a key", GOOD + "? [a, b]\n: 1\n", ("key-not-text",), ("job.yaml:4",)),
    ("100 MB file", _huge, ("job-too-large",), ("100,000,000", "1,048,576")),
    ("folder", _folder, ("job-not-a-file",), ("configs/base.yaml", "folder")),
    ("device", lambda _: "/dev/zero", ("job-not-a-file",), ("/dev/zero", "device")),
    ("missing file", _misspelt, ("job-missing",), ("jobb.yaml", "did you mean `job.yaml`?")),
    ("path under a file", lambda f: f"{_misspelt(f)[:3]}.yaml/x", ("job-unreadable",), ("job",)),
    ("name too long", lambda _: "x" * 5000, ("job-unreadable",), ("xxx...",)),
)

_RULES: tuple[
    tuple[str, str | bytes | Callable[[Path], str], tuple[str, ...], tuple[str, ...]], ...
]
_RULES = (
    ("both lengths", GOOD + "steps: 50\n", ("two-lengths",), ("10", "50", "job.yaml:2", ":4")),
    ("no length", "recipe: digits\nglobal_batch_size: 64\n", ("no-length",), ("epochs: 10",)),
    ("both batches", GOOD + "batch_per_gpu: 8\n", ("two-batches",), ("64", "8", ":3", ":4")),
    (
        "two ways for the decay to rise",
        GOOD + "ema: {decay: 0.9, warmup: true, ramp: 5}\n",
        ("exclusive-keys",),
        ("ema.warmup", "ema.ramp", ":4"),
    ),
    ("no batch", "recipe: digits\nepochs: 1\n", ("no-batch",), ("global_batch_size: 64",)),
    (
        "three rules at once",
        "recipe: digitz\nepochs: 1\nsteps: 1\n",
        ("two-lengths", "no-batch", "unknown-recipe"),
        ("did you mean `digits`?", "job.yaml:1", "job.yaml:3"),
    ),
    ("micro above global", GOOD + "micro_batch_size: 65\n", ("micro-batch",), ("65", "64", ":4")),
    (
        "micro and per GPU differ",
        "recipe: digits\nepochs: 1\nbatch_per_gpu: 8\nmicro_batch_size: 4\n",
        ("two-micro-batches",),
        ("8", "4", "job.yaml:3", "job.yaml:4"),
    ),
    (
        "batch that does not multiply out",
        GOOD + "micro_batch_size: 8\ngradient_accumulation: 3\ndevices.cpu: 2\n",
        ("batch-arithmetic",),
        ("= 48", "64", "job.yaml:5", "job.yaml:6", "global_batch_size: 48"),
    ),
    ("no GPU at all", GOOD + "devices:\n  gpus: 0\n", ("gpu-count",), ("--gpus 0,", ":5")),
    (
        "GPU ids",
        GOOD + "devices: {gpus: [0, -1]}\n",
        ("gpu-ids",),
        ("-1 is below 0", "devices.gpus: [0]", "job.yaml:4"),
    ),
    (
        "a GPU twice",
        GOOD + "devices: {gpus: [0, 0, 1]}\n",
        ("gpu-twice",),
        ("GPU 0 is given to more", "devices.gpus: [0, 1]", "devices.backend=gloo", "job.yaml:4"),
    ),
    (
        "exact and sharded",
        GOOD + "strategy: fsdp\ndeterminism: exact\n",
        ("exact-sharded",),
        ("strategy: ddp", "job.yaml:4", "job.yaml:5"),
    ),
    (
        "exact and synchronised",
        GOOD + "sync_batchnorm: true\ndeterminism: exact\n",
        ("exact-synced",),
        ("sync_batchnorm: false", "job.yaml:4", "job.yaml:5"),
    ),
    (
        "exact and compiled",
        GOOD + "compile: true\ndeterminism: exact\n",
        ("exact-compiled",),
        ("compile: off", "job.yaml:4", "job.yaml:5"),
    ),
    ("no GPU ids", GOOD + "devices: {gpus: []}\n", ("gpu-ids",), ("empty", "job.yaml:4")),
    (
        "GPUs and CPU",
        GOOD + "devices: {gpus: 2, cpu: 3}\n",
        ("gpus-and-cpu",),
        ("devices.gpus: 2", "devices.cpu: 3"),
    ),
    (
        "single on two",
        GOOD + "strategy: single\ndevices: {cpu: 2}\n",
        ("single-strategy",),
        ("1 rank", "2", "job.yaml:4", "job.yaml:5"),
    ),
    (
        "NCCL on CPU",
        GOOD + "devices: {cpu: 2, backend: nccl}\n",
        ("nccl-on-cpu",),
        ("devices.backend: gloo",),
    ),
    (
        "early stopping without evaluation",
        GOOD + "evaluate: {every: null, early_stopping: 3}\n",
        ("early-stopping",),
        ("3", "evaluate.every: 1 epochs"),
    ),
    (
        "warm-up longer than training",
        GOOD + "schedule: {warmup: 11 epochs}\n",
        ("long-warmup",),
        ("11 epochs", "10 epochs", "job.yaml:4", "job.yaml:2"),
    ),
    ("warm-up of 101 %", GOOD + "schedule.warmup: 101%\n", ("long-warmup",), ("101%", "100%")),
    ("warm-up by the clock", GOOD + "schedule.warmup: 5 min\n", ("warmup-unit",), ("5 minutes",)),
    ("betas", GOOD + "optimizer: {betas: [0.9, 1.0]}\n", ("betas",), ("1.0", "below 1", ":4")),
    (
        "nesterov without momentum",
        GOOD + "optimizer: {name: sgd, momentum: 0, nesterov: true}\n",
        ("nesterov",),
        ("optimizer.momentum: 0.9",),
    ),
    (
        "percent of what",
        GOOD + "checkpoint: {every: 5%}\nevaluate: {every: 5%}\n",
        ("interval", "interval"),
        ("checkpoint.every", "evaluate.every", "5%", "job.yaml:4", "job.yaml:5"),
    ),
    ("half a step", GOOD + "stop_after: 2.5 steps\n", ("interval",), ("2.5", "3 steps", ":4")),
    ("never", GOOD + "checkpoint.every: 0 epochs\n", ("interval",), ("0 epochs", "above 0", ":4")),
    (
        "unknown recipe",
        GOOD.replace("digits", "digit"),
        ("unknown-recipe",),
        ("did you mean `digits`?", "recipe: digits", "job.yaml:1"),
    ),
    ("recipe file missing", GOOD.replace("digits", "a.py:B"), ("recipe-missing",), ("a.py", ":1")),
    ("recipe file near", _recipe_near, ("recipe-missing",), ("recipe: my_recipe.py:Mine",)),
    ("recipe no class", _recipe_without_class, ("recipe-class",), ("my_recipe.py:Mine", ":1")),
    (
        "recipe is no Python",
        GOOD.replace("digits", "train.yaml:A"),
        ("recipe-file",),
        (".yaml", ".py"),
    ),
    ("output under a file", _output_under_file, ("output-path",), ("taken/runs", "job.yaml:4")),
    ("output is a file", _output_is_file, ("output-path",), ("'taken' is a file", "job.yaml:4")),
    ("output in a device", GOOD + "output: /dev/null/x\n", ("output-path",), ("/dev/null", ":4")),
    ("output with NUL", GOOD + 'output: "a\\0b"\n', ("output-path",), ("job.yaml:4",)),
    ("output with a tilde", GOOD + "output: ~/runs\n", ("output-path",), ("~/runs", "job.yaml:4")),
    ("weights missing", GOOD + "init_from: w.pt\n", ("init-from",), ("w.pt", "job.yaml:4")),
)

_GPUS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "GPU that is not there",
        GOOD + "devices:\n  gpus: [0, 7]\n",
        ("no-such-gpu",),
        ("GPU 7", "0, 1", "job.yaml:5", "CUDA_VISIBLE_DEVICES", "devices.gpus: [0]"),
    ),
    (
        "more GPUs than there are",
        GOOD + "devices: {gpus: 16}\n",
        ("too-few-gpus",),
        ("16 GPUs", "has 2", "job.yaml:4", "devices.gpus: 2"),
    ),
)

WRONG_JOBS: list[WrongJob] = [
    *(WrongJob(name, make, slugs, says) for name, make, slugs, says in _LOAD),
    *(WrongJob(name, make, slugs, says, "rules") for name, make, slugs, says in _RULES),
    *(WrongJob(name, make, slugs, says, "gpus") for name, make, slugs, says in _GPUS),
]
