"""The planner's figures for each rank are the bytes that the rank really holds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.job import load_job
from phalanx.planner.shares import Share
from tests.ranks.held import predict, predicted
from tests.ranks.runs import BASE, make_run

# 23 columns, a parameter without a dimension, rows of 3 for 4 ranks, and a part that is frozen.
ODD = {"blocks": 2, "gain": True, "cast": True, "frozen": True, "width": 23}
SHORT = {"steps": 2, "global_batch_size": 12, "ema": {"decay": 0.9}, "evaluate": {"every": None}}


def assert_as_predicted(pool, run, ranks):
    held = pool.run("tests.ranks.held:train", ranks=ranks, path=str(run.path))
    expected, largest = predicted(run, ranks)
    assert held == expected
    assert sum(largest) == max(sum(share) for share in expected)
    return expected


@pytest.mark.parametrize(
    ("ranks", "strategy", "changes"),
    [
        pytest.param(2, "ddp", {"precision": "fp64"}, id="ddp"),
        pytest.param(2, "fsdp", {"precision": "bf16"}, id="fsdp-2"),
        pytest.param(4, "fsdp", {"optimizer": {"name": "sgd", "lr": 0.01}}, id="fsdp-4"),
        pytest.param(4, "fsdp", {"fsdp": {"shard_ranks": 2, "build": "parts"}}, id="2-replicas"),
    ],
)
def test_a_rank_holds_what_the_planner_says(pool, tmp_path, ranks, strategy, changes):
    settings = {"precision": "fp32", **SHORT, **changes}
    run = make_run(tmp_path, ranks=ranks, strategy=strategy, options=ODD, **settings)
    shares = assert_as_predicted(pool, run, ranks)
    assert (len(set(shares)) > 1) == (strategy == "fsdp"), "not every rank holds as much"


def test_any_rank_of_64_holds_what_the_planner_says():
    base = {**BASE, "options": ODD, "precision": "bf16", "ema": {"decay": 0.9}}
    small = {"zero_optimization": {"stage3_param_persistence_threshold": 60}}
    records = [
        {**base, "strategy": "fsdp"},
        {**base, "strategy": "fsdp", "fsdp": {"shard_ranks": 8}},
        *(
            {**base, "strategy": "deepspeed", "deepspeed": {"stage": stage, "config": small}}
            for stage in (1, 2, 3)
        ),
    ]
    ranks = [0, 1, 37, 63]
    argv = [sys.executable, "-m", "tests.ranks.of_many", json.dumps([records, ranks])]
    done = subprocess.run(
        argv,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for record, found in zip(records, json.loads(done.stdout.splitlines()[-1]), strict=True):
        job = load_job(record).job
        shards = job.fsdp.shard_ranks or 64
        expected, _ = predict(job, job.strategy, "bf16", shards=shards, ranks=ranks)
        assert [Share(*share) for share in found] == expected
        assert len(set(expected)) > 1
