"""The recipe as it comes: real weights learn a real skill, with nothing prepared."""

from pathlib import Path

import pytest

import phalanx
from tests.fixtures.event_lines import read_events
from tests.ranks.command import latest
from tests.ranks.command import phalanx as run_phalanx

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(900)]

HELD_OUT = Path(phalanx.__file__).parent / "recipes" / "lora" / "skill_test.jsonl"


@pytest.mark.full
@pytest.mark.parametrize(("batch", "held_out", "given"), [(4, 6, ["pad_to=8"]), (8, 3, [])])
def test_held_out_orders_are_written_exactly_after_a_few_steps(tmp_path, batch, held_out, given):
    """A shorter run than the default's: 24 steps of 4 rows instead of 60 of 16, without columns
    that only fill up, and every sixth of the held-out rows."""
    rows = HELD_OUT.read_text(encoding="utf-8").splitlines()[::held_out]
    (tmp_path / "held_out.jsonl").write_text("\n".join(rows), encoding="utf-8")
    shipped = HELD_OUT.with_name("skill.jsonl")
    code, _, err = run_phalanx(
        *("train", "lora", "--cpu", "1", "--batch-size", str(batch), "--steps", "24"),
        *(f"data={shipped}", "test_data=held_out.jsonl", "completions=2", "max_new_tokens=16"),
        *given,
        cwd=tmp_path,
        timeout_s=850,
    )
    assert code == 0, err
    run = latest(tmp_path)
    events = list(read_events(run.events))
    before, *_, after = [e.data for e in events if e.kind == "evaluate"]
    assert before["step"] == 0
    assert before["metrics"]["exact_match"] == 0
    assert after["metrics"]["exact_match"] >= 0.8
    assert after["metrics"]["loss"] < before["metrics"]["loss"] / 10
    written = [e.data["samples"] for e in events if e.kind == "samples"][-1]
    assert any(sample["made"] == sample["wanted"] for sample in written)
    assert (run.path / "final_model" / "adapter_model.safetensors").is_file()
