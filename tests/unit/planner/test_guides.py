"""Speed-ups for the hardware that five teams name, with the models they name or describe.

The traces are real ones (benchmarks/planner/guides.py --write); nothing is fitted to the teams'
figures. A prediction is an interval: it and what a team hopes for must have something in common."""

import json
from pathlib import Path

import pytest

from phalanx.codec import from_json
from phalanx.job.load import load_job
from phalanx.machine import parse_machine
from phalanx.planner.scaling import scaling_table
from phalanx.planner.schema.trace import Trace

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"


def row_of(recipe, machine, ranks, **keys):
    trace = from_json(Trace, json.loads((TRACES / f"{recipe}.json").read_text()))
    job = load_job({"recipe": "guide.py:Guide", "steps": 1000, **keys}).job
    (row,) = scaling_table(job, parse_machine(machine), trace, [ranks])
    return row


@pytest.mark.parametrize(
    ("recipe", "machine", "keys", "ranks", "least", "most"),
    [
        pytest.param("Yolo11n", "16x RTX 2080", {"batch_per_gpu": 16}, 16, 13.6, 13.6, id="G1"),
        pytest.param(
            "SeeingPolicy", "2x RTX 4090", {"global_batch_size": 16}, 2, 1.8, 1.9, id="G2"
        ),
        *(
            pytest.param(
                "BevPlanner60M", "8x A100-80", {"batch_per_gpu": 32}, *theirs, id=f"G5-{theirs[0]}"
            )
            for theirs in ((2, 1.8, 1.9), (4, 3.5, 3.8), (8, 6.5, 7.0))
        ),
    ],
)
def test_speedups_are_what_the_guides_hope_for(recipe, machine, keys, ranks, least, most):
    row = row_of(recipe, machine, ranks, **keys)
    low, high = row.speedup_range
    assert low < row.speedup < high < ranks
    assert low <= most and least <= high
    assert row.efficiency == pytest.approx(row.speedup / ranks)


def test_large_models_on_cards_without_a_quick_link_scale_badly():
    row = row_of("Dense340M", "8x RTX 3090", 8, batch_per_gpu=2)
    assert row.speedup < 2 and row.speedup_range[1] < 4, "well under 4"
    quick = row_of("Dense340M", "8x A100-80", 8, batch_per_gpu=2)
    assert quick.speedup > 4, "the same on NVLink"


def test_a_larger_batch_hides_more_of_the_exchange():
    speedups = [
        row_of("Dense340M", "8x RTX 3090", 8, batch_per_gpu=size).speedup for size in (1, 2, 4, 8)
    ]
    assert speedups == sorted(speedups)
