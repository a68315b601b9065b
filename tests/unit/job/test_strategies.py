"""The table of strategies: a job may name them, and their facts fit together."""

import typing

import pytest

from phalanx.job.schema import Job
from phalanx.job.strategies import STRATEGIES, facts_of


def test_a_job_may_name_what_the_table_has():
    wishes = set(typing.get_args(Job.model_fields["strategy"].annotation))
    assert wishes - {"auto"} == set(STRATEGIES) - {"exact"}


@pytest.mark.parametrize("name", STRATEGIES)
def test_facts_fit_together(name):
    facts = facts_of(name)
    assert facts.name == name
    assert not (facts.is_for_one_rank and (facts.is_sharded or facts.is_lockstep))
    assert facts.is_sharded or not (facts.has_zero_stages or facts.has_shard_groups)
    assert not (facts.takes_channels_last and facts.is_sharded)
    assert facts.takes_compile or not facts.takes_cuda_graphs


@pytest.mark.parametrize("name", ["single", "ddp"])
def test_exact_determinism_is_a_way_of_its_own(name):
    assert facts_of(name, "exact").name == "exact"
    assert facts_of(name, "resume").name == name
