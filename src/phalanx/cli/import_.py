"""`phalanx import`: settings that were written for another tool, as a job file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from phalanx.errors import Finding
    from phalanx.job.importing import Imported

# Options that are not known here belong to a command line that is imported.
SETTINGS = {"ignore_unknown_options": True}

_MEANINGS = {"taken": "taken", "derived": "derived", "left": "no counterpart"}


def import_(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE | COMMAND",
            help="A settings file of another tool, or the line that starts training today.",
        ),
    ],
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", help="What is trained: `phalanx recipes`, or a file of yours."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", help="Of the file: trainer, accelerate, deepspeed, ultralytics, yaml."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="The job file to write.")
    ] = Path("job.yaml"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> int:
    """Turn settings of Accelerate, HF Trainer, DeepSpeed, Ultralytics, torchrun or a YAML of your
    own into a job file, and say what became of each of them.

    Nothing is overwritten, and what is written is a job that passes its checks.

    Examples: phalanx import args.yaml | phalanx import training_args.json --recipe lora |
    phalanx import torchrun --nproc_per_node 4 train.py --lr 1e-3 --recipe my_recipe.py:Mine
    """
    from phalanx.cli import console
    from phalanx.errors import UserError
    from phalanx.job import check_job, load_job
    from phalanx.job.importing import complete, job_text
    from phalanx.recipe.load import builtin_recipes

    imported = _read(source, kind)
    if not as_json:
        _show(imported)
    chosen = recipe or imported.job.get("recipe")
    if chosen is None:
        raise UserError(_no_recipe(imported, source))
    builtin = builtin_recipes().get(chosen)
    base = load_job(builtin / "job.yaml") if builtin is not None else None
    values = complete({**imported.job, "recipe": chosen}, base)
    loaded = load_job(values)
    findings = check_job(loaded, known_recipes=builtin_recipes())
    _write(out, job_text(values, imported.place))
    if as_json:
        console.say_json(
            {
                "job": str(out),
                "kind": imported.kind,
                "settings": [line._asdict() for line in imported.lines],
                "findings": [finding.to_json() for finding in findings],
            }
        )
        return 0
    console.show_findings(findings)
    console.say(f"wrote {console.short_path(out.absolute())}")
    console.say("next:")
    console.say(f"  phalanx plan {shlex.quote(str(out))}")
    if imported.script:
        console.say(f"  {_launch(imported)}")
        console.say("      the script as it is, under the same supervision", style="dim")
    return 0


def _read(source: list[str], kind: str | None) -> Imported:
    from phalanx.job.importing import import_command, import_file

    words = shlex.split(source[0]) if len(source) == 1 and " " in source[0] else source
    if len(words) == 1 and words[0] not in ("torchrun", "accelerate", "deepspeed"):
        return import_file(Path(words[0]), kind)
    return import_command(words)


def _show(imported: Imported) -> None:
    from phalanx.cli import console

    fates = [line.fate for line in imported.lines]
    console.say(
        f"{imported.place}: {fates.count('taken')} taken, {fates.count('derived')} derived, "
        f"{fates.count('left')} without counterpart"
    )
    console.table(
        [
            (line.theirs, _MEANINGS[line.fate], line.ours, line.why)
            for line in sorted(imported.lines, key=lambda line: line.fate == "left")
        ],
        header=("setting", "", "job", "because"),
    )


def _write(out: Path, text: str) -> None:
    from phalanx.errors import Finding, UserError
    from phalanx.run.directory import write_atomic

    if out.exists():
        raise UserError(
            Finding(
                slug="import-exists",
                what=f"`{out}` is there already, and nothing is overwritten",
                why=f"--out {out}",
                fix=f"--out {shlex.quote(str(out.with_name(f'{out.stem}-imported{out.suffix}')))}",
            )
        )
    try:
        write_atomic(out, text)
    except OSError as error:
        raise UserError(
            Finding(
                slug="import-not-written",
                what=f"`{out}` cannot be written",
                why=error.strerror or str(error),
                fix="--out FILE in a folder that you may write to",
            )
        ) from error


def _launch(imported: Imported) -> str:
    """How the script of a command line is started as it is."""
    job = imported.job
    gpus, cpu = job.get("devices.gpus"), job.get("devices.cpu")
    words = ["--cpu", str(cpu)] if cpu is not None else []
    if gpus is not None:
        words = ["--gpus", ",".join(map(str, gpus)) if isinstance(gpus, list) else str(gpus)]
    return shlex.join(["phalanx", "launch", *words, *imported.script])


def _no_recipe(imported: Imported, source: list[str]) -> Finding:
    from phalanx.errors import Finding
    from phalanx.recipe.load import builtin_recipes

    what = shlex.join(source)
    launch = f"; or the script as it is: {_launch(imported)}" if imported.script else ""
    return Finding(
        slug="import-recipe",
        what="these settings do not say what is trained, and nothing was written",
        why=f"{imported.place} has no counterpart of `recipe`; there are "
        f"{', '.join(builtin_recipes())}, and files of your own",
        fix=f"phalanx import {what} --recipe my_recipe.py:MyRecipe{launch}",
    )
