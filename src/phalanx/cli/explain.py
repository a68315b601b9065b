"""`phalanx explain`: what a job key means, from the schema itself, or a word of the trade."""

from __future__ import annotations

from typing import Annotated

import typer

from phalanx.errors import Finding, UserError, did_you_mean
from phalanx.output import console


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY|TERM",
            help="A job key such as `optimizer.lr`, or a word such as `ddp`; default: all keys.",
        ),
    ] = None,
    terms: Annotated[bool, typer.Option("--terms", help="List the words that are known.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of a job file, for editors.")
    ] = False,
) -> int:
    """Explain the keys of a job file, and the words of the trade in three sentences.

    Examples: phalanx explain | phalanx explain optimizer.lr | phalanx explain linear scaling
    """
    from phalanx.job.keys import job_keys
    from phalanx.verbs.terms import TERMS, find_term

    if schema:
        from phalanx.job.editor import schema_text

        console.say_text(schema_text())
        return 0
    if terms:
        console.table([(name, text.partition(". ")[0]) for name, text in TERMS.items()])
        return 0
    asked = " ".join(words or ())
    keys = job_keys()
    chosen = {
        name: text
        for name, text in keys.items()
        if not asked or name == asked or name.startswith(f"{asked}.")
    }
    term = find_term(asked) if asked else None
    if term is not None:
        console.say(f"{term[0]}: {term[1]}")
    if not chosen and term is None:
        raise UserError(
            Finding(
                slug="unknown-key",
                what=f"neither a key of a job nor a word that is known: `{asked}`"
                f"{did_you_mean(asked, [*keys, *TERMS])}",
                why=f"read from the command line: phalanx explain {asked}",
                fix="phalanx explain, or phalanx explain --terms",
            )
        )
    if chosen:
        console.table(list(chosen.items()), header=("key", "meaning"))
    return 0
