"""Every choice of the plan names the job keys behind it."""

from phalanx.job.keys import job_keys
from phalanx.planner.job_keys import FEEDS


def test_every_choice_names_its_keys(solve):
    plan, _ = solve("8xa100")
    missing = set(plan.decisions()) - set(FEEDS)
    assert not missing, f"add to planner/job_keys.py what feeds {', '.join(sorted(missing))}"
    assert set(FEEDS) <= set(plan.decisions())


def test_the_keys_are_keys_of_a_job():
    assert {key for keys in FEEDS.values() for key in keys} <= set(job_keys())
    assert all(keys and len(set(keys)) == len(keys) for keys in FEEDS.values())
