"""`phalanx export`: a trained model as files that other tools read and run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.options.job import (
    CHECKPOINT,
    OPTIONS,
    RECIPE_OF_WEIGHTS,
    RUNS,
    WEIGHTS,
    name_and_overrides,
)
from phalanx.errors import ExitCode, format_bytes, short_path
from phalanx.output import console

if TYPE_CHECKING:
    from phalanx.verbs.export import Export


def export(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|CHECKPOINT|WEIGHTS",
            help="A run directory or its name, a checkpoint folder, or a file of weights: "
            ".safetensors, .pt; default: the newest run.",
        ),
    ] = None,
    overrides: Annotated[list[str] | None, OPTIONS] = None,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORM",
            help="`safetensors` (the weights), `onnx`, `torchscript`, `tensorrt`, or a form of the "
            "recipe.",
        ),
    ] = "safetensors",
    half: Annotated[bool, typer.Option("--half", help="In fp16; takes and gives fp32.")] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="In int8, calibrated with train samples.")
    ] = False,
    dynamic: Annotated[
        bool,
        typer.Option("--dynamic", help="For any batch size, and any length the recipe names."),
    ] = False,
    batch: Annotated[
        int, typer.Option("--batch", min=1, help="Samples at a time; with --dynamic the usual.")
    ] = 1,
    opset: Annotated[
        int | None, typer.Option("--opset", min=18, help="Of ONNX; default: torch's own.")
    ] = None,
    checkpoint: Annotated[str, CHECKPOINT] = "best",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where to; default: `exports/` of the run."),
    ] = None,
    weights: Annotated[str | None, WEIGHTS] = None,
    recipe: Annotated[str | None, RECIPE_OF_WEIGHTS] = None,
    output: Annotated[Path, RUNS] = Path("runs"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as JSON.")
    ] = False,
) -> int:
    """Write a trained model as files that other tools read and run.

    What runs is run here on real samples and compared with PyTorch, output by output; its size and
    speed are shown. `phalanx recipes show NAME` lists further forms of a recipe. The folder appears
    whole or not at all, and nothing that is there is overwritten.

    Examples: phalanx export | phalanx export runs/first --to onnx --dynamic | phalanx export
    runs/first --to onnx --int8 | phalanx export best.pt --recipe digits --to torchscript
    """
    from phalanx.verbs.export import Settings, export_trained

    model, words = name_and_overrides(model, overrides)
    with console.working("reading the weights") as say:
        done = export_trained(
            model,
            words,
            form=to,
            settings=Settings(half=half, int8=int8, dynamic=dynamic, batch=batch, opset=opset),
            checkpoint=checkpoint,
            out=out,
            weights=weights,
            recipe=recipe,
            output=output,
            say=say,
        )
    code = ExitCode.OK if done.is_complete else ExitCode.MACHINE
    if as_json:
        console.say_json(done.to_json())
        return int(code)
    console.show_findings(done.findings)
    _show(done)
    return int(code)


def _show(done: Export) -> None:
    folder = short_path(done.folder)
    console.say(f"{done.form} of {done.title}")
    console.table(
        [(str(folder / name), format_bytes(size)) for name, size in done.files.items()],
        header=("wrote", "size"),
        right=(1,),
    )
    if done.compared:
        _show_compared(done)
    if done.metrics:
        before, after = done.metrics["before"], done.metrics["after"]
        console.table(
            [
                (name, f"{before[name]:.6g}", f"{value:.6g}", f"{value - before[name]:+.3g}")
                for name, value in after.items()
                if name in before
            ],
            header=("test split", "PyTorch", "int8", "change"),
            right=(1, 2, 3),
        )
    _show_next(done, folder)


def _show_compared(done: Export) -> None:
    compared = done.compared
    console.table(
        [
            (
                row["output"],
                " x ".join(map(str, row["shape"])),
                f"{row['largest']:g} differ" if row["is_count"] else f"{row['largest']:.2g}",
                "-" if row["limit"] is None else f"{row['limit']:.2g}",
            )
            for row in compared["differences"]
        ],
        header=("output", "shape", "largest difference", "allowed"),
        right=(2, 3),
    )
    console.say(
        f"compared with PyTorch in fp32 on {compared['samples']} real samples; "
        f"a batch of {compared['batch']}: {compared['torch_ms']:.3g} ms in PyTorch, "
        f"{compared['exported_ms']:.3g} ms in {compared['runtime']} ({compared['device']})"
    )


def _show_next(done: Export, folder: Path) -> None:
    command, meaning = f"phalanx recipes show {done.recipe}", "what this form is, and the others"
    if done.form == "safetensors":
        command = f"phalanx train {done.recipe} init_from={folder / 'model.safetensors'}"
        meaning = "start another run from these weights"
    elif "model.onnx" in done.files:
        command = f"phalanx evaluate {folder / 'model.onnx'}"
        meaning = "the metrics of this file on the test split"
    elif done.form == "torchscript":
        command = f"python -c \"import torch; torch.jit.load('{folder / 'model.torchscript'}')\""
        meaning = "it loads without the recipe"
    console.say_next((command, meaning))
