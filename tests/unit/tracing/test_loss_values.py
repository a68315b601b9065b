"""A loss that looks at values is traced with those of real samples, like its twin that does not."""

import time
from functools import cache
from pathlib import Path

import pytest
import torch

from phalanx.tracing import activations
from phalanx.tracing.trace import trace_recipe

LOOKING = f"{Path(__file__).parents[2] / 'fixtures' / 'recipes' / 'looking.py'}:Looking"
FOUND = ("activation_bytes", "checkpointed_bytes", "operators", "checkpointed_operators")


@cache
def trace(how):
    found, findings = trace_recipe(LOOKING, {"how": how})
    assert findings == []
    return found


def products(operators):
    """What is multiplied, whatever is copied around it."""
    return {
        (o.phase, o.dtype, o.shape): sum(
            p.times for p in operators if (p.phase, p.dtype, p.shape) == (o.phase, o.dtype, o.shape)
        )
        for o in operators
        if o.kind == "product"
    }


@pytest.mark.parametrize("how", ["item", "tolist"])
def test_a_loss_that_reads_a_number_has_the_lines_and_operators_of_its_twin(how):
    found, twin = trace(how), trace("not")
    assert twin.activations_sampled is None
    assert "DataDependentOutputException" in found.activations_sampled
    assert found.activations_unknown is None
    for name in FOUND:
        assert getattr(found, name) == getattr(twin, name), name


@pytest.mark.parametrize("how", ["numpy", "mask", "nonzero", "counted"])
def test_other_ways_to_look_at_values_have_the_products_of_the_twin(how):
    found, twin = trace(how), trace("not")
    assert found.activations_sampled is not None
    for name in ("operators", "checkpointed_operators"):
        for precision, operators in getattr(twin, name).items():
            assert products(getattr(found, name)[precision]) == products(operators)
    for mine, other in zip(
        found.activation_bytes["fp32"], twin.activation_bytes["fp32"], strict=True
    ):
        # A mask or its positions more for each layer.
        assert 0 <= mine.per_sample - other.per_sample <= 3 * 8
        assert mine.fixed == other.fixed


def test_what_a_mask_picks_grows_with_the_batch():
    # 12 of the 23 samples: no multiple of them, and still more where there are more.
    extra = [
        max(line.at(n) for line in trace("half").activation_bytes["fp32"])
        - max(line.at(n) for line in trace("not").activation_bytes["fp32"])
        for n in (100, 200)
    ]
    assert extra[1] == pytest.approx(2 * extra[0], rel=0.01)


def test_a_slow_forward_is_run_with_few_samples(monkeypatch):
    """What the answers of two samples say of masks is scaled to all."""
    quick = {how: trace(how) for how in ("item", "mask")}
    sizes = []
    look = activations._look

    def slowly(recipe, model, data, ids, limit_s):
        sizes.append(len(ids))
        time.sleep(0.2)
        return look(recipe, model, data, ids, limit_s)

    monkeypatch.setattr(activations, "_look", slowly)
    monkeypatch.setattr(activations, "_REAL_S", 2.0)  # 23 samples would take 2.3 s
    for how, other in quick.items():
        found = trace.__wrapped__(how)
        assert found.activations_unknown is None
        for name in FOUND:
            assert getattr(found, name) == getattr(other, name), (how, name)
    assert set(sizes) == {2}


def test_too_many_parameters_or_too_long_a_forward_are_not_tried(monkeypatch):
    monkeypatch.setattr(activations, "_REAL_PARAMETERS", 1000)
    found, _ = trace_recipe(LOOKING, {"how": "item"})
    assert found.operators == {} and found.activations_sampled is None
    assert "on real samples: not tried" in found.activations_unknown
    monkeypatch.setattr(activations, "_REAL_PARAMETERS", 10**9)
    monkeypatch.setattr(activations, "_REAL_S", -1.0)
    found, _ = trace_recipe(LOOKING, {"how": "item"})
    assert "takes more than" in found.activations_unknown


def test_the_real_forward_keeps_nothing_for_backward(monkeypatch):
    """It would take the memory of training otherwise."""
    asked = []
    hooks = torch.autograd.graph.saved_tensors_hooks

    def counted(pack, unpack):
        return hooks(lambda tensor: asked.append(pack(tensor)), unpack)

    monkeypatch.setattr(torch.autograd.graph, "saved_tensors_hooks", counted)
    trace.__wrapped__("item")
    assert len(asked) > 10 and set(asked) == {None}
