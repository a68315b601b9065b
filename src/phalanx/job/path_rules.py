"""The rules of a job that look at the disk: its recipe, its output folder, its first weights."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from pathlib import Path

from phalanx.errors import Finding, did_you_mean
from phalanx.job.load import LoadedJob


def check_recipe(loaded: LoadedJob, known: Collection[str]) -> Iterator[Finding]:
    recipe = loaded.job.recipe
    name, colon, attribute = recipe.rpartition(":")
    if not colon:
        name, attribute = recipe, ""
    path = Path(name)
    if not colon and path.suffix != ".py" and path.name == recipe:
        if recipe not in known:
            near = get_close_matches(recipe, sorted(known), n=1, cutoff=0.6)
            yield Finding(
                slug="unknown-recipe",
                what=f"there is no built-in recipe {recipe!r}{did_you_mean(recipe, known)}",
                why=f"{loaded.said('recipe')}; built in: {', '.join(sorted(known)) or 'none'}",
                fix=loaded.line_for(
                    "recipe", (near or sorted(known) or ["my_recipe.py:MyRecipe"])[0]
                ),
            )
        return
    if path.suffix != ".py":
        yield Finding(
            slug="recipe-file",
            what=f"the recipe {recipe!r} names a file that ends in {path.suffix!r}, not in '.py'",
            why=loaded.said("recipe"),
            fix=loaded.line_for("recipe", f"{path.with_suffix('.py')}:{attribute or 'MyRecipe'}")
            if path.name
            else loaded.line_for("recipe", "my_recipe.py:MyRecipe"),
        )
        return
    is_file = _mode(path) is not None and stat.S_ISREG(_mode(path) or 0)
    if not is_file:
        folder = loaded.path.parent if loaded.path else Path()
        near = [str(folder / name)] if (folder / path).is_file() else _near_file(path, ".py")
        yield Finding(
            slug="recipe-missing",
            what=f"the recipe file `{path}` does not exist"
            + (f" (did you mean `{near[0]}`?)" if near else ""),
            why=f"{loaded.said('recipe')}; looked for in {Path.cwd()}",
            fix=loaded.line_for("recipe", f"{(near or [name])[0]}:{attribute or 'MyRecipe'}"),
        )
    if not attribute.isidentifier():
        classes = _classes(path) if is_file else []
        yield Finding(
            slug="recipe-class",
            what=f"the recipe {recipe!r} does not name the class in the file",
            why=f"{loaded.said('recipe')}; `{path}` defines {', '.join(classes) or 'no class'}",
            fix=loaded.line_for("recipe", f"{name}:{(classes or ['MyRecipe'])[-1]}"),
        )


def check_output(loaded: LoadedJob) -> Iterator[Finding]:
    output = loaded.job.output
    path = Path(output)
    problem, fix = "", "runs"
    if output.startswith("~"):
        problem, fix = "begins with `~`, which only a shell unfolds", str(_home(path))
    else:
        place = next((p for p in (path, *path.absolute().parents) if _mode(p) is not None), None)
        if "\0" in output or place is None:
            problem = "is not a possible path"
        elif not stat.S_ISDIR(_mode(place) or 0):
            problem = f"cannot be made: `{place}` is a file" if place != path else "is a file"
        elif not os.access(place, os.W_OK | os.X_OK):
            problem = f"cannot be written: no permission in `{place}`"
    if problem:
        yield Finding(
            slug="output-path",
            what=f"the output folder {output!r} {problem}",
            why=loaded.said("output"),
            fix=loaded.line_for("output", fix),
        )


def check_init_from(loaded: LoadedJob) -> Iterator[Finding]:
    given = loaded.job.init_from
    if given is None or any(_mode(p) for p in (Path(given), Path(loaded.job.output) / given)):
        return
    near = [str(_home(Path(given)))] if given.startswith("~") else _near_file(Path(given), "")
    yield Finding(
        slug="init-from",
        what=f"there are no weights at {given!r}"
        + (f" (did you mean `{near[0]}`?)" if near else ""),
        why=f"{loaded.said('init_from')}; looked for in {Path.cwd()}",
        fix=loaded.line_for("init_from", near[0] if near else None),
    )


def _mode(path: Path) -> int | None:
    """The file's mode, or None when it is not there; a path the system refuses is not there."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return None


def _home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # nobody of that name
        return Path("runs")


def _near_file(path: Path, ending: str) -> list[str]:
    try:
        names = [p.name for p in path.parent.iterdir() if p.name.endswith(ending)]
    except (OSError, ValueError):
        return []
    return [str(path.with_name(n)) for n in get_close_matches(path.name, names, n=1, cutoff=0.6)]


def _classes(path: Path) -> list[str]:
    """Class names of a Python file, by its text: importing it would import torch."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return re.findall(r"^class (\w+)", file.read(1 << 20), re.MULTILINE)
    except OSError:
        return []
