"""`phalanx export`: a checkpoint as files that other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from phalanx.launch.export import Export


def export(
    run: Annotated[
        str | None,
        typer.Argument(help="A run directory, its name, or a checkpoint; default: the newest run."),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORM",
            help="`safetensors` (the weights under the model's names), or a form of the recipe.",
        ),
    ] = "safetensors",
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint", metavar="best|latest|N", help="Which one: `best`, `latest` or a step."
        ),
    ] = "best",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where to; default: `exports/` of the run."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            metavar="raw|average",
            help="The weights or their average; default: what was evaluated.",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", help="Folder for run directories.")] = Path(
        "runs"
    ),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as JSON.")
    ] = False,
) -> int:
    """Write a checkpoint of a run as files that other tools read.

    Every recipe has the form `safetensors`; `phalanx recipes show NAME` lists the others. The
    folder appears whole or not at all, and nothing that is there is overwritten.

    Examples: phalanx export | phalanx export runs/first --to safetensors --checkpoint latest
    """
    from phalanx.cli import console
    from phalanx.launch.export import export_run

    with console.working("reading the checkpoint and writing"):
        done = export_run(
            run, form=to, checkpoint=checkpoint, out=out, weights=weights, output=output
        )
    if as_json:
        console.say_json(
            {
                "folder": str(done.folder),
                "form": done.form,
                "checkpoint": str(done.checkpoint),
                "weights": done.weights,
                "files": done.files,
                "findings": [finding.to_json() for finding in done.findings],
            }
        )
        return 0
    console.show_findings(done.findings)
    _show(done)
    return 0


def _show(done: Export) -> None:
    from phalanx.cli import console
    from phalanx.errors import format_bytes

    folder = console.short_path(done.folder)
    what = "averaged weights" if done.weights == "average" else "weights"
    console.say(f"{done.form} of {done.checkpoint.name} ({what})")
    console.table(
        [(str(folder / name), format_bytes(size)) for name, size in done.files.items()],
        header=("wrote", "size"),
        right=(1,),
    )
    command, meaning = f"phalanx recipes show {done.recipe}", "what this form is, and the others"
    if done.form == "safetensors":
        command = f"phalanx train {done.recipe} init_from={folder / 'model.safetensors'}"
        meaning = "start another run from these weights"
    console.say("next:")
    console.say(f"  {command}")
    console.say(f"      {meaning}", style="dim")
