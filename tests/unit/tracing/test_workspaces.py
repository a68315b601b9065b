"""What libraries take besides tensors, against what they took of a GPU
(benchmarks/planner/workspaces.py)."""

import json
from pathlib import Path

import pytest
import torch

from phalanx.tracing import recurrence
from phalanx.tracing.workspaces import (
    convolution_workspace,
    counting_workspace,
    recurrent_workspace,
)

MEASURED = Path(__file__).parents[3] / "benchmarks" / "planner" / "measured"
ROWS = [
    json.loads(line)
    for line in (MEASURED / "2026-11-15-h200-workspaces.jsonl").read_text().splitlines()
]
GATES = {"LSTM": 4, "GRU": 3}
STEPS, SAMPLES, UNITS = 100, 64, 512  # as they were measured


def empty(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    "row",
    [r for r in ROWS if r["what"] in GATES and "float32" in r["dtype"]],
    ids=lambda row: f"{row['what']}-{row['layers']}-{'both' if row['both'] else 'one'}",
)
def test_recurrent_layers_keep_and_take_what_cudnn_does(row):
    gates, layers, directions = GATES[row["what"]], row["layers"], 1 + row["both"]
    kept = recurrence._KEPT[gates] * layers * directions + (layers - 1) * directions
    assert kept == pytest.approx(row["kept_units"], abs=0.3), "numbers of a unit and step"
    taken = recurrent_workspace(empty(STEPS, SAMPLES, 256), UNITS, gates, layers, directions)
    held = kept + directions  # and the output
    measured = row["forward_peak_units"] - held
    assert taken / (STEPS * SAMPLES * UNITS * 4) == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize(
    "row",
    [r for r in ROWS if r["what"] == "Conv2d" and r["mode"] != "fp32" and r["shape"][4] == 3],
    ids=lambda row: f"{row['mode']}-{'x'.join(map(str, row['shape']))}",
)
def test_convolutions_on_tensor_cores_are_turned_around(row):
    samples, inputs, outputs, size, window, stride = row["shape"]
    dtype = torch.bfloat16 if row["mode"] == "bf16" else torch.float32
    taken = convolution_workspace(
        empty(samples, inputs, size, size, dtype=dtype),
        empty(outputs, inputs, window, window, dtype=dtype),
        empty(samples, outputs, size // stride, size // stride, dtype=dtype),
        (stride, stride),
        1,
        is_exact=False,
    )
    assert taken == row["x"] + row["out"]
    # cuDNN adds weights and a little of its own; of a stride it sometimes turns one of both.
    most = max(row["forward_extra"], row["backward_extra"])
    assert taken <= 1.02 * most + 2**20
    assert most <= 1.15 * taken + 5 * row["weight"] + 2**20


def test_single_pixels_are_not_turned_and_booleans_are_counted_in_int64():
    x, out = empty(64, 256, 56, 56), empty(64, 64, 56, 56)
    assert convolution_workspace(x, empty(64, 256, 1, 1), out, (1, 1), 1, is_exact=False) == 0
    ties = empty(64, 1024, 1024, dtype=torch.bool)
    assert counting_workspace(ties, empty(64, 1024, 1, dtype=torch.int64)) == 8 * ties.numel()
    assert counting_workspace(empty(4, 4), empty(4)) == 0
