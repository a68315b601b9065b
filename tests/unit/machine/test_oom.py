"""The kernel's count of processes that it ended for want of memory."""

import pytest

from phalanx.machine import oom


@pytest.mark.parametrize(
    ("text", "count"),
    [("nr_free_pages 5\noom_kill 3\nhtlb_buddy 1\n", 3), ("nr_free_pages 5\n", 0), ("", 0)],
)
def test_the_counter_is_read(text, count, tmp_path, monkeypatch):
    monkeypatch.setattr(oom, "_COUNTERS", tmp_path / "vmstat")
    assert oom.count_oom_kills() == 0, "there is none on this system"
    (tmp_path / "vmstat").write_text(text)
    assert oom.count_oom_kills() == count
