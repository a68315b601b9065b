"""The documentation does what it says: its commands parse, run or are planned; its site builds,
with every link and anchor. CONTRIBUTING.md says how pages are written for that."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.main import get_command

from phalanx.cli.main import app, tidy_words
from tests.cli.command import run_cli

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.zh-CN.md"]

# Shown in a block that runs, and not run here: what they begin with, and the reason.
NOT_RUN = {
    "phalanx plan detection": "the extra is in an environment of its own: tests/recipes/detection",
    "phalanx estimate detection": "the extra is in an environment of its own",
    "phalanx plan lora": "asks for a trace of minutes; tests/recipes/lora plans and trains",
    "phalanx train lora": "tests/recipes/lora/test_default.py runs a shorter one",
    "phalanx train policy": "experts drive for minutes first; tests/recipes/policy",
    "phalanx plan policy": "experts drive for minutes first; tests/recipes/policy",
    "phalanx train bev": "experts drive for minutes first; tests/recipes/bev",
    "phalanx plan bev": "experts drive for minutes first; tests/recipes/bev",
    "phalanx recipes collect": "experts drive for minutes; tests/cli/test_collect.py",
    "phalanx recipes convert": "the files are the reader's; tests/recipes/detection",
    "phalanx remote": "the machine is the reader's; tests/remote has an sshd",
    "phalanx slurm status": "the cluster is the reader's; tests/cluster has one",
    "phalanx slurm logs": "the cluster is the reader's; tests/cluster has one",
    "phalanx slurm cancel": "the cluster is the reader's; tests/cluster has one",
    "phalanx slurm requeue": "the cluster is the reader's; tests/cluster has one",
    "phalanx slurm launch": "the script is the reader's; tests/cluster",
    "phalanx launch": "the script is the reader's; tests/ranks/test_launch.py",
    "phalanx verify": "in make test-full; tests/ranks/test_verify.py, in more ways",
    "phalanx watch": "in make test-full; tests/cli/test_watch.py",
    "phalanx doctor": "in make test-full; tests/cli/test_doctor.py",
    "phalanx stop": "in make test-full; tests/ranks/test_detach.py",
    "phalanx evaluate": "in make test-full; tests/cli/test_evaluate.py",
    "phalanx export": "in make test-full; tests/cli/test_export.py",
    "phalanx bench": "in make test-full; tests/cli/test_bench.py",
    "phalanx --show-completion": "tests/cli/test_completion.py",
    "phalanx --install-completion": "it would change the shell's files",
}
NOT_PLANNED = ("--ladder", "--resume")  # of runs alone: tests/ranks, tests/faults
READERS = re.compile(r"\b(FOLDER|NAME|FILE|RUN|JOB|HOST|my_\w+|DIR|ORG|lab|rows\.jsonl)\b|\.\.\.|<")
# What a reader has: a job file, and DeepSpeed's settings of before.
READERS_FILES = {
    "job.yaml": (ROOT / "src/phalanx/recipes/digits/job.yaml").read_text(encoding="utf-8"),
    "ds_config.json": '{"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}',
}


class Command(NamedTuple):
    page: str
    words: tuple[str, ...]
    is_run: bool
    shown: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def commands(page):
    """Every `phalanx` line of a page, whether it stands in a block that runs, what it shows."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    name = page.relative_to(ROOT).as_posix()
    for kind, block in re.findall(r"^```(bash|console)\n(.*?)^```$", text, re.M | re.S):
        lines = block.splitlines()
        for number, line in enumerate(lines):
            said = line.removeprefix("$ ") if kind == "console" else line
            if kind == "console" and not line.startswith("$ "):
                continue
            shown = []
            for after in lines[number + 1 :] if kind == "console" else []:
                if after.startswith("$ "):
                    break
                shown.append(after)
            yield from _command(name, said, True, shown)
    without = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for line in re.findall(r"^    (phalanx .*)$", without, re.M):
        yield from _command(name, line, False, [])


def _command(page, line, is_run, shown):
    if "phalanx " not in line:
        return
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if words[:1] == ["phalanx"]:
        yield Command(
            page, tuple(words), is_run, tuple(s for s in shown if s.strip() not in ("", "..."))
        )


ALL = [command for page in PAGES for command in commands(page)]


def parse(words):
    """Judge a command line as the command would, without doing it."""
    command, words = (
        get_command(app),
        tidy_words([w for w in words if w not in ("[--fsdp]", "...")]),
    )
    context = command.make_context("phalanx", list(words))
    while hasattr(command, "commands"):
        rest = [*context._protected_args, *context.args]
        if not rest or rest[0] not in command.commands:
            return
        command = command.commands[rest[0]]
        context = command.make_context(rest[0], rest[1:], parent=context)


def test_there_are_commands():
    assert len(ALL) > 100, "the search is wrong"


@pytest.mark.parametrize("page", sorted({command.page for command in ALL}))
def test_every_command_of_a_page_parses(page):
    for command in ALL:
        if command.page == page and "--show-completion" not in command.words:
            words = list(command.words[1:])
            if words == ["--install-completion"] or "[" in " ".join(words):
                continue  # `[--fsdp]`: a choice that is described
            try:
                parse(words)
            except Exception as error:  # whatever typer raises
                raise AssertionError(f"{command}: {error}") from error


def is_for_here(command):
    said = " ".join(command.words)
    plain = re.sub(r"--lang \w+ ?", "", said)
    is_known = any(map(plain.startswith, NOT_RUN)) or any(w in said for w in NOT_PLANNED)
    return command.is_run and not READERS.search(said) and not is_known


def as_planned(words):
    """What is run: `train` is its plan, on a machine with the GPUs that it asks for."""
    words = [word for word in words[1:] if word != "--detach"]
    if words[:1] == ["slurm"] and "--print" not in words:
        words.append("--print")
    if "train" not in words:
        return words
    words[words.index("train")] = "plan"
    if {"--gpus", "--fsdp", "--deepspeed"} & set(words) and "--machine" not in words:
        words += ["--machine", "8x A100-80"]
    return words


def once_each():
    """The same question is asked once, whichever page it is on and in whatever language; the
    README's commands are run by its own test."""
    done = {question(c.words) for c in commands(ROOT / "README.md")}
    found = {}
    for command in filter(is_for_here, ALL):
        if question(command.words) not in done:
            found.setdefault(question(command.words), command)
    return list(found.values())


def question(words):
    said = list(words)
    if "--lang" in said and said[-2:-1] == ["--lang"]:  # before the verb it is what a page is about
        said = said[:-2]
    return tuple(as_planned(said))


RUN = once_each()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("docs")
    for name, text in READERS_FILES.items():
        (path / name).write_text(text)
    return path


@pytest.mark.parametrize("page", sorted({command.page for command in RUN}))
def test_the_commands_of_a_page_run(page, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PHALANX_LANG", "en")
    for command in RUN:
        if command.page != page:
            continue
        words = as_planned(command.words)
        if "import" in words and "--out" in words:
            Path(words[words.index("--out") + 1]).unlink(missing_ok=True)
        code, out, err = run_cli(*words)
        assert code in (0, 3), f"{command}\n{out}{err}"
        for line in command.shown:
            label = re.split(r"\s{2,}|\d", line.strip())[0].strip()
            assert label in out + err, f"`{line}` is no longer in the output of {command}"


# Of a run that is there: what is left out of these, with the reason.
NOT_OF_A_RUN = {
    "--web": "it serves until it is ended; tests/browser",
    "--tensorboard": "it serves until it is ended; tests/cli/test_watch.py",
    "--benchmark": "of recipes that act: tests/recipes/policy, tests/recipes/bev",
    "detection": "the extra is in an environment of its own",
    "merged": "of language models: tests/recipes/lora",
    "--install-completion": "it would change the shell's files",
    "--gpus": "it needs GPUs",
    "best.pt": "weights of the reader's; tests/cli/test_export.py",
    "models/best.pt": "weights of the reader's; tests/recipes/detection",
    "model.onnx": "tests/cli/test_evaluate.py",
    "runs/second": "one run is there",
    "42": "a job of Slurm: tests/cluster",
    "policy": "tests/recipes/policy",
}
OF_A_RUN = ("watch", "doctor", "evaluate", "export", "stop", "verify", "bench")


def of_a_run():
    found = {}
    for command in ALL:
        words = command.words
        is_one = len(words) > 1 and words[1] in OF_A_RUN and not set(words) & set(NOT_OF_A_RUN)
        if is_one and not READERS.search(" ".join(words)):
            found.setdefault(tuple(words[1:]), command)
    return list(found.values())


@pytest.mark.full
@pytest.mark.ranks
def test_commands_about_a_run_run(folder, monkeypatch):
    monkeypatch.chdir(folder)
    train = ("train", "digits", "--cpu", "1", "--steps", "120", "--name", "first")
    code, out, err = run_cli(*train)
    assert code == 0, out + err
    shutil.copytree("runs/first/checkpoints/checkpoint-120", "checkpoint-120")
    assert len(of_a_run()) > 10, "the search is wrong"
    for command in of_a_run():
        words = list(command.words[1:])
        words += ["--once"] if words[0] == "watch" and "--once" not in words else []
        shutil.rmtree("runs/first/exports", ignore_errors=True)  # an export overwrites nothing
        code, out, err = run_cli(*words)
        refused = 3 if "tensorrt" in words else 0  # a Finding where there is no GPU
        assert code == refused, f"{command}\n{out}{err}"


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
