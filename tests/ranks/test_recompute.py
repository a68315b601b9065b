"""`activation_checkpointing: on` is `off`, bit for bit: dropout, BatchNorm, every strategy."""

import pytest

from tests.fixtures.event_lines import read_events
from tests.ranks.runs import assert_same_bits, full, losses, make_run, train

# Dropout and BatchNorm inside the blocks; 4 slots a step.
OPTIONS = {"batchnorm": True, "blocks": 3}
ZERO = {"precision": "fp32", "deepspeed": {"stage": 3}}


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        full(1, {}, id="single"),
        pytest.param(2, {}, id="ddp"),
        full(2, {"determinism": "exact"}, id="exact"),
        pytest.param(3, {"strategy": "fsdp"}, id="fsdp"),
        full(2, {"strategy": "deepspeed", **ZERO}, id="deepspeed"),
    ],
)
def test_recomputing_changes_no_bit(pool, tmp_path, ranks, changes):
    runs = {}
    for word in ("off", "on"):
        run = make_run(
            tmp_path / word,
            ranks=ranks,
            options={**OPTIONS, "cast": "precision" in changes},
            steps=6,
            activation_checkpointing=word,
            **changes,
        )
        runs[word] = train(pool, run, ranks=ranks)
    assert losses(runs["on"]) == losses(runs["off"])
    assert_same_bits(runs["on"], runs["off"])
    figures = [
        [event.data["metrics"] for event in read_events(run.events) if event.kind == "evaluate"]
        for run in runs.values()
    ]
    assert figures[0] == figures[1]
