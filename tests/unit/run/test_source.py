"""Where a run comes from is written down, with and without git."""

import json
import subprocess

from phalanx.run import source
from phalanx.run.source import record_source


def git(folder, *argv):
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *argv], cwd=folder, check=True, capture_output=True)


def test_the_source_record_has_commit_diff_command_and_versions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "-q")
    (tmp_path / "model.py").write_text("width = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    clean = record_source(["phalanx", "train"])
    assert clean["command"] == ["phalanx", "train"]
    assert len(clean["git"]["commit"]) == 40
    assert clean["git"]["is_dirty"] is False
    assert clean["versions"]["torch"]
    assert clean["versions"]["phalanx"]
    (tmp_path / "model.py").write_text("width = 2\n")
    dirty = record_source([])
    assert dirty["git"]["is_dirty"] is True
    assert "+width = 2" in dirty["git"]["diff"]
    assert dirty["git"]["is_diff_cut"] is False
    json.dumps(dirty)


def test_a_huge_diff_is_cut_and_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(source, "_MAX_DIFF_BYTES", 50)
    git(tmp_path, "init", "-q")
    (tmp_path / "a.txt").write_text("")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    (tmp_path / "a.txt").write_text("line\n" * 100)
    state = record_source([])["git"]
    assert state["is_diff_cut"] is True
    assert len(state["diff"]) == 50


def test_the_source_record_works_outside_git(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert record_source([])["git"] is None


def test_the_source_record_works_without_git(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert record_source([])["git"] is None
