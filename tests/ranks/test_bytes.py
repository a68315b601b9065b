"""The planner's figures for each rank are the bytes that the rank really holds."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.job import load_job
from phalanx.planner.memory.prediction import make_footprint
from phalanx.planner.memory.shares import Share
from phalanx.planner.schema.footprint import Line
from phalanx.tracing.trace import trace_recipe
from tests.ranks.held import predict, predicted
from tests.ranks.runs import BASE, FIXTURES, full, make_run

# 23 columns, a parameter without a dimension, rows of 3 for 4 ranks, and a part that is frozen.
ODD = {"blocks": 2, "gain": True, "cast": True, "frozen": True, "width": 23}
SHORT = {"steps": 2, "global_batch_size": 12, "ema": {"decay": 0.9}, "evaluate": {"every": None}}


def assert_as_predicted(pool, run, ranks, env=None):
    held = pool.run("tests.ranks.held:train", ranks=ranks, env=env, path=str(run.path))
    expected, largest = predicted(run, ranks)
    assert held == expected
    assert sum(largest) == max(sum(share) for share in expected)
    return expected


@pytest.mark.parametrize(
    ("ranks", "strategy", "changes"),
    [
        full(2, "ddp", {"precision": "fp64"}, id="ddp"),
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


def child(module, request):
    """What a program of these tests answers."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.ranks.{module}", json.dumps(request)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
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
    answers = child("of_many", [records, ranks])
    for record, found in zip(records, answers, strict=True):
        job = load_job(record).job
        shards = job.fsdp.shard_ranks or 64
        expected, _ = predict(job, job.strategy, "bf16", shards=shards, ranks=ranks)
        assert [Share(*share) for share in found] == expected
        assert len(set(expected)) > 1


@pytest.mark.full
def test_fsdp_gathers_what_the_planner_says():
    spec = f"{FIXTURES / 'recipes' / 'learners.py'}:SequenceRecipe"
    base = {"heads": 4, "depth": 4, "samples": 64}
    cases = [
        # The most memory is needed in the loss, in a block, and where gradients are most of it.
        (spec, {**base, "width": 32, "length": 16, "symbols": 2000}, 4, 2),
        (spec, {**base, "width": 64, "length": 64, "symbols": 50}, 8, 2),
        (spec, {**base, "width": 64, "length": 8, "symbols": 50}, 2, 2),
    ]
    predicted, real, blocks = [], [], []
    for (recipe, options, _, ranks), found in zip(cases, child("gathering", cases), strict=True):
        alone, with_gradients, peak = found
        trace, _ = trace_recipe(recipe, options)
        job = load_job({**BASE, "recipe": recipe, "strategy": "fsdp", "options": options}).job
        footprint = replace(
            make_footprint(job, trace, "fp32", "fsdp", shards=ranks),
            kept=[Line(alone, 0)],
            kept_with_gradients=[Line(with_gradients, 0)],
        )
        parts = footprint.parts(
            micro_batch=1, samples=0, is_checkpointed=False, shards=ranks, is_one_pass=True
        )
        predicted.append(parts.gradients + parts.gathered + parts.activations)
        real.append(peak)
        blocks.append(trace.largest_block_bytes)
    assert predicted[0] == real[0] + blocks[0], "one block less is gathered in the loss"
    assert predicted[1] == real[1] + 256, "half of the 512 bytes of the first gradients"
    assert real[2] < predicted[2] < 1.3 * real[2]
