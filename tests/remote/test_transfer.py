"""Which files go along, as the real rsync understands the rules."""

import os

import pytest

from phalanx.places.remote.places import make_place
from phalanx.places.remote.ssh import Connection
from phalanx.places.remote.transfer import filters, measure, push, would_send
from tests.remote.conftest import PACKAGES, find

FILES = {
    ".gitignore": "*.ckpt\n/cache/\n",
    "train.py": "x",
    "runs/one/plan.json": "x",
    "src/runs/kept.py": "x",
    "data/raw/a/b.bin": "x",
    "data/raw/c.bin": "x",
    "data/rows.csv": "x",
    ".venv/bin/python": "x",
    "src/.git": "x",
    "m.ckpt": "x",
    "cache/deep/one*.txt": "x",
    "cache/deep/one2.txt": "x",
    "cache/other.txt": "x",
    "out put/run": "x",
    "é ü.csv": "x",
}


@pytest.fixture
def folder(tmp_path):
    if find("rsync") is None:
        pytest.skip(f"no rsync here: apt-get install {PACKAGES}")
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def sent(folder, **options):
    return set(would_send(folder, filters(folder, **options), list(FILES)))


USUAL = {".gitignore", "train.py", "src/runs/kept.py", "data/rows.csv", "out put/run", "é ü.csv"}


def test_raw_data_runs_environments_and_what_git_ignores_stay(folder):
    assert sent(folder) == USUAL
    assert sent(folder, leave_out=["/out put/"]) == USUAL - {"out put/run"}


def test_what_is_asked_for_goes_and_its_neighbours_stay(folder):
    assert sent(folder, include=["data/raw/a"]) == USUAL | {"data/raw/a/b.bin"}
    assert sent(folder, include=["./data/raw/"]) == USUAL | {"data/raw/a/b.bin", "data/raw/c.bin"}
    assert sent(folder, include=["cache/deep/one*.txt"]) == USUAL | {"cache/deep/one*.txt"}
    assert sent(folder, include=["m.ckpt", "runs/one"]) == USUAL | {"m.ckpt", "runs/one/plan.json"}


def test_what_is_to_be_sent_is_counted(folder):
    (folder / "train.py").write_bytes(b"x" * 1_234_567)
    load = measure(None, folder, "", filters(folder))
    assert load.files == len(USUAL)
    rest = sum((folder / path).stat().st_size for path in USUAL - {"train.py"})
    assert load.num_bytes == 1_234_567 + rest


@pytest.mark.full
def test_a_push_goes_on_after_a_dropped_line(user, tmp_path):
    here, there = tmp_path / "here", tmp_path / "it's; there"
    here.mkdir()
    there.mkdir()
    content = os.urandom(24 << 20)
    (here / "large.bin").write_bytes(content)
    partial = []

    def on_progress(done, percent):
        if not partial and 0 < percent < 100:
            assert user.server.drop() > 0
            partial.append(percent)

    with Connection(make_place("lab", user.server.target)) as connection:
        push(connection, here, str(there), rules=["--bwlimit=8m"], on_progress=on_progress)
    assert partial, "the line was dropped in the middle"
    assert [path.name for path in there.rglob("*")] == ["large.bin"]
    assert (there / "large.bin").read_bytes() == content
