"""What is not ours stays as it is: names that leave a folder, places that are taken."""

import errno
import os
import stat

import pytest

from phalanx.errors import UserError
from phalanx.run.directory import RunDirectory, create_run_directory, new_folder, write_atomic
from phalanx.run.guards import find_inside, link_or_copy
from phalanx.run.media import find_media, write_media, write_named


def refuse_links(monkeypatch, number=errno.EXDEV):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path):
    """A folder with links that stay in it and links that leave it, beside a file of the user's."""
    (tmp_path / "mine").write_text("mine")
    folder = tmp_path / "folder"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "file").touch()
    (folder / "near").symlink_to("in")
    (folder / "out").symlink_to(tmp_path)
    (folder / "in" / "up").symlink_to("../..")
    (folder / "mine").symlink_to("../mine")
    (folder / "loop").symlink_to("loop")
    return folder


@pytest.mark.parametrize("name", ["in/file", "near/file", "./in//file", "new", "in/new/er", "..x"])
def test_a_name_inside(folder, name):
    found = find_inside(folder, name)
    assert found is not None and found.is_relative_to(folder)


@pytest.mark.parametrize(
    "name",
    ["", ".", "./", "/", "/etc/passwd", "//etc", "..", "../mine", "in/../../mine", "in/..", "mine",
     "out/mine", "out/new", "in/up/mine", "in/up/folder/../mine", "a\0b", "out"],
)  # fmt: skip
def test_a_name_that_leaves(folder, name):
    assert find_inside(folder, name) is None


def test_a_folder_that_is_a_link_is_its_target(folder, tmp_path):
    (tmp_path / "link").symlink_to("folder")
    assert find_inside(tmp_path / "link", "near/file") == folder / "in" / "file"


@pytest.mark.parametrize("has_links", [True, False])
def test_what_is_there_is_never_written_to(tmp_path, monkeypatch, has_links):
    if not has_links:
        refuse_links(monkeypatch)
    (tmp_path / "source").write_text("new")
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to("mine")
    (tmp_path / "nowhere").symlink_to("gone")
    for taken in ("mine", "link", "nowhere"):
        with pytest.raises(FileExistsError):
            link_or_copy(tmp_path / "source", tmp_path / taken)
        with pytest.raises(FileExistsError):
            write_atomic(tmp_path / taken, "new", is_new=True)
    write_atomic(tmp_path / "free", "new", is_new=True)
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "free").read_text() == "new"
    assert names(tmp_path) == ["free", "link", "mine", "nowhere", "source"]


def test_a_copy_that_fails_leaves_nothing(tmp_path, monkeypatch):
    refuse_links(monkeypatch)
    (tmp_path / "source").mkdir()  # cannot be read as a file
    with pytest.raises(OSError, match="source"):
        link_or_copy(tmp_path / "source", tmp_path / "target")

    def fail(*_):
        raise OSError(errno.ENOSPC, "full")

    (tmp_path / "file").write_text("content")
    monkeypatch.setattr("phalanx.run.guards.shutil.copyfileobj", fail)
    with pytest.raises(OSError, match="full"):
        link_or_copy(tmp_path / "file", tmp_path / "target")
    assert names(tmp_path) == ["file", "source"]


def test_a_new_folder_takes_the_place_of_nothing_that_appears_meanwhile(tmp_path):
    final = tmp_path / "final"
    with pytest.raises(UserError, match="folder-exists"), new_folder(final, is_new=True) as making:
        (making / "ours").touch()
        final.mkdir()
        (final / "mine").write_text("mine")
    assert names(final) == ["mine"]
    assert names(tmp_path) == ["final"]
    (final / "mine").unlink()
    with new_folder(final, is_new=True) as making:  # an empty one holds nothing to lose
        (making / "ours").touch()
    assert names(final) == ["ours"]


def test_the_files_that_a_new_folder_links_to_keep_their_mode(tmp_path):
    for name in ("soft", "hard"):
        (tmp_path / name).write_text("mine")
        (tmp_path / name).chmod(0o700)
    with new_folder(tmp_path / "final") as making:
        (making / "soft").symlink_to(tmp_path / "soft")
        (making / "hard").hardlink_to(tmp_path / "hard")
        (making / "own").touch(mode=0o600)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("soft", "hard")]
    assert modes == [0o700, 0o700]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "final" / "own").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("name", ["..", "../there", ".", "a/b", "/abs", "a\\b", "a\0b", "../runs"])
def test_a_run_is_named_in_its_folder_or_not_at_all(tmp_path, name):
    with pytest.raises(UserError, match="run-name"):
        create_run_directory(tmp_path / "runs", name, "digits")
    assert names(tmp_path) == []


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_file_that_is_called_as_the_link_is_left_alone(tmp_path, is_folder):
    if is_folder:
        (tmp_path / "latest").mkdir()
    else:
        (tmp_path / "latest").write_text("mine")
    with pytest.raises(UserError, match="run-link"):
        create_run_directory(tmp_path, "first", "digits")
    assert names(tmp_path) == ["latest"]


def test_media_of_other_names_and_contents_stay_apart(tmp_path):
    run = RunDirectory(tmp_path)
    given = [("a/b", b"1"), ("a-b", b"2"), ("a b", b"3"), ("../../b", b"4"), ("", b"5"),
             ("..", b"6"), ("a-b", b"7"), ("x" * 300, b"8"), ("x" * 301, b"9")]  # fmt: skip
    files = [
        write_media(run, step=1, name=name, suffix=".png", content=content)
        for name, content in given
    ]
    assert len(set(files)) == len(given)
    for (_, content), file in zip(given, files, strict=True):
        path = find_media(run, file)
        assert path is not None and path.read_bytes() == content
    # What is written a second time, after a resume, is the same file.
    assert write_media(run, step=1, name="a b", suffix=".png", content=b"3") == files[2]
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == len(given)


@pytest.mark.parametrize("suffix", [".png", "/../../evil", ".p/n"])
def test_a_file_of_a_chosen_name_stays_in_its_folder(tmp_path, suffix):
    (tmp_path / "films").mkdir()
    (tmp_path / "films" / "task.png").write_text("mine")
    path = write_named(tmp_path / "films", "task", suffix, b"new")
    assert path.parent == tmp_path / "films" and path.read_bytes() == b"new"
    assert (tmp_path / "films" / "task.png").read_text() == "mine"
    assert names(tmp_path) == ["films"]
