"""Editors know job files: the schema in the package is the model's, generated files name it."""

import json

import jsonschema
import pytest
import yaml

from phalanx.job import load_job
from phalanx.job.editor import SCHEMA_FILE, editor_line, schema_text, with_editor_line
from phalanx.job.keys import job_keys
from phalanx.recipe.loading import builtin_recipes, copy_recipe


def schema():
    return json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


def test_the_schema_in_the_package_is_the_model_s():
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text()


@pytest.mark.parametrize("name", builtin_recipes())
def test_a_built_in_job_file_names_the_schema_and_fits_it(name):
    path = builtin_recipes()[name] / "job.yaml"
    text = path.read_text(encoding="utf-8")
    named = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / named).resolve() == SCHEMA_FILE.resolve()
    jsonschema.validate(yaml.safe_load(text), schema())


def test_a_wrong_key_and_a_wrong_value_are_seen():
    for wrong in ({"recipe": "digits", "epoch": 3}, {"recipe": "digits", "epochs": -1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema())


def test_every_key_has_its_help_in_the_schema():
    text = " ".join(json.dumps(schema()).split())
    for key, meaning in job_keys().items():
        assert json.dumps(meaning.split()[0])[1:-1] in text, key


def test_a_copied_recipe_names_the_schema_of_this_package(tmp_path):
    copy_recipe(builtin_recipes()["digits"], tmp_path / "mine")
    text = (tmp_path / "mine" / "job.yaml").read_text(encoding="utf-8")
    assert text.startswith(editor_line())
    assert text.count("$schema=") == 1
    assert load_job(tmp_path / "mine" / "job.yaml").job.epochs == 25


def test_the_line_is_there_once():
    once = with_editor_line("recipe: digits\n")
    assert with_editor_line(once) == once
