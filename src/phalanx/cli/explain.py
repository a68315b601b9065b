"""`phalanx explain`: what a job key means, from the schema itself."""

from __future__ import annotations

from typing import Annotated

import typer


def explain(
    key: Annotated[
        str | None, typer.Argument(help="A job key such as `optimizer.lr`; default: all of them.")
    ] = None,
) -> int:
    """Explain the keys of a job file.

    Examples: phalanx explain | phalanx explain optimizer.lr | phalanx explain schedule
    """
    from phalanx.cli import console
    from phalanx.errors import Finding, UserError, did_you_mean
    from phalanx.job.schema import job_keys

    keys = job_keys()
    chosen = {
        name: text
        for name, text in keys.items()
        if key is None or name == key or name.startswith(f"{key}.")
    }
    if not chosen:
        raise UserError(
            Finding(
                slug="unknown-key",
                what=f"a job has no key `{key}`{did_you_mean(key or '', keys)}",
                why=f"read from the command line: phalanx explain {key}",
                fix="phalanx explain",
            )
        )
    console.table(list(chosen.items()), header=("key", "meaning"))
    return 0
