"""The documentation does what it says: every command has a home where it runs (documented.py), what
is only asked and planned runs here; the site builds, with every link and anchor. CONTRIBUTING.md
says how pages are written for that."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from phalanx.cli.main import app, tidy_words
from tests.cli.command import run_cli
from tests.cli.documented import (
    ALL,
    HOMES,
    PAGES,
    ROOT,
    as_run,
    asked,
    assert_as_shown,
    home_of,
    mentions,
)
from tests.cli.kept_launcher import kept_launcher
from tests.cli.reader import write_boxes, write_jobs

pytestmark = pytest.mark.xdist_group("docs")  # one folder, one cache


def test_every_command_has_a_home():
    assert len(ALL) > 200, "the search is wrong"
    homeless = [str(command) for command in ALL if home_of(command.words) is None]
    assert not homeless, "tests/cli/documented.py says where: " + "\n".join(homeless)


@pytest.mark.parametrize("name", HOMES)
def test_a_home_is_one_test_that_runs_what_it_is_asked(name):
    written = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("tests/**/test_*.py")
        if re.search(rf"""asked\(["']{name}["']\)""", path.read_text(encoding="utf-8"))
    }
    assert written == {HOMES[name].where}
    assert asked(name), "it has no commands: remove it"


def test_what_is_run_instead_is_still_written_somewhere():
    for name, home in HOMES.items():
        said = [shlex.join(c.words) for c in ALL if home_of(c.words) == name]
        for pattern in home.instead:
            found = [s for s in said if s != _without(name, pattern, s)]
            assert found, f"{name}: no command has `{pattern}`"


def _without(name, pattern, said):
    """As it would be run if the pattern were not there; `said` where that changes nothing."""
    words = shlex.split(said)
    whole = as_run(words, name)
    rest = {key: value for key, value in HOMES[name].instead.items() if key != pattern}
    return said if as_run(words, name, rest) == whole else ""


APP = get_command(app)


def parse(words):
    """Judge a command line as the command would, without doing it."""
    command, words = APP, tidy_words(list(words))
    context = command.make_context("phalanx", list(words))
    while hasattr(command, "commands"):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        assert rest[0] in command.commands, f"there is no command {rest[0]}"
        command = command.commands[rest[0]]
        context = command.make_context(rest[0], rest[1:], parent=context)


@pytest.mark.parametrize("page", sorted({command.page for command in ALL}))
def test_every_command_of_a_page_parses_as_it_is_written(page):
    for command in ALL:
        if command.page == page and not any("-completion" in word for word in command.words):
            words = command.words[1:]
            words = words[: words.index(">")] if ">" in words else words
            try:
                parse(words)
            except Exception as error:  # whatever typer raises
                raise AssertionError(f"{command}: {error}") from error


def test_what_a_text_speaks_of_is_there():
    """Commands and options that are named, with or without what they need besides."""
    spoken = [command for page in PAGES for command in mentions(page)]
    assert len(spoken) > 200, "the search is wrong"
    for command in spoken:
        words = ["2" if word == "N" else word for word in command.words[1:]]
        if words == ["--install-completion"]:
            continue  # tests/cli/test_completion.py
        try:
            parse(words)
        except Exception as error:  # whatever typer raises, of a click of its own
            is_left_out = type(error).__name__ in ("MissingParameter", "NoArgsIsHelpError")
            assert is_left_out, f"{command}: {error}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, asked_before):
    """A reader's folder, a cache for all that is asked there, and one launcher."""
    path = tmp_path_factory.mktemp("docs")
    write_jobs(path)
    write_boxes(path)
    if asked_before is not None:
        for kind in ("torch", "traces"):
            shutil.copytree(asked_before / kind, path / "cache" / "phalanx" / kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("XDG_CACHE_HOME", str(path / "cache"))
        patch.setenv("PHALANX_LANG", "en")
        with kept_launcher(patch):
            yield path


@pytest.mark.parametrize("question", asked("questions"), ids=str)
def test_what_is_asked_and_planned(question, folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    command, words = question
    words, file = (words[:-2], words[-1]) if ">" in words else (words, None)
    if "--out" in words:  # nothing is overwritten
        shutil.rmtree("data", ignore_errors=True)
        Path(words[words.index("--out") + 1]).unlink(missing_ok=True)
    code, out, err = run_cli(*words)
    assert code in (0, 3), f"{command}\n{out}{err}"  # 3: not on this machine, which is a Finding
    assert_as_shown(command, out + err)
    if file is not None:
        Path(file).write_text(out)


@pytest.mark.parametrize("question", asked("shell"), ids=str)
def test_what_changes_a_shell(question, tmp_path):
    env = {**os.environ, "HOME": str(tmp_path), "SHELL": "/bin/bash"}
    env["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
    argv = [sys.executable, "-m", "phalanx", *question.words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    written = "".join(path.read_text() for path in tmp_path.rglob("*.sh"))
    assert "_PHALANX_COMPLETE=complete_bash" in done.stdout + written


def test_the_site_builds_with_every_link_and_anchor(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    outside = re.findall(r"""(?:src|href)=["']?(https?://[^"'> ]+\.(?:js|css|woff2?))""", page)
    assert not outside, f"the site asks the network for {outside}"
    assert (tmp_path / "zh" / "index.html").is_file()
