"""The README does what it says: its commands run, its recipe trains, its Python works."""

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sysconfig.get_path("scripts"))

# Not run here, each with the reason.
LEFT_OUT = {
    "make demo": "its three commands are the console block, which is run",
    "make test": "it is what runs this test",
    "make setup": "`make test` begins with it",
    "make detection": "`make test EXTRAS=detection` begins with it, as .ci/run does",
    "phalanx train lora": "tests/recipes/lora/test_default.py runs a shorter one",
    "phalanx train policy": "tests/recipes/policy/test_in_the_loop.py runs a shorter one",
    "phalanx evaluate --benchmark metaworld --video films": "the same test drives and films it",
    "phalanx train bev": "tests/recipes/bev/test_learned.py runs a shorter one",
    "phalanx evaluate --benchmark highway --video drives": "the same test drives and films it",
    "phalanx launch --cpu 2 train.py": "the script is the reader's; tests/ranks/test_launch.py",
    "phalanx remote train lab job.yaml": "the machine is the reader's; tests/remote has an sshd",
    "source .venv/bin/activate": "the commands below run from that environment",
}


class Command(NamedTuple):
    """A command of the README, the exit code it says, the output it shows."""

    text: str
    exit_code: int
    shown: tuple[str, ...]


def blocks(kind):
    """The fenced blocks of one language, in order."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def console_commands():
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            yield Command(command, 0, tuple(line for line in shown if line != "..."))


def all_bash_commands():
    """Commands of the bash blocks, without those that the console block has already run."""
    done = {command.text for command in console_commands()}
    return [command for command in bash_commands() if command.text not in done]


def bash_commands():
    for block in blocks("bash"):
        for line in filter(None, block.splitlines()):
            words = shlex.split(line, comments=True)
            stated = re.search(r"# .*\bexits (\d+)", line)
            yield Command(shlex.join(words), int(stated[1]) if stated else 0, ())


@pytest.fixture(scope="module")
def folder(tmp_path_factory, asked_before):
    """One folder and one cache for all commands, as a reader would have; the recipe is in it."""
    path = tmp_path_factory.mktemp("readme")
    if asked_before is not None:  # a language model is made once for all tests
        (path / ".cache" / "phalanx").mkdir(parents=True)
        (path / ".cache" / "phalanx" / "models").symlink_to(asked_before / "models")
    recipe = next(block for block in blocks("python") if "(Recipe)" in block)
    (path / "spirals.py").write_text(recipe, encoding="utf-8")
    return path


def run(argv, folder):
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    env["XDG_CACHE_HOME"] = str(folder / ".cache")
    done = subprocess.run(
        argv,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    return done.returncode, done.stdout


def run_command(command, folder):
    if command.text in LEFT_OUT:
        print(f"not run: `{command.text}`: {LEFT_OUT[command.text]}")
        return ""
    code, output = run(shlex.split(command.text), folder)
    assert code == command.exit_code, f"{command.text} exits {code}\n{output}"
    return output


def label(line):
    """What a line begins with, up to its first number: the part that is no measurement."""
    return re.split(r"\s{2,}|\d", line.strip())[0].strip()


@pytest.mark.ranks
@pytest.mark.parametrize("command", list(console_commands()), ids=lambda c: c.text)
def test_the_terminal_block_is_true(command, folder):
    output = run_command(command, folder)
    for line in command.shown:
        assert label(line) in output, f"`{line}` is no longer in the output of {command.text}"
    if command.text == "phalanx train digits":
        reached = float(re.findall(r"^test +accuracy ([\d.]+)", output, re.MULTILINE)[0])
        assert reached >= 0.97


@pytest.mark.ranks
@pytest.mark.parametrize("command", all_bash_commands(), ids=lambda c: c.text)
def test_every_command_runs(command, folder):
    output = run_command(command, folder)
    if "spirals.py" in command.text:
        reached = float(re.findall(r"^test +accuracy ([\d.]+)", output, re.MULTILINE)[0])
        assert reached >= 0.9, output


def test_the_recipe_is_40_lines():
    recipe = next(block for block in blocks("python") if "(Recipe)" in block)
    assert len([line for line in recipe.splitlines() if line.strip()]) <= 42


@pytest.mark.ranks
def test_the_python_block_runs(folder):
    script = next(block for block in blocks("python") if "import phalanx\n" in block)
    code, output = run([sys.executable, "-c", script], folder)
    assert code == 0, output
    assert "finished" in output


def test_every_link_leads_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
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
