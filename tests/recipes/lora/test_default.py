"""The recipe as it comes: real weights learn a real skill, with nothing prepared."""

import pytest

from phalanx.run.events import read_events
from tests.ranks.command import latest, phalanx

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(900)]


def test_held_out_orders_are_written_exactly_after_a_few_steps(tmp_path):
    """A shorter run than the default's: 30 steps of 8 rows instead of 60 of 16."""
    code, _, err = phalanx(
        "train",
        "lora",
        "--cpu",
        "1",
        "--batch-size",
        "8",
        "--steps",
        "30",
        "completions=2",
        cwd=tmp_path,
        timeout_s=850,
    )
    assert code == 0, err
    run = latest(tmp_path)
    events = list(read_events(run.events))
    before, *_, after = [e.data for e in events if e.kind == "evaluate"]
    assert before["step"] == 0
    assert before["metrics"]["exact_match"] <= 0.02
    assert after["metrics"]["exact_match"] >= 0.8
    assert after["metrics"]["loss"] < before["metrics"]["loss"] / 10
    written = [e.data["samples"] for e in events if e.kind == "samples"][-1]
    assert any(sample["made"] == sample["wanted"] for sample in written)
    assert (run.path / "final_model" / "adapter_model.safetensors").is_file()
