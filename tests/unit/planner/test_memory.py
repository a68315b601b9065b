"""What a rank needs memory for, and when activations are recomputed."""

import pytest


@pytest.mark.parametrize(("asked", "is_on"), [("on", True), (True, True), ("off", False)])
def test_activations_are_recomputed_when_asked(solve, asked, is_on):
    plan, findings = solve("cpu", activation_checkpointing=asked, trace={"num_blocks": 12})
    assert plan.activation_checkpointing.value is is_on
    assert "12 blocks" in plan.activation_checkpointing.reason
    assert findings == []


def test_a_model_without_blocks_is_a_finding_when_asked(solve):
    plan, (finding,) = solve("cpu", activation_checkpointing="on")
    assert plan.activation_checkpointing.value is False
    assert (finding.slug, finding.severity) == ("no-blocks", "warning")
    assert "blocks(self, model)" in finding.fix
    plan, findings = solve("cpu", activation_checkpointing="auto")
    assert "no repeated part" in plan.activation_checkpointing.reason
    assert findings == []
