"""What of a model is exported when a recipe does not say it: the forward that `evaluate` calls."""

import pytest
import torch
from torch import nn

from phalanx.engine.model.exported_forward import Forward, find_exported, stand_in
from phalanx.errors import UserError
from phalanx.recipe import Recipe


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, image, scale=1.0, *, mask=None, others=None):
        made = self.layer(image) * scale
        if mask is not None:
            made = made * mask
        if others is not None:
            made = made + others["bias"]
        return {"scores": made, "parts": (made.sum(1), made.argmax(1))}


class Calls(Recipe):
    def __init__(self, call, times=1):
        super().__init__(None)
        self.call, self.times = call, times

    def evaluate(self, model, batch):
        for _ in range(self.times):
            made = self.call(model, batch)
        return {"sum": made["scores"].sum(), "first": made["parts"][0].sum()}


BATCH = {"x": torch.randn(4, 3), "mask": torch.ones(4, 1), "bias": torch.randn(4, 2)}


@pytest.mark.parametrize(
    ("call", "inputs"),
    [
        (lambda m, b: m(b["x"], 2.0), ["image"]),
        (lambda m, b: m(image=b["x"], mask=b["mask"]), ["image", "mask"]),
        (lambda m, b: m(b["x"], others={"bias": b["bias"]}), ["image", "others_bias"]),
    ],
    ids=["positional", "named", "nested"],
)
def test_a_call_is_exported_under_its_names(call, inputs):
    torch.manual_seed(0)
    recipe, model = Calls(call), Two().eval()
    exported = find_exported(recipe, model, BATCH)
    named = exported.inputs(BATCH)
    assert list(named) == inputs
    assert list(exported.outputs) == ["scores", "parts_0", "parts_1"]
    module = Forward(exported.module)
    wanted = call(model, BATCH)
    made = module(*named.values())
    for one, other in zip(made, (wanted["scores"], *wanted["parts"]), strict=True):
        assert torch.equal(one, other)
    # And back: `evaluate` is given something that looks like the model and runs the file.
    seen = []

    def run(**given):
        seen.append(list(given))
        return module(*given.values())

    sums = recipe.evaluate(stand_in(exported, run), BATCH)
    assert seen == [inputs]
    assert sums == recipe.evaluate(model, BATCH)


def test_one_tensor_is_called_output():
    class One(Recipe):
        def evaluate(self, model, batch):
            return {"sum": model(batch["x"]).sum()}

    exported = find_exported(One(None), nn.Linear(3, 2), BATCH)
    assert (list(exported.inputs(BATCH)), list(exported.outputs)) == (["input"], ["output"])


@pytest.mark.parametrize("times", [0, 2])
def test_what_is_not_one_call_is_a_finding(times):
    class Odd(Recipe):
        def evaluate(self, model, batch):
            return {"n": sum(model(batch["x"])["scores"].sum() for _ in range(times))}

    with pytest.raises(UserError) as caught:
        find_exported(Odd(None), Two(), BATCH)
    (finding,) = caught.value.findings
    assert finding.slug == "export-unclear"
    assert f"{times} times" in finding.why


def test_half_takes_and_gives_what_fp32_does():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x, places):
            assert x.dtype == torch.float16
            return self.layer(x), places

    module = Forward(Layers().half(), is_half=True)
    scores, places = module(torch.randn(4, 3), torch.arange(4))
    assert (scores.dtype, places.dtype) == (torch.float32, torch.int64)
