"""From a name to a Recipe: built-in recipes by name, a user's own by `file.py:Class`.

Loading runs the recipe's code, so only the engine's processes call `load_recipe`; the command line
uses the functions that read files.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from phalanx.errors import Finding, UserError, did_you_mean
from phalanx.job.editor import with_editor_line
from phalanx.job.presets import list_presets
from phalanx.recipe.interface import Recipe
from phalanx.run.directory import new_folder

_COPIED = (".py", ".yaml", ".md", ".jsonl")
_BUILTIN = Path(__file__).parent.parent / "recipes"


def builtin_recipes() -> dict[str, Path]:
    """Names of the recipes that ship with Phalanx, each with its folder."""
    return {path.parent.name: path.parent for path in sorted(_BUILTIN.glob("*/job.yaml"))}


def recipe_file(spec: str) -> Path:
    """The file that defines a recipe; it may not exist."""
    if spec in (builtin := builtin_recipes()):
        return builtin[spec] / "recipe.py"
    return Path(spec.rpartition(":")[0] or spec)


def absolute_spec(spec: str) -> str:
    """A user's `file.py:Class` with its path made absolute; ranks may run elsewhere."""
    if spec in builtin_recipes() or ":" not in spec:
        return spec
    path, _, name = spec.rpartition(":")
    return f"{Path(path).resolve()}:{name}"


def recipe_fingerprint(spec: str) -> str:
    """Hash of the recipe's own source files: what must not change between stop and resume."""
    path = recipe_file(spec)
    files = set(path.parent.glob("*.py")) if spec in builtin_recipes() else _own_files(path)
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _own_files(path: Path, known: frozenset[Path] = frozenset()) -> set[Path]:
    """A user's recipe and the modules beside it that it imports, found without running it."""
    files = {path} | known
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return files
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            beside = path.parent.joinpath(*name.split(".")).with_suffix(".py") if name else path
            if beside.is_file() and beside not in files:
                files |= _own_files(beside, frozenset(files))
    return files


def describe_recipe(spec: str) -> str:
    """First paragraph of the recipe's module docstring, read without running it."""
    try:
        text = ast.get_docstring(ast.parse(recipe_file(spec).read_text(encoding="utf-8"))) or ""
    except (OSError, SyntaxError, ValueError):
        return ""
    return " ".join(text.split("\n\n")[0].split())


def load_recipe_class(spec: str) -> type[Recipe]:
    """Import the recipe's class; a mistake in it is a Finding, not a bare traceback."""
    if spec in builtin_recipes():
        module = importlib.import_module(f"phalanx.recipes.{spec}.recipe")
        builtin: type[Recipe] = getattr(module, _class_name(recipe_file(spec)))
        return builtin
    path_text, _, name = spec.rpartition(":")
    path = Path(path_text)
    module = _import_file(path)
    recipe = getattr(module, name, None)
    if recipe is None:
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise UserError(
            Finding(
                slug="recipe-class",
                what=f"`{path.name}` defines no `{name}`{did_you_mean(name, classes)}",
                why=f"recipe = {spec}; classes there: {', '.join(classes) or 'none'}",
                fix=f"recipe: {path}:{classes[-1] if classes else 'MyRecipe'}",
            )
        )
    if not (isinstance(recipe, type) and issubclass(recipe, Recipe)):
        raise UserError(
            Finding(
                slug="recipe-class",
                what=f"`{name}` in `{path.name}` is not a recipe",
                why="a recipe is a class that derives from phalanx.recipe.Recipe",
                fix=f"class {name}(phalanx.recipe.Recipe): ...",
            )
        )
    return recipe


def load_recipe(spec: str, options: dict[str, Any]) -> Recipe:
    """Import the recipe, judge its options, and make it."""
    recipe = load_recipe_class(spec)
    made = recipe(judge_options(recipe.Options, options))
    made.spec = spec
    return made


def judge_options(kind: type[BaseModel], options: dict[str, Any]) -> Any:
    """Options as a recipe takes them; raises UserError with all that is wrong with them."""
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        raise UserError(_option_findings(error, kind)) from None


def _import_file(path: Path) -> Any:
    # The folder goes on sys.path so that a recipe of several files imports its neighbours.
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise UserError(
            Finding(
                slug="recipe-file",
                what=f"`{path}` is not a Python file",
                why="a recipe of your own is given as `file.py:Class`",
                fix=f"recipe: {path.stem}.py:MyRecipe",
            )
        )
    taken = sys.modules.get(path.stem)
    if taken is not None and getattr(taken, "__file__", None) != spec.origin:
        raise UserError(
            Finding(
                slug="recipe-name",
                what=f"a recipe file cannot be called `{path.name}`",
                why=f"`{path.stem}` is a module already: {getattr(taken, '__file__', 'built in')}",
                fix=f"mv {path} my_{path.name}",
            )
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # loader workers that unpickle the data set look here
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(path.stem, None)
        raise UserError(
            Finding(
                slug="recipe-import",
                what=f"importing `{path}` fails: {type(error).__name__}: {error}",
                why=_place(error, path.resolve()),
                fix=f"python {path}",
            )
        ) from error
    return module


def _place(error: BaseException, path: Path) -> str:
    """The line of the recipe an error came from, or the last line there is."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {(error.text or '').strip()}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).resolve() == path]
    where = own[-1] if own else frames[-1]
    return f"{where.filename}:{where.lineno}: {where.line}"


def _option_findings(error: ValidationError, options: type[BaseModel]) -> list[Finding]:
    return [_option_finding(item, options) for item in error.errors(include_url=False)]


def _option_finding(item: ErrorDetails, options: type[BaseModel]) -> Finding:
    key = ".".join(str(part) for part in item["loc"])
    names = list(options.model_fields)
    top = str(item["loc"][0]) if item["loc"] else ""
    if item["type"] == "extra_forbidden":
        from phalanx.job.keys import job_keys

        return Finding(
            slug="unknown-option",
            what=f"unknown option `{key}`{did_you_mean(key, [*names, *job_keys()])}",
            why=f"the recipe's options are: {', '.join(names) or 'none'}; and it is no job key",
            fix=f"remove `{key}`, or see `phalanx recipes show` and `phalanx explain`",
        )
    field = options.model_fields.get(top)
    help_text = " ".join((field.description or "").split()) if field else ""
    return Finding(
        slug="wrong-option",
        what=f"option `{key}`: {item['msg']}; {item.get('input')!r} was given",
        why=help_text or f"options.{key} of the job",
        fix=f"options: {{{top}: ...}} or `{top}=...` on the command line",
    )


def copy_recipe(folder: Path, target: Path) -> list[Path]:
    """Copy a built-in recipe so that it works on its own: its files import each other by name and
    its job file and presets name the copy."""
    package = f"phalanx.recipes.{folder.name}."
    own = f"recipe: {target / 'recipe.py'}:{_class_name(folder / 'recipe.py')}"
    written = []
    with new_folder(target, is_new=True) as making:
        for source in sorted([*folder.iterdir(), *list_presets(folder).values()]):
            if source.suffix not in _COPIED or source.name == "__init__.py":
                continue
            text = source.read_text(encoding="utf-8")
            if source.suffix == ".py":
                text = text.replace(f"from {package}", "from ")
            elif source.suffix == ".yaml":
                text = text.replace(f"recipe: {folder.name}\n", f"{own}\n")
                text = with_editor_line(text) if source.name == "job.yaml" else text
            path = making / source.relative_to(folder)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            written.append(target / source.relative_to(folder))
    return written


def _class_name(path: Path) -> str:
    """The class in a recipe file that derives from Recipe, read without running it."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        bases = [b.id for b in getattr(node, "bases", []) if isinstance(b, ast.Name)]
        if isinstance(node, ast.ClassDef) and "Recipe" in bases:
            return node.name
    raise AssertionError(f"{path} defines no recipe")
