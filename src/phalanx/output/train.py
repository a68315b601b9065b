"""The end of a training run in words: figures, and what to type next."""

from __future__ import annotations

from pathlib import Path

from phalanx.errors import format_seconds
from phalanx.output import console
from phalanx.prepare.plan import Prepared
from phalanx.recipe.loading import builtin_recipes
from phalanx.verbs.train import Result


def show_end(result: Result, prepared: Prepared) -> None:
    """How a run ended, and what to type next."""
    console.show_findings(result.findings)
    run = result.run
    if result.status == "failed":
        console.say(f"failed: {run}")
        console.say(f"  continue it: phalanx train --resume {run}")
        return
    figures = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    reason = "" if result.reason == result.status else f": {result.reason}"
    rows = [
        ("status", f"{result.status}{reason}"),
        ("test", figures or "not evaluated this time"),
        ("trained", f"{result.step or 0} steps in all, {format_seconds(result.seconds)} this time"),
        ("run", str(run)),
    ]
    if (run / "final_model").is_dir():
        rows.append(("model", str(run / "final_model")))
    if result.best is not None:
        rows.insert(2, ("best", result.best))
    console.table(rows)
    if result.status == "stopped":
        console.say(f"continue:  phalanx train --resume {run}")
        return
    console.say_next(*_next_commands(run, prepared))


def _next_commands(run: Path, prepared: Prepared) -> list[tuple[str, str]]:
    """What to type after a finished run."""
    job = prepared.job
    length = f"--epochs {2 * job.epochs}" if job.epochs else f"--steps {2 * (job.steps or 1)}"
    commands = [
        (f"phalanx watch {run}", "look at its curves and ranks; --web in a browser"),
        (f"phalanx train --resume {run} {length}", "train on, to twice the length"),
        (f"phalanx export {run}", "its best weights in one file for other tools"),
    ]
    if job.recipe in builtin_recipes():
        commands.append(
            (f"phalanx recipes copy {job.recipe} my_{job.recipe}", "a recipe of your own to edit")
        )
    return commands
