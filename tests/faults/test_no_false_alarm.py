"""A run that nothing happens to raises no alarm, and one with a slow rank raises one, once."""

import pytest

from tests.faults.report import record
from tests.faults.trial import findings, said, write_job
from tests.ranks.command import latest, phalanx

_HOUR_STEPS = 30_000  # an hour of steps of 120 ms


def assert_no_alarm(run):
    assert not said(run, "hang")
    assert not findings(run), "neither hung nor slow nor restarted"
    assert len(said(run, "attempt")) == 1


def test_a_short_clean_run_raises_no_alarm(unbroken):
    assert_no_alarm(unbroken)


@pytest.mark.full
@pytest.mark.timeout(3700)
def test_as_many_steps_as_an_hour_has_raise_no_alarm(tmp_path):
    write_job(tmp_path, steps=_HOUR_STEPS)
    text = (tmp_path / "job.yaml").read_text()
    text = text.replace("every: 20 steps", "every: 1000 steps")
    text = text.replace("every: 50 steps", "every: 500 steps").replace("every: 5,", "every: 50,")
    (tmp_path / "job.yaml").write_text(text)
    code, _, err = phalanx("train", "job.yaml", cwd=tmp_path, timeout_s=3600)
    assert code == 0, err
    run = latest(tmp_path)
    assert_no_alarm(run)
    events = said(run, "step")
    seconds = events[-1].time_s - events[0].time_s
    record("nothing", note=f"{_HOUR_STEPS:,} steps in {seconds:.0f} s, no alarm")


@pytest.mark.full
def test_a_slow_rank_is_named_once_with_its_factor(tmp_path):
    write_job(tmp_path, steps=500, slow_s=0.06)
    code, _, err = phalanx("train", "job.yaml", cwd=tmp_path, timeout_s=300)
    assert code == 0, err
    run = latest(tmp_path)
    (said_once,) = findings(run)
    assert said_once[0] == "straggler"
    assert "rank 2 takes" in said_once[1]["what"]
    assert "in the forward" in said_once[1]["what"]
    assert len(said(run, "attempt")) == 1
    begun = said(run, "step")[0].time_s
    at_s = next(e.time_s for e in said(run, "finding") if e.writer == "supervisor")
    record("a rank that sleeps 60 ms in each forward", detection_s=at_s - begun)
