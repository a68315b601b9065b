"""Samples kept in memory: the same bits as without, made once per machine, nothing left behind."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from phalanx.engine.data import sample_cache
from phalanx.planner.schema.plan import Plan
from tests.ranks.runs import (
    BASE,
    FIXTURES,
    assert_same_bits,
    change_run,
    losses,
    make_run,
    train,
)

# 50 samples at 10 are 5 steps an epoch: a bit more than three epochs.
CHANGES = {**BASE, "recipe": f"{FIXTURES / 'recipes' / 'kept.py'}:Kept", "steps": 16}
SAMPLES, TEST_SAMPLES = 50, 13


def plan_of(run):
    return Plan.from_json(json.loads(run.plan_file.read_text()))


def made(log):
    lines = log.read_text().split()
    log.unlink()
    return Counter(int(line) for line in lines)


@pytest.fixture(scope="module")
def without(pool, tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("without"), ranks=2, **CHANGES)
    return train(pool, run, ranks=2)


def test_each_sample_is_made_once_and_nothing_else_changes(pool, tmp_path, without):
    log = tmp_path / "log"
    changes = {**CHANGES, "options": {"log": str(log)}, "loader": {"cache": "ram", "workers": 2}}
    run = make_run(tmp_path / "runs", ranks=2, **changes, stop_after="11 steps")
    assert "keeps all 50 samples and 13 of the test split" in plan_of(run).loading.cache.reason
    log.unlink()  # planning looked at some
    train(pool, run, ranks=2)
    counts = made(log)
    # 11 steps are 2.2 epochs and two evaluations.
    assert counts.keys() == {*range(SAMPLES), *range(1000, 1000 + TEST_SAMPLES)}
    # Two loader processes may make the same one at the same time. Without, it would be 246.
    assert sum(counts.values()) < 2 * (SAMPLES + TEST_SAMPLES)
    change_run(run, stop_after=None)
    log.unlink()
    train(pool, run, ranks=2, attempt=1)
    assert losses(run) == losses(without)
    assert_same_bits(run, without)


def test_on_disk_a_later_run_makes_none_of_them(pool, tmp_path, without):
    log = tmp_path / "log"
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    changes = {**CHANGES, "options": {"log": str(log)}, "loader": {"cache": "disk"}}
    for number in range(2):
        run = make_run(tmp_path / f"runs-{number}", ranks=2, **changes)
        plan = plan_of(run)
        assert plan.loading.cache.value == "disk"
        run.write_plan(plan.replace(cache_bytes=2**30).to_json())  # the test's disk was not asked
        log.unlink()  # planning looked at some
        train(pool, run, ranks=2, env=env)
        assert losses(run) == losses(without)
        assert_same_bits(run, without)
        if number == 0:
            assert made(log).keys() >= {*range(SAMPLES)}
    assert not log.exists() or not log.read_text()


def test_what_does_not_fit_is_made_each_time(pool, tmp_path, without):
    log = tmp_path / "log"
    changes = {**CHANGES, "options": {"log": str(log)}, "loader": {"cache": "ram"}}
    run = make_run(tmp_path / "runs", ranks=2, **changes)
    log.unlink()
    plan = plan_of(run)
    room = 576 + 7 * 256  # the table of places, and seven samples
    run.write_plan(plan.replace(cache_bytes=room).to_json())
    train(pool, run, ranks=2)
    often = [index for index, count in made(log).items() if count > 2 and index < 1000]
    assert 4 <= SAMPLES - len(often) <= 7  # some may be kept twice
    assert losses(run) == losses(without)
    assert_same_bits(run, without)


@pytest.mark.parametrize("has_memfd", [True, False])
def test_the_memory_has_no_name_once_all_have_it(pool, tmp_path, has_memfd):
    for links, kept, names in pool.run(
        "tests.ranks.test_cache:share", ranks=2, folder=str(tmp_path), has_memfd=has_memfd
    ):
        assert links == 0  # whatever is killed from here on, the system frees it
        assert kept == ["from 0", "from 1"]
        assert names == []


def share(folder, has_memfd):
    """Every rank keeps a sample and reads all of them."""
    import torch
    import torch.distributed as dist

    from phalanx.engine.process.group import Process

    os.environ["TMPDIR"] = folder
    sample_cache.tempfile.tempdir = None
    before = sample_cache._has_memfd
    sample_cache._has_memfd = lambda: has_memfd
    dist.init_process_group("gloo")
    try:
        rank, world = dist.get_rank(), dist.get_world_size()
        process = Process(rank, world, torch.device("cpu"), "gloo", local_rank=rank)
        cache = sample_cache.open_cache(process, samples=world, limit_bytes=2**20)
        cache.put(rank, f"from {rank}")
        process.barrier()
        kept = [cache.get(index) for index in range(world)]
        return os.fstat(cache._file).st_nlink, kept, [p.name for p in Path(folder).iterdir()]
    finally:
        dist.destroy_process_group()
        sample_cache._has_memfd = before
        del os.environ["TMPDIR"]
        sample_cache.tempfile.tempdir = None
