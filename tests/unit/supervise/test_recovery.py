"""Which plan follows a rank that ran out of memory, and what is said when none does."""

import json
from pathlib import Path

import pytest

from phalanx.planner.revise import ALLOCATOR_VARIABLE, GROWING_SEGMENTS
from phalanx.planner.schema.plan import Decision, Plan
from phalanx.supervise.outcomes import RankEnd
from phalanx.supervise.recovery import does_not_fit, find_memory_failure, revise_plan
from tests.fixtures.event_lines import make_event
from tests.fixtures.recorded import as_written

GOLDEN = Path(__file__).parents[2] / "golden" / "run-0.1" / "plan.json"
MIB = 2**20


@pytest.fixture
def plan(monkeypatch):
    for name in (ALLOCATOR_VARIABLE, "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    plan = Plan.from_json(json.loads(GOLDEN.read_text()))
    return plan.replace(device=Decision("cuda", "test"))


def failure(phase="step", *, tried=100 * MIB, idle=1 * MIB):
    memory = {
        "device": "cuda:1",
        "tried_bytes": tried,
        "free_bytes": 5 * MIB,
        "total_bytes": 1000 * MIB,
        "idle_bytes": idle,
    }
    data = as_written("outcome", "rank-1", status="failed", phase=phase, memory=memory)
    return make_event("outcome", 1.0, "rank-1", 0, {**data, "step": 3, "findings": []}).body


def test_out_of_memory_wins_over_peers_that_ended_earlier():
    lost = as_written("outcome", "rank-0", status="failed", memory=None)
    peer = RankEnd(0, 0.5, make_event("outcome", 0.5, "rank-0", 0, lost).body)
    first, second = RankEnd(1, 1.0, failure()), RankEnd(2, 2.0, failure())
    assert find_memory_failure([peer, second, first]) is first.outcome
    assert find_memory_failure([peer]) is None


@pytest.mark.parametrize("phase", ["settle", "step", "save"])
def test_a_step_gets_a_smaller_micro_batch(plan, phase):
    revision = revise_plan(plan, failure(phase))
    old = plan.batch.micro_batch_size.value
    assert revision.changes["micro_batch_size"] == {"old": old, "new": old // 2}
    assert revision.step == 3
    assert "global batch stays" in revision.reason
    assert "dropout" in revision.reason
    assert "BatchNorm" not in revision.reason
    assert revision.event().revision == plan.revision + 1


def test_batchnorm_is_named_where_there_is_one(plan):
    with_norm = plan.replace(has_batchnorm=True)
    assert "BatchNorm" in revise_plan(with_norm, failure()).reason


def test_evaluation_gets_a_smaller_batch_of_its_own(plan):
    assert set(revise_plan(plan, failure("evaluate")).changes) == {"evaluate_batch_size"}


def test_fragmented_memory_is_tried_once_with_the_same_sizes(plan):
    fragmented = failure(idle=101 * MIB)
    revision = revise_plan(plan, fragmented)
    assert revision.changes == {ALLOCATOR_VARIABLE: {"old": None, "new": GROWING_SEGMENTS}}
    assert "fragmented" in revision.reason
    assert "micro_batch_size" in revise_plan(revision.plan, fragmented).changes


def test_a_users_own_allocator_settings_are_left_alone(plan, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    assert "micro_batch_size" in revise_plan(plan, failure(idle=101 * MIB)).changes


def test_a_model_that_does_not_fit_is_not_tried_with_smaller_micro_batches(plan):
    assert revise_plan(plan, failure("start")) is None
    assert "before any micro-batch" in does_not_fit(plan, failure("start")).what


def test_checkpointing_comes_after_the_last_cut(plan):
    plan = plan.replace(may_recompute=True, num_blocks=3, has_batchnorm=True)
    changes = []
    while (revision := revise_plan(plan, failure())) is not None:
        plan = revision.plan
        changes.append(revision)
    assert all("micro_batch_size" in revision.changes for revision in changes[:-1])
    assert changes[-1].changes["activation_checkpointing"] == {"old": False, "new": True}
    assert "BatchNorm needs more than 1 sample" in changes[-1].reason
    assert (
        plan.batch.micro_batch_size.value == 3
    )  # the last step's 29 samples by 2 would leave one over
    finding = does_not_fit(plan, failure())
    assert finding.what.startswith("a micro-batch of 3 samples does not fit")
    assert "BatchNorm needs more than 1 sample" in finding.why
    assert "activation_checkpointing" not in finding.fix


def test_one_sample_that_does_not_fit_names_what_would_help(plan):
    tried = [plan]
    while (revision := revise_plan(tried[-1], failure())) is not None:
        tried.append(revision.plan)
    finding = does_not_fit(tried[-1], failure())
    assert finding.what.startswith("a micro-batch of 1 sample does not fit: rank 1 ran out of")
    assert f"the micro-batch was {plan.batch.micro_batch_size.value} at first" in finding.why
    assert "smaller input" in finding.fix
