"""`phalanx recipes`: list what can be trained, show one, copy one to edit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.errors import Finding, UserError, did_you_mean, short_path
from phalanx.output import console

if TYPE_CHECKING:
    from pydantic import BaseModel

app = typer.Typer(no_args_is_help=False, help="List, show and copy recipes.")


@app.callback(invoke_without_command=True)
def recipes(context: typer.Context) -> int:
    """List the recipes that ship with Phalanx.

    Examples: phalanx recipes | phalanx recipes show digits | phalanx recipes copy digits mine
    """
    if context.invoked_subcommand is not None:
        return 0
    from phalanx.recipe.loading import builtin_recipes, describe_recipe

    rows = [(name, describe_recipe(name)) for name in builtin_recipes()]
    console.table(rows, header=("recipe", "what it trains"))
    console.say(
        "phalanx recipes show NAME | phalanx train NAME | phalanx recipes copy NAME [FOLDER]"
    )
    return 0


_NAME = typer.Argument(help="A recipe's name, or your own `file.py:Class`.")


@app.command("show")
def show(name: Annotated[str, _NAME]) -> int:
    """Show a recipe: what it trains, its job file, its options, presets and forms of export."""
    from phalanx.job.presets import describe_preset, list_presets
    from phalanx.recipe.benchmarking import known_benchmarks
    from phalanx.recipe.collecting import collecting_settings
    from phalanx.recipe.exporting import export_forms
    from phalanx.recipe.loading import builtin_recipes, load_recipe_class, recipe_file

    folder = builtin_recipes().get(name)
    if folder is not None:
        console.say((folder / "README.md").read_text(encoding="utf-8"))
        console.say((folder / "job.yaml").read_text(encoding="utf-8"))
    else:
        _require_known(name)
    recipe = load_recipe_class(name)  # runs the recipe's code: imports torch
    console.table(_rows(recipe.Options), header=("option", "default", "meaning"))
    if presets := list_presets(folder or recipe_file(name).parent):
        about = [(f"preset={key}", describe_preset(path)) for key, path in presets.items()]
        console.table(about, header=("preset", "meaning"))
    if (collecting := collecting_settings(recipe)) is not None:
        console.table(_rows(collecting), header=("phalanx recipes collect", "default", "meaning"))
    if forms := export_forms(recipe):
        console.table(forms.items(), header=("phalanx export --to", "meaning"))
    if benchmarks := known_benchmarks(recipe):
        console.table(benchmarks.items(), header=("phalanx evaluate --benchmark", "meaning"))
    return 0


def _rows(options: type[BaseModel]) -> list[tuple[str, str, str]]:
    return [
        (
            key,
            str(field.get_default(call_default_factory=True)),
            " ".join((field.description or "").split()),
        )
        for key, field in options.model_fields.items()
    ]


@app.command("copy")
def copy(
    name: Annotated[str, typer.Argument(help="A recipe's name.")],
    folder: Annotated[
        Path | None, typer.Argument(help="Where to; default: a folder of the recipe's name.")
    ] = None,
) -> int:
    """Copy a recipe's job file and code into a folder of your own to edit."""
    from phalanx.recipe.loading import builtin_recipes, copy_recipe

    _require_known(name)
    target = folder or Path(name)
    if target.exists():
        raise UserError(
            Finding(
                slug="folder-exists",
                what=f"`{target}` already exists",
                why="copying would overwrite what is there",
                fix=f"phalanx recipes copy {name} {target}_2",
            )
        )
    for path in copy_recipe(builtin_recipes()[name], target):
        console.say(f"wrote {path}")
    console.say(f"train it: phalanx train {target}/job.yaml")
    return 0


@app.command("convert")
def convert(
    kind: Annotated[str, typer.Argument(metavar="voc|coco", help="What the labels are now.")],
    source: Annotated[Path, typer.Argument(help="VOC: a folder of XML files; COCO: a JSON file.")],
    images: Annotated[Path, typer.Option("--images", help="Folder of the images.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write, with a data.yaml in it.")],
    val: Annotated[
        Path | None, typer.Option("--val", help="Labels to test with, in the same form.")
    ] = None,
    val_images: Annotated[
        Path | None, typer.Option("--val-images", help="Their images. Default: --images.")
    ] = None,
    val_share: Annotated[
        float, typer.Option("--val-share", help="Without --val: the share to test with.")
    ] = 0.1,
) -> int:
    """Turn labels in VOC XML or COCO JSON into a data set for the detection recipe.

    Examples: phalanx recipes convert voc Annotations --images JPEGImages --out data |
    phalanx recipes convert coco train.json --images train --val val.json --out data
    """
    from phalanx.recipes.detection.converting import FORMATS
    from phalanx.recipes.detection.converting import convert as write

    if kind not in FORMATS:
        raise UserError(
            Finding(
                slug="convert-format",
                what=f"`{kind}` labels are not known{did_you_mean(kind, FORMATS)}",
                why=f"known: {', '.join(FORMATS)}",
                fix=f"phalanx recipes convert {FORMATS[0]} {source} --images {images} --out {out}",
            )
        )
    done = write(
        kind,
        source,
        images=images,
        out=out,
        val=val,
        val_images=val_images,
        val_share=val_share,
    )
    console.show_findings(done.findings)
    counts = ", ".join(f"{count:,} for {split}" for split, count in done.images.items())
    console.say(f"wrote {done.file}: {counts}; {done.boxes:,} boxes, {len(done.classes)} classes")
    console.say(f"train on it: phalanx train detection data={done.file}")
    return 0


@app.command("collect")
def collect(
    name: Annotated[str, _NAME],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="What to collect; `recipes show` lists the keys."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="A new folder. Default: where the recipe looks by itself."),
    ] = None,
) -> int:
    """Let a recipe make data of its own, such as demonstrations of a simulator's experts.

    Examples: phalanx recipes collect policy | phalanx recipes collect policy tasks=reach-v3
    episodes=50 --out demonstrations
    """
    from phalanx.verbs.collect import collect_data

    _require_known(name)
    with console.working("starting") as say:
        done = collect_data(name, settings or [], out=out, say=say)
    for line in done.said:
        console.say(line)
    shown = short_path(done.path)
    console.say(f"wrote {shown}")
    console.say(f"train on it: phalanx train {name} data={shown}")
    return 0


def _require_known(name: str) -> None:
    from phalanx.recipe.loading import builtin_recipes

    known = builtin_recipes()
    if name in known or ".py:" in name:
        return
    raise UserError(
        Finding(
            slug="unknown-recipe",
            what=f"no recipe is called `{name}`{did_you_mean(name, known)}",
            why=f"recipes: {', '.join(known)}",
            fix="phalanx recipes",
        )
    )
