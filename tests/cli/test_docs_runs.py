"""Commands of README and docs that train, launch, or are about a run that is there: all of them, on
runs of a second (documented.py says what is run in their place)."""

import re
import shutil
import signal
import urllib.request
from pathlib import Path

import pytest

from tests.cli.command import run_cli
from tests.cli.documented import asked, assert_as_shown
from tests.cli.kept_launcher import kept_launcher
from tests.cli.reader import write_jobs, write_scripts
from tests.ranks.command import phalanx, start
from tests.ranks.runs import FIXTURES

pytestmark = [pytest.mark.ranks, pytest.mark.full]
STEERING = f"{FIXTURES / 'recipes' / 'steering.py'}:Steering"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, asked_before):
    """A reader's folder with runs, a checkpoint and weights on their own, and one launcher."""
    path = tmp_path_factory.mktemp("runs")
    write_jobs(path)
    write_scripts(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("XDG_CACHE_HOME", str(path / "cache"))
        patch.setenv("PHALANX_LANG", "en")
        if asked_before is not None:
            for kind in ("torch", "traces"):
                shutil.copytree(asked_before / kind, path / "cache" / "phalanx" / kind)
        with kept_launcher(patch):
            _train(path)
            yield path


def _train(path):
    from safetensors.torch import load_file
    from torch import save

    runs = {"steer": [STEERING, "--batch-size", "64"], "first": ["digits", "width=8"]}
    for name, words in runs.items():
        done = run_cli("train", *words, "--cpu", "1", "--steps", "120", "--name", name)
        assert done.code == 0, done.out + done.err
    shutil.copytree("runs/first", "runs/second")
    shutil.copytree("runs/first/checkpoints/checkpoint-120", "checkpoint-120")
    save(load_file("checkpoint-120/model.safetensors"), "best.pt")
    assert run_cli("export", "runs/first", "--to", "onnx").code == 0
    (exported,) = Path("runs/first/exports").glob("*onnx*/model.onnx")
    exported.rename("model.onnx")
    assert run_cli("recipes", "copy", "digits", "my_digits").code == 0


@pytest.fixture(autouse=True)
def _its_cache(folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))


@pytest.mark.parametrize("question", asked("runs"), ids=str)
def test_of_a_run(question, folder):
    command, words = question
    for exports in folder.glob("runs/*/exports"):  # nothing is overwritten
        shutil.rmtree(exports)
    if "--detach" in words:
        code, out, err = phalanx(*words, cwd=folder)
        assert run_cli("stop").code == 0
    else:
        code, out, err = run_cli(*words)
    refused = 3 if "tensorrt" in words else 0  # a Finding where there is no GPU
    assert code == refused, f"{command}\n{out}{err}"
    assert_as_shown(command, out + err)


@pytest.mark.parametrize("question", asked("launch"), ids=str)
def test_of_a_script(question, folder):
    command, words = question
    is_detached = "--detach" in words
    code, out, err = phalanx(*words, cwd=folder) if is_detached else run_cli(*words)
    assert code == 0, f"{command}\n{out}{err}"
    if is_detached:
        assert run_cli("stop").code == 0
    else:
        assert re.search(r"step \d/\d loss \d", out), out


@pytest.mark.parametrize("question", asked("serving"), ids=str)
def test_that_serves(question, folder):
    process = start(*question.words, cwd=folder)
    said = ""
    stream = process.stderr if "--tensorboard" in question.words else process.stdout
    while not (found := re.search(r"http://[^\s]+", said)):
        line = stream.readline()
        assert line, said
        said += line
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(found[0], timeout=60) as answer:
        assert b"<html" in answer.read().lower()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
