"""A real torch.OutOfMemoryError on a GPU whose memory is capped: survived, with the same curve."""

import pytest

from tests.fixtures.event_lines import read_events
from tests.ranks.command import latest, phalanx
from tests.ranks.runs import FIXTURES, losses

RECIPE = f"{FIXTURES / 'recipes' / 'small_card.py'}:SmallCard"
JOB = (
    *("train", RECIPE, "--gpus", "1", "--steps", "8", "--batch-size", "4096"),
    *("precision=fp32", "logging.every=1", "logging.tensorboard=false", "max_restarts=0"),
)


def test_a_capped_gpu_ends_with_the_same_losses(tmp_path):
    code, _, err = phalanx(*JOB, "options.memory_mib=100000", cwd=tmp_path, timeout_s=180)
    assert code == 0, err
    expected = losses(latest(tmp_path))
    code, _, err = phalanx(*JOB, "options.memory_mib=1024", cwd=tmp_path, timeout_s=180)
    assert code == 0, err
    events = read_events(latest(tmp_path).events)
    revisions = [event.data for event in events if event.kind == "revision"]
    assert any("micro_batch_size" in revision["changes"] for revision in revisions)
    assert "tried to allocate" in revisions[0]["reason"]
    assert losses(latest(tmp_path)) == pytest.approx(expected, rel=1e-4)


def test_a_card_that_is_too_small_is_a_finding(tmp_path):
    code, _, err = phalanx(*JOB, "options.memory_mib=300", cwd=tmp_path, timeout_s=180)
    assert code == 1
    assert "error[does-not-fit]" in err
    assert "precision=bf16" in err
