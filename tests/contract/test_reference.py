"""The reference says what the code does: made from it, complete, and up to date."""

import keyword
import re
import subprocess
import sys

import pytest
import yaml
from typer.main import get_command

from phalanx.cli.main import app
from phalanx.job import check_job, load_job
from phalanx.job.keys import job_keys
from phalanx.recipe.loading import builtin_recipes, describe_recipe
from tests.contract.source import PACKAGE, ROOT

REFERENCE = ROOT / "docs" / "reference"
KEBAB = re.compile(r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$")


def commands(command=None, name="phalanx"):
    """(name, command) of every command and subcommand."""
    command = command or get_command(app)
    yield name, command
    for sub, child in getattr(command, "commands", {}).items():
        yield from commands(child, f"{name} {sub}")


def test_the_pages_are_what_the_code_makes():
    done = subprocess.run(
        [sys.executable, "scripts/make_reference.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_every_option_has_help_and_is_documented(name):
    command = dict(commands())[name]
    assert command.help, f"{name} has no help"
    page = (REFERENCE / "commands.md").read_text(encoding="utf-8")
    section = page.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
    for parameter in command.params:
        assert parameter.help, f"{name}: {parameter.name} has no help"
        if parameter.param_type_name == "option":
            for option in parameter.opts:
                assert f"`{option}`" in section, f"{name} {option} is not in commands.md"


def test_every_verb_is_one_file_of_the_command_line():
    for verb in get_command(app).commands:
        name = f"{verb}_" if keyword.iskeyword(verb) else verb  # `import`
        assert (PACKAGE / "cli" / f"{name}.py").is_file(), f"no cli/{name}.py"


def test_every_finding_has_a_plain_name_and_is_documented():
    page = (REFERENCE / "findings.md").read_text(encoding="utf-8")
    slugs = set()
    for path in PACKAGE.rglob("*.py"):
        slugs |= set(re.findall(r'slug=f?"([^"]*)"', path.read_text(encoding="utf-8")))
    assert slugs, "no Finding was found: the search is wrong"
    for slug in sorted(slugs):
        assert KEBAB.match(slug), f"`{slug}` is not kebab-case"
        assert f"`{slug}`" in page, f"`{slug}` is not in findings.md"


@pytest.mark.parametrize("key", job_keys())
def test_every_job_key_has_help(key):
    assert job_keys()[key], f"{key} has no docstring under it in job/schema.py"


@pytest.mark.parametrize("name", builtin_recipes())
def test_every_recipe_is_complete(name):
    folder = builtin_recipes()[name]
    for file in ("job.yaml", "README.md", "recipe.py"):
        assert (folder / file).is_file(), f"recipes/{name} has no {file}"
    assert describe_recipe(name), f"recipes/{name}/recipe.py says nothing about itself"
    assert yaml.safe_load((folder / "job.yaml").read_text(encoding="utf-8"))["recipe"] == name
    loaded = load_job(folder / "job.yaml")
    assert not check_job(loaded, known_recipes=builtin_recipes())


def test_every_recipe_folder_is_known():
    folders = {p.parent.name for p in (PACKAGE / "recipes").glob("*/recipe.py")}
    assert folders == set(builtin_recipes())
