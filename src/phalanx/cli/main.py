"""The `phalanx` command: turns every error into Findings and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from phalanx.cli import (
    bench,
    check,
    doctor,
    estimate,
    evaluate,
    explain,
    export,
    import_,
    launch,
    plan,
    recipes,
    remote,
    slurm,
    stop,
    train,
    verify,
    watch,
)
from phalanx.cli.options import script
from phalanx.errors import ExitCode, Finding, UserError
from phalanx.output import console, language

app = typer.Typer(
    name="phalanx",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("check")(check.check)
app.command("plan")(plan.plan)
app.command("estimate")(estimate.estimate)
app.command("train")(train.train)
app.command("launch", context_settings=script.SETTINGS)(launch.launch)
app.command("stop")(stop.stop)
app.command("watch")(watch.watch)
app.command("doctor")(doctor.doctor)
app.command("verify")(verify.verify)
app.command("bench")(bench.bench)
app.command("evaluate")(evaluate.evaluate)
app.command("export")(export.export)
app.add_typer(slurm.app, name="slurm")
app.add_typer(remote.app, name="remote")
app.add_typer(recipes.app, name="recipes")
app.command("import", context_settings=import_.SETTINGS)(import_.import_)
app.command("explain")(explain.explain)


@app.callback()
def language_of(
    lang: Annotated[
        str | None,
        typer.Option(
            "--lang",
            metavar="en|zh",
            help="Language of what is printed, also after the verb; default: PHALANX_LANG, else "
            "the locale's. JSON, events and files are English.",
        ),
    ] = None,
) -> None:
    """Train any PyTorch model on every GPU you have: planned, fast, hard to kill, the same run on
    one GPU or many."""
    if lang is not None:
        language.use(lang)


def program(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors pass through as exceptions."""
    result = app(args=tidy_words(argv), prog_name="phalanx", standalone_mode=False)
    return int(result or 0)


def _is_verb(word: str) -> bool:
    commands = {command.name for command in app.registered_commands}
    return word in commands | {group.name for group in app.registered_groups}


def tidy_words(argv: Sequence[str]) -> list[str]:
    """What typer cannot say: `--resume` alone means the newest run, `--cache` alone the RAM, and an
    interval may be written as one word (`--save-every "5 minutes"`) or as two."""
    argv = _language_first(argv)
    if argv[:1] == ["--lang"]:
        return [*argv[:2], *tidy_words(argv[2:])]
    # What comes after a script is the script's.
    if _runs_a_script(argv):
        return list(argv)
    words = [
        part
        for before, word in zip(["", *argv], argv, strict=False)
        for part in (word.split() if before in ("--save-every", "--stop-after") else [word])
    ]
    if "--resume" in words:
        after = words.index("--resume") + 1
        if after == len(words) or words[after].startswith("-") or "=" in words[after]:
            words.insert(after, "latest")
    if "--cache" in words:
        after = words.index("--cache") + 1
        if words[after : after + 1] not in (["ram"], ["disk"], ["off"]):
            words.insert(after, "ram")
    return words


def _runs_a_script(argv: Sequence[str]) -> bool:
    return list(argv[:1]) in (["launch"], ["import"]) or list(argv[:2]) == ["slurm", "launch"]


def _language_first(argv: Sequence[str]) -> list[str]:
    """`plan digits --lang zh` is `--lang zh plan digits`; a script's words are its own."""
    argv = [
        part
        for word in argv
        for part in (word.split("=", 1) if word.startswith("--lang=") else [word])
    ]
    if _runs_a_script(argv) or argv[:1] == ["--lang"] or "--lang" not in argv:
        return argv
    at = argv.index("--lang")
    return [*argv[at : at + 2], *argv[:at], *argv[at + 2 :]]


def run(argv: Sequence[str]) -> int:
    """Run one command line; every error becomes Findings and an exit code."""
    try:
        return program(argv)
    except UserError as error:
        console.show_findings(error.findings)
        return int(error.exit_code)
    except typer.Exit as exit_request:
        return int(exit_request.exit_code)
    except typer.TyperException as error:
        console.show_findings(
            [
                Finding(
                    slug="usage",
                    what=error.format_message(),
                    why=f"read from the command line: phalanx {' '.join(argv)}",
                    fix=f"phalanx {argv[0]} --help"
                    if argv and _is_verb(argv[0])
                    else "phalanx --help",
                )
            ]
        )
        return int(ExitCode.USAGE)
    except (KeyboardInterrupt, typer.Abort):
        return int(ExitCode.INTERRUPTED)


def main() -> None:
    """Entry point of the `phalanx` script and of `python -m phalanx`."""
    sys.exit(run(sys.argv[1:]))
