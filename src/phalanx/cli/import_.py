"""`phalanx import`: settings that were written for another tool, as a job file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phalanx.errors import Finding, UserError, short_path
from phalanx.output import console

if TYPE_CHECKING:
    from phalanx.job.importing import Asked, Imported, Line

# Options that are not known here belong to a command line that is imported.
SETTINGS = {"ignore_unknown_options": True}

_MEANINGS = {
    "taken": "taken",
    "derived": "derived",
    "unstated": "not stated",
    "left": "no counterpart",
}
# What the settings may leave open, and what this machine may lack: shown, and the job is written.
_OPEN = ("no-batch", "no-length", "deepspeed-missing")


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
            "--kind",
            help="Of the file: trainer, accelerate, deepspeed, ultralytics, lightning, axolotl, "
            "lerobot, yaml.",
        ),
    ] = None,
    leave: Annotated[
        list[str] | None,
        typer.Option(
            "--leave", metavar="KEY", help="Leave a setting out, or what has no place in a section."
        ),
    ] = None,
    batch_means: Annotated[
        Literal["per-gpu", "global"] | None,
        typer.Option(
            "--batch-means",
            metavar="per-gpu|global",
            help="What a plain batch size counts: one GPU and pass, or a step.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="The job file to write.")
    ] = Path("job.yaml"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> int:
    """Turn settings of Accelerate, HF Trainer, TRL, LLaMA-Factory, Axolotl, Lightning, LeRobot,
    DeepSpeed, Ultralytics, a command line or a YAML of your own into a job file, and say what
    became of each of them.

    A setting that cannot be carried is an error, and nothing is written. Nothing is overwritten.

    Examples: phalanx import args.yaml | phalanx import training_args.json --recipe lora |
    phalanx import torchrun --nproc_per_node 4 train.py --lr 1e-3 --recipe my_recipe.py:Mine
    """
    from phalanx.codec import to_json
    from phalanx.job import check_job, load_job
    from phalanx.job.importing import Asked, job_text
    from phalanx.recipe.loading import builtin_recipes

    imported = _read(source, kind, Asked(recipe, leave or (), batch_means))
    chosen = recipe or imported.job.get("recipe")
    if chosen is None or imported.findings:
        if not as_json:
            _show(imported, imported.lines)
        missing = [] if chosen else [_no_recipe(imported, source)]
        raise UserError([*imported.findings, *missing])
    values, lines = _complete(imported, chosen)
    if not as_json:
        _show(imported, lines)
    findings = check_job(load_job(values), known_recipes=builtin_recipes(), nodes=imported.nodes)
    if wrong := [f for f in findings if f.severity == "error" and f.slug not in _OPEN]:
        raise UserError(wrong)
    _write(out, job_text(values, imported.place))
    if as_json:
        console.say_json(
            {
                "job": str(out),
                "kind": imported.kind,
                "settings": [line._asdict() for line in lines],
                "findings": to_json(findings),
            }
        )
        return 0
    console.show_findings(findings)
    console.say(f"wrote {short_path(out.absolute())}")
    _next(imported, out)
    return 0


def _complete(imported: Imported, recipe: str) -> tuple[dict[str, Any], list[Line]]:
    """The values of the job file, and what became of every setting."""
    from phalanx.job import load_job
    from phalanx.job.importing import complete, unstated
    from phalanx.job.presets import list_presets
    from phalanx.recipe.loading import builtin_recipes

    builtin = builtin_recipes().get(recipe)
    base = None
    if builtin is not None:
        preset = list_presets(builtin).get(imported.preset or "")
        base = load_job(preset or builtin / "job.yaml")
    stated = {**imported.job, "recipe": recipe}
    values = complete(stated, base)
    return values, [*imported.lines, *unstated(values, stated, base)]


def _next(imported: Imported, out: Path) -> None:
    console.say("next:")
    console.say(f"  phalanx plan {shlex.quote(str(out))}")
    if imported.nodes > 1:
        where = f"--nodes {imported.nodes} --rendezvous HOST:29500"
        console.say(f"  phalanx train {shlex.quote(str(out))} {where}")
    if imported.launch is not None and imported.launch.can_launch:
        console.say(f"  {_launch(imported)}")
        console.say("      the script as it is, under the same supervision", style="dim")
        if imported.launch.not_carried:
            lost = ", ".join(imported.launch.not_carried)
            console.say(f"      `phalanx launch` has no option for {lost}")


def _read(source: list[str], kind: str | None, asked: Asked) -> Imported:
    from phalanx.job.importing import PROGRAMS, import_command, import_file

    words = shlex.split(source[0]) if len(source) == 1 and " " in source[0] else source
    if len(words) == 1 and words[0] not in PROGRAMS:
        return import_file(Path(words[0]), kind, asked)
    return import_command(words, asked)


def _show(imported: Imported, lines: list[Line]) -> None:
    fates = [line.fate for line in lines]
    console.say(
        f"{imported.place}: {fates.count('taken')} taken, {fates.count('derived')} derived, "
        f"{fates.count('unstated')} not stated, {fates.count('left')} without counterpart"
    )
    order = list(_MEANINGS)
    console.table(
        [
            (line.theirs, _MEANINGS[line.fate], line.ours, line.why)
            for line in sorted(lines, key=lambda line: max(1, order.index(line.fate)))
        ],
        header=("setting", "", "job", "because"),
    )


def _write(out: Path, text: str) -> None:
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
    assert imported.launch is not None
    return shlex.join(imported.launch.words(imported.job, imported.nodes))


def _no_recipe(imported: Imported, source: list[str]) -> Finding:
    from phalanx.recipe.loading import builtin_recipes

    what = shlex.join(source)
    launch = f"; or the script as it is: {_launch(imported)}" if imported.script else ""
    return Finding(
        slug="import-recipe",
        what="these settings do not say what is trained, and nothing was written",
        why=f"{imported.place} has no counterpart of `recipe`; there are "
        f"{', '.join(builtin_recipes())}, and files of your own",
        fix=f"phalanx import {what} --recipe my_recipe.py:MyRecipe{launch}",
    )
