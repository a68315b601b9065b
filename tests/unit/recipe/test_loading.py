"""From a name to a recipe, and every mistake on the way as a Finding."""

import json
import subprocess
import sys
import textwrap
from contextlib import suppress

import pytest

from phalanx.errors import UserError
from phalanx.job import load_job
from phalanx.recipe import loading as load
from phalanx.recipe.loading import (
    absolute_spec,
    builtin_recipes,
    copy_recipe,
    describe_recipe,
    load_recipe,
    load_recipe_class,
    recipe_file,
    recipe_fingerprint,
)

OWN = '''
"""Trains nothing.

More about it."""
from phalanx.recipe import Options, Recipe


class MyOptions(Options):
    width: int = 4
    """Channels of the network."""
    depth: int = 2


class MyRecipe(Recipe):
    Options = MyOptions


LIMIT = 3
'''


@pytest.fixture(autouse=True)
def _imports_as_they_were(tmp_path):
    path, modules = list(sys.path), dict(sys.modules)
    yield
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        # Only what lies in the test's folder: a library imported meanwhile must not come twice.
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
    sys.modules.update(modules)


@pytest.fixture
def write(tmp_path):
    """Write a recipe file and return its path."""

    def write(text=OWN, name="own_recipe.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def findings_of(call, *arguments):
    with pytest.raises(UserError) as caught:
        call(*arguments)
    return caught.value.findings


def test_builtin_recipes_load_by_name():
    assert "digits" in builtin_recipes()
    for name, folder in builtin_recipes().items():
        recipe = load_recipe_class(name)
        assert recipe.__module__ == f"phalanx.recipes.{name}.recipe"
        assert recipe_file(name) == folder / "recipe.py"
        assert describe_recipe(name)


def test_a_builtin_recipe_takes_its_options():
    assert load_recipe("digits", {"width": 8}).options.width == 8


def test_a_recipe_of_ones_own_loads_by_file_and_class(write):
    recipe = load_recipe(f"{write()}:MyRecipe", {"width": 9})
    assert type(recipe).__name__ == "MyRecipe"
    assert (recipe.options.width, recipe.options.depth) == (9, 2)


def test_a_relative_path_works(write, tmp_path, monkeypatch):
    write()
    monkeypatch.chdir(tmp_path)
    assert load_recipe_class("own_recipe.py:MyRecipe").__name__ == "MyRecipe"
    assert absolute_spec("own_recipe.py:MyRecipe") == f"{tmp_path}/own_recipe.py:MyRecipe"
    assert absolute_spec("digits") == "digits"


def test_a_recipe_imports_the_files_beside_it(write):
    write("WIDTH = 11", "own_neighbour.py")
    path = write("from own_neighbour import WIDTH\nfrom phalanx.recipe import Recipe\n" + OWN)
    assert load_recipe_class(f"{path}:MyRecipe")


def test_a_missing_class_names_the_nearest(write):
    (finding,) = findings_of(load_recipe_class, f"{write()}:MyRecpie")
    assert finding.slug == "recipe-class"
    assert "MyRecpie" in finding.what
    assert "did you mean `MyRecipe`?" in finding.what
    assert "MyRecipe" in finding.fix


@pytest.mark.parametrize("name", ["MyOptions", "LIMIT"])
def test_something_that_is_no_recipe_is_refused(write, name):
    (finding,) = findings_of(load_recipe_class, f"{write()}:{name}")
    assert finding.slug == "recipe-class"
    assert "not a recipe" in finding.what


@pytest.mark.parametrize("is_relative", [False, True], ids=["absolute", "relative"])
@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("x = 1\ny = 2\ndef f(:\n", 3, "SyntaxError"),
        ("x = 1\nimport no_such_package_at_all\n", 2, "no_such_package_at_all"),
        ("x = 1\n\n\nraise RuntimeError('own words')\n", 4, "own words"),
        ("import json\njson.loads('{')\n", 2, "JSONDecodeError"),
    ],
    ids=["syntax", "import", "raise", "raise-in-library"],
)
def test_a_file_that_does_not_import_names_its_line(
    write, tmp_path, monkeypatch, is_relative, text, line, said
):
    path = write(text, "broken_recipe.py")
    monkeypatch.chdir(tmp_path)
    spec = "broken_recipe.py:R" if is_relative else f"{path}:R"
    (finding,) = findings_of(load_recipe_class, spec)
    assert finding.slug == "recipe-import"
    assert said in finding.what
    assert f"broken_recipe.py:{line}" in finding.why


def test_a_file_that_is_not_there_is_a_finding(tmp_path):
    (finding,) = findings_of(load_recipe_class, f"{tmp_path / 'none.py'}:R")
    assert "none.py" in finding.what


def test_a_file_that_is_no_python_is_a_finding(write):
    (finding,) = findings_of(load_recipe_class, f"{write('x', 'notes.txt')}:R")
    assert finding.slug == "recipe-file"


def test_a_file_that_exits_is_a_finding(write):
    path = write("import sys\nsys.exit(3)\n", "exiting_recipe.py")
    (finding,) = findings_of(load_recipe_class, f"{path}:R")
    assert "exiting_recipe.py:2" in finding.why


def test_a_failed_import_leaves_no_half_module_behind(write):
    path = write("x = 1\nraise RuntimeError('no')\n", "failing_recipe.py")
    findings_of(load_recipe_class, f"{path}:R")
    assert "failing_recipe" not in sys.modules


def test_a_recipe_file_may_be_called_like_a_library(write):
    # Or it is refused; but the rest of the process must still get the library.
    path = write(name="json.py")
    with suppress(UserError):
        load_recipe_class(f"{path}:MyRecipe")
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("option", "nearest"),
    [("widthh", "did you mean `width`?"), ("epoch", "did you mean `epochs`?"), ("zzzz", "")],
)
def test_an_unknown_option_names_the_nearest_option_or_job_key(write, option, nearest):
    (finding,) = findings_of(load_recipe, f"{write()}:MyRecipe", {option: 1})
    assert finding.slug == "unknown-option"
    assert f"`{option}`" in finding.what
    assert nearest in finding.what
    assert ("did you mean" in finding.what) == bool(nearest)
    assert "width, depth" in finding.why


def test_wrong_options_are_told_all_at_once_with_their_help(write):
    options = {"width": "wide", "depth": None, "other": 1}
    findings = findings_of(load_recipe, f"{write()}:MyRecipe", options)
    assert [f.slug for f in findings] == ["wrong-option", "wrong-option", "unknown-option"]
    assert "'wide'" in findings[0].what
    assert findings[0].why == "Channels of the network."
    assert "width=" in findings[0].fix


def test_the_fingerprint_changes_with_the_source(write):
    spec = f"{write()}:MyRecipe"
    before = recipe_fingerprint(spec)
    assert recipe_fingerprint(spec) == before
    write(OWN.replace("width: int = 4", "width: int = 5"))
    assert recipe_fingerprint(spec) != before


def test_the_fingerprint_of_a_builtin_recipe_covers_all_its_files(tmp_path, monkeypatch):
    for name in ("job.yaml", "recipe.py", "model.py"):
        (tmp_path / "mine").mkdir(exist_ok=True)
        (tmp_path / "mine" / name).write_text("# first\n")
    monkeypatch.setattr(load, "_BUILTIN", tmp_path)
    before = recipe_fingerprint("mine")
    (tmp_path / "mine" / "model.py").write_text("# second\n")
    assert recipe_fingerprint("mine") != before


def test_the_fingerprint_of_a_copied_recipe_covers_all_its_files(tmp_path):
    # `recipes copy` makes recipe.py, model.py and data.py: a change of the model is a change.
    target = tmp_path / "copied"
    copy_recipe(builtin_recipes()["digits"], target)
    spec = f"{target / 'recipe.py'}:DigitsRecipe"
    before = recipe_fingerprint(spec)
    model = target / "model.py"
    model.write_text(model.read_text().replace("nn.ReLU()", "nn.GELU()"))
    assert recipe_fingerprint(spec) != before


def test_a_recipe_is_described_without_running_it(write):
    path = write(OWN + "\nraise SystemExit\n")
    assert describe_recipe(f"{path}:MyRecipe") == "Trains nothing."
    assert describe_recipe(f"{write('def (', 'bad.py')}:X") == ""
    assert describe_recipe("nowhere.py:X") == ""


def test_a_copied_recipe_works_on_its_own(tmp_path):
    target = tmp_path / "my digits"
    written = copy_recipe(builtin_recipes()["digits"], target)
    assert {p.name for p in written} == {
        "recipe.py",
        "model.py",
        "data.py",
        "job.yaml",
        "README.md",
    }
    assert "phalanx.recipes" not in (target / "recipe.py").read_text()
    job = load_job(target / "job.yaml").job
    assert job.recipe == f"{target / 'recipe.py'}:DigitsRecipe"
    # In a process of its own: its files are called `data` and `model`.
    code = (
        "import sys, numpy as np\n"
        "from phalanx.recipe.loading import load_recipe\n"
        "recipe = load_recipe(sys.argv[1], {'width': 2})\n"
        "assert type(recipe.model()).__module__ == 'model', type(recipe.model()).__module__\n"
        "data = recipe.data('train')\n"
        "batch = data.__getitems__(np.arange(3), np.arange(3))\n"
        "keys = None\n"
        "print(recipe.loss(recipe.model(), batch, keys)['cross_entropy'].weight)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, job.recipe], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3\n"


def test_presets_and_data_files_are_copied_and_name_the_copy(tmp_path):
    folder = tmp_path / "codes"
    (folder / "presets").mkdir(parents=True)
    (folder / "recipe.py").write_text("class Codes(Recipe): ...\n")
    (folder / "rows.jsonl").write_text('{"prompt": "from phalanx.recipes.codes. on"}\n')
    for name in ("job.yaml", "presets/paper.yaml"):
        (folder / name).write_text("recipe: codes\nepochs: 1\n")
    copy_recipe(folder, target := tmp_path / "mine")
    for name in ("job.yaml", "presets/paper.yaml"):
        assert load_job(target / name).job.recipe == f"{target / 'recipe.py'}:Codes"
    assert (target / "rows.jsonl").read_bytes() == (folder / "rows.jsonl").read_bytes()


def test_copying_onto_something_is_refused(tmp_path):
    (tmp_path / "recipe.py").write_text("mine")
    with pytest.raises(UserError, match="folder-exists"):
        copy_recipe(builtin_recipes()["digits"], tmp_path)
    assert (tmp_path / "recipe.py").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.py"]


def test_a_copy_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fail(text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("phalanx.recipe.loading.with_editor_line", fail)
    with pytest.raises(OSError, match="space"):
        copy_recipe(builtin_recipes()["digits"], tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []
