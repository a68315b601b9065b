"""Checkpoints that were damaged, or made by somebody who means harm: found every time, the older
good one is used, and nothing in them is ever run or leads out of their folder."""

import hashlib
import json
import os
import pickle
import random
import shutil

import pytest
import torch

from phalanx.run.checkpoints import latest_good, verify_checkpoint
from phalanx.run.directory import RunDirectory
from tests.faults.apart import run_ranks
from tests.faults.report import record
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import assert_same_bits, change_run, make_run

CHANGES = {"steps": 8, "checkpoint": {"every": "2 steps"}, "evaluate": {"every": None}}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("undisturbed"), ranks=1, **CHANGES)
    assert run_ranks(run) == [0]
    return run


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Stopped after six steps, with checkpoints of steps 4 and 6."""
    run = make_run(tmp_path_factory.mktemp("stopped"), ranks=1, **CHANGES, stop_after="6 steps")
    assert run_ranks(run) == [0]
    return change_run(run, stop_after=None)


@pytest.fixture
def run(tmp_path, stopped):
    """A copy of it to be damaged."""
    return RunDirectory(shutil.copytree(stopped.path, tmp_path / "run", symlinks=True))


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def swap(one, other):
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
DAMAGE = {
    "bit flip": lambda new, old: flip(new / OPTIMIZER),
    "truncation": lambda new, old: os.truncate(new / MODEL, 1000),
    "empty file": lambda new, old: (new / MODEL).write_bytes(b""),
    "missing file": lambda new, old: (new / OPTIMIZER).unlink(),
    "swapped files": lambda new, old: swap(new / MODEL, new / OPTIMIZER),
    "a file of another checkpoint": lambda new, old: shutil.copy(old / MODEL, new / MODEL),
    "old manifest, new data": lambda new, old: shutil.copy(
        old / "manifest.json", new / "manifest.json"
    ),
    "another checkpoint under its name": lambda new, old: (
        shutil.rmtree(new),
        shutil.copytree(old, new),
    ),
    "new state, old data": lambda new, old: swap(new / "state.json", old / "state.json"),
}
QUICK = ("bit flip", "old manifest, new data", "another checkpoint under its name")


def resume(run, undisturbed, expected):
    assert run_ranks(run, attempt=1) == [0]
    starts = [e.data["step"] for e in read_events(run.events) if e.kind == "start"]
    assert starts[-1] == expected
    assert_same_bits(run, undisturbed)
    return [e.data["finding"] for e in read_events(run.events) if e.kind == "finding"]


@pytest.mark.parametrize(
    "damage",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.full]) for name in DAMAGE],
)
def test_damage_is_found_and_the_run_ends_as_if_there_were_none(run, undisturbed, damage):
    new, old = run.checkpoints / "checkpoint-6", run.checkpoints / "checkpoint-4"
    DAMAGE[damage](new, old)
    is_both = damage == "new state, old data"
    found = resume(run, undisturbed, 0 if is_both else 4)
    assert {f["slug"] for f in found} == {"checkpoint-damaged"}
    assert len(found) == 1 + is_both
    record(f"checkpoint: {damage}", lost_steps=6 if is_both else 2, is_equal=True)


def test_a_bit_flipped_anywhere_is_found(run):
    newest = run.checkpoints / "checkpoint-6"
    generator = random.Random(8)
    files = sorted(newest.iterdir())
    for _ in range(100):
        path = generator.choice(files)
        data = bytearray(path.read_bytes())
        good = bytes(data)
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        path.write_bytes(data)
        if path.name == "manifest.json" and _same_claims(good, data):
            path.write_bytes(good)
            continue  # a space became another white space, or a step of no file
        assert verify_checkpoint(newest) is not None, path.name
        path.write_bytes(good)
    assert verify_checkpoint(newest) is None


def _same_claims(good, bad):
    """Whether a manifest says the same although its bytes differ."""
    try:
        return json.loads(good) == json.loads(bytes(bad))
    except ValueError:
        return False


class Malicious:
    def __init__(self, trap):
        self._trap = str(trap)

    def __reduce__(self):
        return open, (self._trap, "w")


def sign(folder):
    """Make the manifest agree with what is there, as one who means harm would."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"] = {
        file.relative_to(folder).as_posix(): {
            "bytes": file.stat().st_size,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != "manifest.json"
    }
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("is_signed", [False, True], ids=["beside", "in the manifest"])
def test_pickles_in_a_checkpoint_are_not_run(run, undisturbed, tmp_path, is_signed):
    trap, newest = tmp_path / "trap", run.checkpoints / "checkpoint-6"
    payload = pickle.dumps(Malicious(trap))
    for name in (".metadata", "rng.pt", "rng_state.pth", "optimizer.pt", "training_args.bin"):
        (newest / name).write_bytes(payload)
        (run.checkpoints / name).write_bytes(payload)
    torch.save({"w": Malicious(trap)}, newest / "model.pt")
    torch.save({"w": Malicious(trap)}, newest / "pytorch_model.bin")
    if is_signed:
        sign(newest)
    assert resume(run, undisturbed, 6) == []
    assert not trap.exists()
    record("malicious pickles in a checkpoint", lost_steps=0, is_equal=True, note="never opened")


@pytest.mark.parametrize("name", [MODEL, OPTIMIZER, "state.json", "manifest.json"])
def test_a_pickle_in_place_of_a_file_is_not_run(run, tmp_path, name):
    trap, newest = tmp_path / "trap", run.checkpoints / "checkpoint-6"
    (newest / name).write_bytes(pickle.dumps(Malicious(trap)))
    if name != "manifest.json":
        sign(newest)
    saved, problems = latest_good(run.checkpoints)
    if name in (MODEL, OPTIMIZER):  # one who can forge checksums ends a run, and no more
        assert saved.step == 6
        assert run_ranks(run, attempt=1) == [1]
    else:
        assert saved.step == 4
        assert [problem.slug for problem in problems] == ["checkpoint-damaged"]
    assert not trap.exists()


@pytest.mark.parametrize("name", ["../../secret", "{outside}", "a/../../secret", "link", "way/in"])
def test_names_in_a_manifest_lead_nowhere_else(run, tmp_path, monkeypatch, name):
    outside = tmp_path / "secret"
    outside.write_text("not yours")
    (run.checkpoints / "secret").write_text("not yours")
    newest = run.checkpoints / "checkpoint-6"
    (newest / "link").symlink_to(outside)
    (newest / "way").symlink_to(tmp_path)
    (tmp_path / "in").write_text("not yours")
    path = newest / "manifest.json"
    manifest = json.loads(path.read_text())
    facts = {"bytes": 9, "sha256": hashlib.sha256(b"not yours").hexdigest()}
    manifest["files"][name.format(outside=outside)] = facts
    path.write_text(json.dumps(manifest))
    opened = []
    watch_reads(monkeypatch, opened)
    saved, problems = latest_good(run.checkpoints)
    assert saved.step == 4
    assert "not a file in this folder" in problems[0].why
    inside = {newest, run.checkpoints / "checkpoint-4"}
    assert {file.parent for file in opened} <= inside


def watch_reads(monkeypatch, opened):
    from pathlib import Path

    original = Path.open

    def watched(self, *arguments, **rest):
        opened.append(self)
        return original(self, *arguments, **rest)

    monkeypatch.setattr(Path, "open", watched)


def test_a_weights_file_that_is_a_link_is_not_followed(run, tmp_path):
    newest = run.checkpoints / "checkpoint-6"
    elsewhere = shutil.move(newest / MODEL, tmp_path / "elsewhere")
    (newest / MODEL).symlink_to(elsewhere)
    saved, problems = latest_good(run.checkpoints)
    assert saved.step == 4
    assert MODEL in problems[0].why


def test_a_best_that_leads_elsewhere_is_not_used(run, tmp_path):
    from phalanx.run.checkpoints import best_good

    elsewhere = shutil.copytree(run.checkpoints / "checkpoint-4", tmp_path / "checkpoint-4")
    (run.checkpoints / "best").unlink(missing_ok=True)
    (run.checkpoints / "best").symlink_to(elsewhere)
    assert best_good(run.checkpoints)[0].path == (run.checkpoints / "checkpoint-6").resolve()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"files": ' * 50_000])
def test_a_manifest_nested_without_end_is_damage(run, text):
    (run.checkpoints / "checkpoint-6" / "manifest.json").write_text(text)
    saved, problems = latest_good(run.checkpoints)
    assert saved.step == 4
    assert len(problems) == 1
