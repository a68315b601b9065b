"""The wheel is complete: installed away from here it lists, plans and trains. `make release` does
the same in clean environments, of several Pythons."""

import os
import subprocess
import sys

import pytest

from scripts.release import ROOT, missing_files


def run(argv, **options):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, **options)
    assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: setuptools would leave a folder in ours."""
    source = tmp_path_factory.mktemp("source")
    listed = run(["git", "ls-files", "-co", "--exclude-standard", "-z", "src"], cwd=ROOT)
    for name in [*filter(None, listed.split("\0")), "pyproject.toml", "README.md", "LICENSE"]:
        if (ROOT / name).is_file():
            place = source / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes((ROOT / name).read_bytes())
    out = tmp_path_factory.mktemp("dist")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*pip, "-w", str(out), str(source)])
    return next(out.glob("*.whl"))


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    assert missing_files(wheel) == []


@pytest.mark.full
@pytest.mark.ranks
def test_it_trains_from_outside_the_repository(wheel, tmp_path):
    place = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place)]
    run([*pip, str(wheel)])
    folder = tmp_path / "work"
    folder.mkdir()
    env = {**os.environ, "PYTHONPATH": str(place), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    python = [sys.executable, "-m", "phalanx"]
    where = run(
        [sys.executable, "-c", "import phalanx; print(phalanx.__file__)"], cwd=folder, env=env
    )
    assert where.startswith(str(place))
    assert "digits" in run([*python, "recipes"], cwd=folder, env=env)
    assert "梯度" in run([*python, "--lang", "zh", "explain", "ddp"], cwd=folder, env=env)
    output = run([*python, "train", "digits", "--cpu", "1", "--epochs", "1"], cwd=folder, env=env)
    assert "finished" in output
