"""A fine-tuned model as a graph: tokens in, the trained network's scores out, of any length."""

import onnxruntime
import pytest
import torch

from phalanx.errors import UserError
from phalanx.recipe.loading import load_recipe
from phalanx.recipes.lora.forward import exported_forward
from phalanx.verbs.export import Settings, export_trained
from tests.fixtures.export_here import answer_here
from tests.recipes.lora.logits import TOKENS, said, trained_network
from tests.recipes.lora.models import write_translator
from tests.recipes.lora.test_exports import trained
from tests.recipes.lora.test_training import options_of


def test_onnx_says_what_the_trained_network_says(tmp_path, model, rows, monkeypatch):
    answer_here(monkeypatch)
    options = options_of(model, rows)
    run = trained(tmp_path / "runs", options, threads=1)
    done = export_trained(
        str(run.path), form="onnx", settings=Settings(dynamic=True), out=tmp_path / "onnx"
    )
    assert done.is_complete
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "model.onnx"))
    network = trained_network(run, options, torch.float32)
    for tokens in (TOKENS, TOKENS[:1, :5]):
        (found,) = session.run(["logits"], {"input_ids": tokens.numpy()})
        torch.testing.assert_close(
            torch.from_numpy(found), said(network, tokens), rtol=0, atol=1e-4
        )


@pytest.mark.parametrize("kind", ["translator", "4bit"])
def test_what_is_not_offered_is_a_finding(tmp_path, model, rows, kind):
    if kind == "translator":
        model = tmp_path / "t5"
        write_translator(model)
    changes = {"quantize": "4bit"} if kind == "4bit" else {}
    recipe = load_recipe("lora", options_of(str(model), rows, **changes))
    with pytest.raises(UserError) as caught:
        exported_forward(recipe, torch.nn.Identity())
    (finding,) = caught.value.findings
    assert finding.slug == "export-not-offered"
    assert ("quantize=null" if kind == "4bit" else "--to merged") in finding.fix
