"""The README does what it says: its commands run, its recipe trains, its Python works."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.cli.command import run_cli
from tests.cli.documented import README as PAGE
from tests.cli.documented import ROOT, assert_as_shown, commands, home_of
from tests.cli.kept_launcher import kept_launcher
from tests.cli.reader import python_of_readme

README = PAGE.read_text(encoding="utf-8")

# Lines of its shell blocks that are no commands of Phalanx, each with what runs them.
OTHERS = {
    "make demo": "its three commands are the console block, which is run",
    "make test": "it is what runs this test",
    "make setup": "`make test` begins with it",
    "make detection": "`make test EXTRAS=detection` begins with it, as .ci/run does",
    "source .venv/bin/activate": "the commands below run from that environment",
}
REACHED = {r"train digits$": 0.97, r"train spirals": 0.9}
COMMANDS = list({c.words: c for c in commands(PAGE) if home_of(c.words) == "readme"}.values())


def blocks(kind):
    """The fenced blocks of one language, in order."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, asked_before):
    """One folder, cache and launcher for all commands; the recipe is in it."""
    path = tmp_path_factory.mktemp("readme")
    cache = path / "cache" / "phalanx"
    if asked_before is not None:
        for kind in ("torch", "traces"):
            shutil.copytree(asked_before / kind, cache / kind)
        (cache / "models").symlink_to(asked_before / "models")  # made once for all tests
    (path / "spirals.py").write_text(python_of_readme("(Recipe)"), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("XDG_CACHE_HOME", str(path / "cache"))
        with kept_launcher(patch):
            yield path


@pytest.fixture(autouse=True)
def _its_cache(request, monkeypatch):
    if "folder" in request.fixturenames:
        path = request.getfixturevalue("folder")
        monkeypatch.setenv("XDG_CACHE_HOME", str(path / "cache"))


def test_every_line_of_a_shell_is_run_somewhere():
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    said = {shlex.join(shlex.split(line, comments=True)) for line in lines} - {""}
    strange = [text for text in said if text not in OTHERS and not text.startswith("phalanx ")]
    assert not strange, "\n".join(strange)


@pytest.mark.ranks
@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: shlex.join(c.words))
def test_every_command_runs_and_shows_what_is_shown(command, folder):
    code, out, err = run_cli(*command.words[1:])
    assert code == command.exit_code, f"{command} exits {code}\n{out}{err}"
    assert_as_shown(command, out + err)
    for pattern, least in REACHED.items():
        if re.search(pattern, shlex.join(command.words)):
            reached = float(re.findall(r"^test +accuracy ([\d.]+)", out, re.MULTILINE)[0])
            assert reached >= least, out


def test_the_recipe_is_40_lines():
    recipe = python_of_readme("(Recipe)")
    assert len([line for line in recipe.splitlines() if line.strip()]) <= 42


@pytest.mark.ranks
def test_the_python_block_runs(folder):
    argv = [sys.executable, "-c", python_of_readme("import phalanx\n")]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished" in done.stdout


def test_every_link_leads_somewhere():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.md")]
    broken = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken, "\n".join(broken)


def test_the_tree_names_folders_that_are_there():
    tree = next(block for block in blocks("text") if block.startswith("src/phalanx/"))
    base = ROOT
    for line in tree.splitlines():
        name = line.split()[0]
        if name == "src/phalanx/":
            base = ROOT / name
            continue
        place = (base if line.startswith("  ") else ROOT) / name
        assert place.exists(), f"the README's tree names {name}, which is not there"
