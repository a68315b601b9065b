"""What may change between a stop and a resume."""

import pytest

from phalanx.planner.resume import resume_findings
from phalanx.planner.schema.plan import Decision

# With another one of these the sample order of the first part cannot be continued.
FIXED = {"recipe", "seed", "global_batch_size", "num_samples"}
FREE = {
    "recipe_fingerprint",
    "options",
    "data_fingerprint",
    "optimizer",
    "schedule",
    "precision",
}


def changed(plan, key):
    value = plan.history.identity[key]
    other = {**value, "extra": 1} if isinstance(value, dict) else f"{value}-other"
    return plan.replace(identity={**plan.history.identity, key: other})


def test_every_identity_key_is_either_fixed_or_free(solve):
    assert set(solve()[0].history.identity) == FIXED | FREE


def test_the_same_plan_has_no_findings(solve):
    plan, _ = solve()
    assert resume_findings(plan, plan, accept_changes=False) == []


@pytest.mark.parametrize("accept_changes", [False, True])
@pytest.mark.parametrize("key", sorted(FIXED | FREE))
def test_each_difference_is_one_finding(solve, key, accept_changes):
    plan, _ = solve()
    now = changed(plan, key)
    (finding,) = resume_findings(plan, now, accept_changes=accept_changes)
    assert finding.slug == "resume-differs"
    assert f"`{key}`" in finding.what
    assert "then" in finding.why
    assert "now" in finding.why
    if key in FIXED:
        assert finding.severity == "error"
        assert "init_from" in finding.fix
    else:
        assert finding.severity == ("warning" if accept_changes else "error")
        assert "--accept-changes" in finding.fix


def test_all_differences_are_told_at_once(solve):
    plan, _ = solve()
    now = changed(changed(plan, "seed"), "options")
    assert len(resume_findings(plan, now, accept_changes=False)) == 2


def test_a_difference_inside_a_section_names_the_key_and_both_values(solve):
    before, _ = solve(optimizer={"lr": 0.1})
    now, _ = solve(optimizer={"lr": 0.2}, previous=before)
    (finding,) = resume_findings(before, now, accept_changes=False)
    assert finding.why == "lr: 0.1 then, 0.2 now"


def test_another_length_is_a_warning_with_both(solve):
    plan, _ = solve()
    now = plan.replace(total_steps=Decision(plan.batch.total_steps.value + 5, "longer"))
    (finding,) = resume_findings(plan, now, accept_changes=False)
    assert finding.slug == "resume-length"
    assert finding.severity == "warning"
    assert str(plan.batch.total_steps.value) in finding.what
    assert str(now.batch.total_steps.value) in finding.what


def test_another_number_of_ranks_is_no_difference(solve):
    before, _ = solve(devices={"cpu": 2}, batch_per_gpu=8)
    now, _ = solve(devices={"cpu": 4}, batch_per_gpu=8, previous=before)
    assert resume_findings(before, now, accept_changes=False) == []


def test_a_plan_read_back_from_its_file_is_no_difference(solve):
    import json

    from phalanx.planner.schema.plan import Plan

    plan, _ = solve(schedule={"warmup": "5%"}, optimizer={"betas": [0.8, 0.9]})
    read = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    again, _ = solve(schedule={"warmup": "5%"}, optimizer={"betas": [0.8, 0.9]}, previous=read)
    assert resume_findings(read, again, accept_changes=False) == []
    assert again.learning.lr == plan.learning.lr


@pytest.mark.parametrize(
    "keys", [{"global_batch_size": 128}, {"batch_per_gpu": 11}], ids=["global", "per-gpu"]
)
def test_another_batch_asked_on_resume_is_not_ignored_in_silence(solve, keys):
    # Contract 9: a value that is ignored is a warning with the old and the new one.
    before, _ = solve(global_batch_size=64, devices={"cpu": 2})
    now, findings = solve(devices={"cpu": 2}, previous=before, **keys)
    assert now.batch.global_batch_size.value == 64
    findings = [*findings, *resume_findings(before, now, accept_changes=True)]
    said = " ".join(f"{f.what} {f.why}" for f in findings)
    asked = str(next(iter(keys.values())))
    assert "64" in said
    assert asked in said
