"""The kernel's count of processes that it ended for want of memory."""

import pytest

from phalanx.machine import oom


@pytest.fixture
def system(tmp_path, monkeypatch):
    for name in ("_OWN_GROUP", "_GROUPS", "_WHOLE_MACHINE"):
        monkeypatch.setattr(oom, name, tmp_path / name)
    return tmp_path


def test_a_system_without_counters_counts_nothing(system):
    assert oom.count_oom_kills() == 0
    (system / "_WHOLE_MACHINE").write_text("nr_free_pages 5\n")
    assert oom.count_oom_kills() == 0


def test_kills_of_our_own_group_count_and_not_those_of_others(system):
    (system / "_WHOLE_MACHINE").write_text("nr_free_pages 5\noom_kill 30\nhtlb_buddy 1\n")
    assert oom.count_oom_kills() == 30, "all there is to know"
    (system / "_OWN_GROUP").write_text("1:cpu:/old\n0::/job/step_0\n")
    assert oom.count_oom_kills() == 30, "such a group has no file"
    group = system / "_GROUPS" / "job" / "step_0"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("low 0\nhigh 9\noom 1\noom_kill 2\noom_group_kill 0\n")
    assert oom.count_oom_kills() == 2
