"""Files that appear whole or not at all."""

import pytest

from phalanx.recipe import new_file


def test_a_file_appears_whole_in_a_folder_that_was_not_there(tmp_path):
    final = tmp_path / "cache" / "made.npz"
    with new_file(final) as making:
        making.write_text("new")
        assert making.suffix == ".npz"
        assert not final.exists()
    assert final.read_text() == "new"
    assert list(final.parent.iterdir()) == [final]


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    final = tmp_path / "made"
    final.write_text("old")
    with pytest.raises(RuntimeError, match="half"), new_file(final) as making:
        making.write_text("half")
        raise RuntimeError("half")
    assert final.read_text() == "old"
    assert list(tmp_path.iterdir()) == [final]
