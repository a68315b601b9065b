"""Checkpoint folders: nothing damaged or half-written is ever opened."""

import json
import shutil
from pathlib import Path

import pytest

from phalanx.run import checkpoints, directory
from phalanx.run.checkpoints import (
    folder_bytes,
    latest_good,
    list_checkpoints,
    new_checkpoint,
    open_checkpoint,
    publish,
    verify_checkpoint,
)


def save(folder, step, content=b"weights" * 100):
    with new_checkpoint(folder, step) as temporary:
        (temporary / "model.safetensors").write_bytes(content)
        (temporary / "state.json").write_text(json.dumps({"step": step}))
    return folder / f"checkpoint-{step}"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def flip_bit(path):
    file = path / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[17] ^= 4
    file.write_bytes(data)


def edit_manifest(change):
    def edit(path):
        file = path / "manifest.json"
        manifest = json.loads(file.read_text())
        change(manifest)
        file.write_text(json.dumps(manifest))

    return edit


DAMAGE = {
    "bit flip": flip_bit,
    "truncation": lambda p: (p / "model.safetensors").write_bytes(b"weights"),
    "grown file": lambda p: (p / "model.safetensors").write_bytes(b"weights" * 101),
    "empty file": lambda p: (p / "model.safetensors").write_bytes(b""),
    "missing file": lambda p: (p / "model.safetensors").unlink(),
    "folder in its place": lambda p: (
        (p / "model.safetensors").unlink(),
        (p / "model.safetensors").mkdir(),
    ),
    "changed state": lambda p: (p / "state.json").write_text('{"step": 9999}'),
    "missing manifest": lambda p: (p / "manifest.json").unlink(),
    "empty manifest": lambda p: (p / "manifest.json").write_bytes(b""),
    "half a manifest": lambda p: (p / "manifest.json").write_text('{"schema_version": 1, "fi'),
    "binary manifest": lambda p: (p / "manifest.json").write_bytes(b"\xff\xfe\0\0"),
    "manifest that is a list": lambda p: (p / "manifest.json").write_text("[]"),
    "manifest of null": lambda p: (p / "manifest.json").write_text("null"),
    "manifest without files": edit_manifest(lambda m: m.pop("files")),
    "manifest with no files": edit_manifest(lambda m: m["files"].clear()),
    "manifest that leaves the state out": lambda p: (
        (p / "state.json").unlink(),
        edit_manifest(lambda m: m["files"].pop("state.json"))(p),
    ),
    "manifest without sizes": edit_manifest(lambda m: m["files"].update({"state.json": None})),
    "manifest without checksums": edit_manifest(lambda m: m["files"]["state.json"].pop("sha256")),
    "another schema version": edit_manifest(lambda m: m.update(schema_version=99)),
    "no schema version": edit_manifest(lambda m: m.pop("schema_version")),
    "empty folder": lambda p: (shutil.rmtree(p), p.mkdir()),
}


def test_a_saved_checkpoint_verifies_and_opens(tmp_path):
    path = save(tmp_path, 5)
    assert verify_checkpoint(path) is None
    saved, problem = open_checkpoint(path)
    assert problem is None
    assert (saved.path, saved.step, saved.state) == (path.resolve(), 5, {"step": 5})
    assert names(tmp_path) == ["checkpoint-5"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_the_older_good_one_is_used(tmp_path, damage):
    save(tmp_path, 1)
    good = save(tmp_path, 2)
    bad = save(tmp_path, 3)
    DAMAGE[damage](bad)
    saved, problems = latest_good(tmp_path)
    assert saved.path == good.resolve()
    assert saved.step == 2
    (finding,) = problems
    assert finding.slug == "checkpoint-damaged"
    assert finding.severity == "warning"
    assert str(bad) in finding.what
    assert finding.why
    assert finding.fix


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("bit flip", "`model.safetensors` differ from their checksum"),
        ("truncation", "`model.safetensors` has 7 bytes, the manifest says 700"),
        ("missing file", "`model.safetensors` is missing"),
        ("another schema version", "format is 99"),
    ],
)
def test_the_finding_says_what_is_wrong(tmp_path, damage, said):
    path = save(tmp_path, 1)
    DAMAGE[damage](path)
    assert said in verify_checkpoint(path).why


def test_all_damaged_means_none_and_a_finding_each(tmp_path):
    for step in (1, 2):
        flip_bit(save(tmp_path, step))
    saved, problems = latest_good(tmp_path)
    assert saved is None
    assert len(problems) == 2


def test_no_folder_means_none(tmp_path):
    assert latest_good(tmp_path / "nowhere") == (None, [])
    assert list_checkpoints(tmp_path / "nowhere") == []


def test_checkpoints_are_listed_newest_first_by_number(tmp_path):
    for step in (9, 100, 20):
        save(tmp_path, step)
    publish(tmp_path, 100, is_best=True, keep=5)
    (tmp_path / "checkpoint-x").mkdir()
    (tmp_path / ".checkpoint-300.1.abc.tmp").mkdir()
    assert [step for step, _ in list_checkpoints(tmp_path)] == [100, 20, 9]


def test_a_crash_while_saving_leaves_the_old_state_and_no_temporary_folder(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(RuntimeError, match="crash"), new_checkpoint(tmp_path, 2) as temporary:
        (temporary / "model.safetensors").write_bytes(b"half")
        raise RuntimeError("crash")
    assert names(tmp_path) == ["checkpoint-1"]
    assert latest_good(tmp_path)[0].step == 1


@pytest.mark.parametrize(
    "where, broken", [(checkpoints, "_write_manifest"), (directory, "sync_folder")]
)
def test_a_crash_at_the_end_of_saving_leaves_nothing_half_done(
    tmp_path, monkeypatch, where, broken
):
    save(tmp_path, 1)

    def crash(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(where, broken, crash)
    with pytest.raises(OSError, match="no space"):
        save(tmp_path, 2)
    assert {".tmp"}.isdisjoint({path.suffix for path in tmp_path.iterdir()})
    saved, problems = latest_good(tmp_path)
    assert saved is not None
    assert problems == []


def test_the_same_step_saved_again_replaces_it(tmp_path):
    save(tmp_path, 1, b"first")
    path = save(tmp_path, 1, b"second")
    assert (path / "model.safetensors").read_bytes() == b"second"
    assert verify_checkpoint(path) is None
    assert names(tmp_path) == ["checkpoint-1"]


def test_a_crash_while_replacing_the_same_step_keeps_the_old_one(tmp_path, monkeypatch):
    save(tmp_path, 1, b"first")
    rename = Path.rename

    def crash(self, target):
        if self.suffix == ".tmp":
            raise OSError("crash")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", crash)
    with pytest.raises(OSError, match="crash"):
        save(tmp_path, 1, b"second")
    saved, _ = latest_good(tmp_path)
    assert saved is not None
    assert (saved.path / "model.safetensors").read_bytes() == b"first"


def test_the_newest_and_the_best_are_kept(tmp_path):
    for step in range(1, 7):
        save(tmp_path, step)
        publish(tmp_path, step, is_best=step == 2, keep=2)
    assert names(tmp_path) == ["best", "checkpoint-2", "checkpoint-5", "checkpoint-6", "latest"]
    assert (tmp_path / "latest").resolve().name == "checkpoint-6"
    assert (tmp_path / "best").resolve().name == "checkpoint-2"


def test_a_new_best_lets_the_old_one_go(tmp_path):
    for step in range(1, 6):
        save(tmp_path, step)
        publish(tmp_path, step, is_best=step in (1, 4), keep=2)
    assert names(tmp_path) == ["best", "checkpoint-4", "checkpoint-5", "latest"]


def test_links_are_relative_so_that_a_run_can_be_moved(tmp_path):
    save(tmp_path / "a", 1)
    publish(tmp_path / "a", 1, is_best=True, keep=2)
    (tmp_path / "a").rename(tmp_path / "b")
    for link in ("latest", "best"):
        assert open_checkpoint(tmp_path / "b" / link)[0].step == 1


def test_a_damaged_new_one_lets_nothing_old_go(tmp_path):
    for step in (1, 2):
        save(tmp_path, step)
        publish(tmp_path, step, is_best=False, keep=2)
    flip_bit(save(tmp_path, 3))
    publish(tmp_path, 3, is_best=True, keep=2)
    assert (tmp_path / "latest").resolve().name == "checkpoint-2"
    assert not (tmp_path / "best").exists()
    assert {"checkpoint-1", "checkpoint-2"} <= set(names(tmp_path))


def test_newer_damaged_ones_do_not_push_out_the_one_just_saved(tmp_path):
    # Steps 10 and 12 were damaged, the run went back to 8 and saves again at 9.
    save(tmp_path, 8)
    flip_bit(save(tmp_path, 10))
    flip_bit(save(tmp_path, 12))
    save(tmp_path, 9)
    publish(tmp_path, 9, is_best=False, keep=2)
    saved, _ = latest_good(tmp_path)
    assert saved is not None
    assert saved.step == 9
    assert (tmp_path / "latest").resolve().name == "checkpoint-9"


def test_size_on_disk_counts_every_file(tmp_path):
    path = save(tmp_path, 1, b"x" * 1000)
    expected = 1000 + sum((path / n).stat().st_size for n in ("state.json", "manifest.json"))
    assert folder_bytes(path) == expected
