"""What the lora recipe writes is what other tools read: PEFT adapters, merged models."""

import json

import pytest
import torch
from safetensors.torch import load_file

from phalanx.engine.rank.worker import run_worker
from phalanx.recipe import UserError
from phalanx.recipe.loading import load_recipe
from phalanx.recipes.lora.base import save_tokenizer
from tests.cli.command import run_cli
from tests.fixtures.export_here import answer_here
from tests.ranks.runs import FIXTURES, full, outcomes
from tests.recipes.lora.logits import from_peft, said, trained_network
from tests.recipes.lora.models import write_model, write_old_model
from tests.recipes.lora.test_training import lora, options_of
from tests.recipes.lora.tiny import CHATML, tiny_tokenizer

ADDED = ["<cup>", "<roll>"]


@pytest.fixture
def ask_here(monkeypatch):
    answer_here(monkeypatch)


def trained(folder, options, **changes):
    settings = {"precision": "fp32", "steps": 2, "checkpoint": {"every": "1 steps"}, **changes}
    run = lora(folder, options, ranks=1, evaluate={"every": None}, **settings)
    assert run_worker(run.path, handle_signals=False), outcomes(run)
    return run


def exported(run, form):
    answer = run_cli("export", str(run.path), "--to", form, "--json")
    assert answer.code == 0, answer.err
    return type(FIXTURES)(json.loads(answer.out)["folder"])


@pytest.mark.usefixtures("ask_here")
@pytest.mark.parametrize(
    ("write", "changes"),
    [
        pytest.param(write_model, {}, id="plain"),
        pytest.param(
            write_model,
            {"rslora": True, "targets": "attention"},
            id="rslora",
            marks=pytest.mark.full,
        ),
        full(write_model, {"dora": True, "dropout": 0.1}, id="dora"),
        full(write_model, {"add_tokens": ADDED}, id="added"),
        pytest.param(
            lambda path: write_model(path, tie=True),
            {"add_tokens": ADDED},
            id="added-tied",
            marks=pytest.mark.full,
        ),
        # Its layers keep their weights the other way around.
        pytest.param(write_old_model, {"dora": True}, id="turned"),
    ],
)
def test_peft_and_transformers_say_what_the_trained_network_says(tmp_path, rows, write, changes):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = write(tmp_path / "model")
    options = options_of(model, rows, **changes)
    run = trained(tmp_path / "runs", options)
    network = trained_network(run, options, torch.float32)
    tokens = torch.tensor([[7, 9, 260, 3], [1, 2, 261, 262]]) if "add_tokens" in changes else None
    given = {} if tokens is None else {"tokens": tokens}
    expected = said(network, **given)

    grown = 263 if "add_tokens" in changes else None
    for folder in (run.checkpoints / "latest", run.final_model, exported(run, "adapter")):
        found = said(from_peft(model, folder, torch.float32, tokens=grown), **given)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    merged = exported(run, "merged")
    found = said(AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32), **given)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    base = said(from_peft(model, run.final_model, torch.float32, tokens=grown).unload(), **given)
    assert (base - expected).abs().max() > 0.01, "nothing was learned"

    half = exported(run, "gguf-ready")
    assert json.loads((half / "config.json").read_text())["dtype"] == "float16"
    assert {t.dtype for t in load_file(half / "model.safetensors").values()} == {torch.float16}
    for folder in (merged, half, run.final_model):
        assert AutoTokenizer.from_pretrained(folder).encode("<cup>") == (
            [261] if "add_tokens" in changes else list(recipe_tokens(options))
        )


def recipe_tokens(options):
    return load_recipe("lora", options).tokenizer.encode("<cup>")


def test_magnitudes_and_added_rows_begin_as_they_should(tmp_path, rows):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    for write in (write_model, write_old_model):
        model = write(tmp_path / write.__name__)
        recipe = load_recipe("lora", options_of(model, rows, dora=True, targets="attention"))
        targets = [n.rsplit(".", 3)[0] for n in recipe.weights() if "magnitude" in n]
        assert targets and not any("mlp" in name for name in targets)
        config = LoraConfig(r=4, use_dora=True, target_modules=targets)
        peft = get_peft_model(AutoModelForCausalLM.from_pretrained(model), config)
        begun = {n: p for n, p in peft.named_parameters() if "magnitude" in n}
        assert begun
        placed = recipe.weights()
        for name, magnitude in begun.items():
            stored = placed[name.removeprefix("base_model.model.")]
            found = load_file(stored.file)[stored.name]
            torch.testing.assert_close(found, magnitude.detach(), rtol=0, atol=1e-6)
    model = str(tmp_path / "write_model")
    placed = load_recipe("lora", options_of(model, rows, add_tokens=ADDED)).weights()
    before = load_file(tmp_path / "write_model" / "model.safetensors")["model.embed_tokens.weight"]
    stored = placed["model.embed_tokens.modules_to_save.default.weight"]
    after = load_file(stored.file)[stored.name]
    assert torch.equal(after[:261], before)
    torch.testing.assert_close(after[261:], before.mean(0).expand(2, -1))


@pytest.mark.full
@pytest.mark.usefixtures("ask_here")
def test_four_bits_train_and_merge_into_all_of_them(tmp_path, rows):
    from transformers import AutoModelForCausalLM

    model = write_model(tmp_path / "model")
    runs = {}
    for bits in ("4bit", None):
        options = options_of(model, rows, quantize=bits)
        runs[bits] = trained(tmp_path / f"runs-{bits}", options)
    packed = load_recipe("lora", options_of(model, rows, quantize="4bit")).model()
    kinds = {type(m).__name__ for n, m in packed.named_modules() if n.endswith("base_layer")}
    assert kinds == {"Nf4Linear"}

    # From frozen weights as near as 4 bits are the adapters learn the same way, not the same bits.
    said_of = {
        bits: said(AutoModelForCausalLM.from_pretrained(exported(run, "merged"), dtype="float32"))
        for bits, run in runs.items()
    }
    untrained = said(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32))
    moved = [(said_of[bits] - untrained).flatten() for bits in ("4bit", None)]
    assert moved[0].norm() > 0
    assert torch.cosine_similarity(*moved, dim=0) > 0.7


@pytest.mark.parametrize("name", ["../../outside", "/outside", "..", "sub/name", "a\0b"])
def test_a_chat_template_is_not_written_outside_of_the_folder(tmp_path, name):
    folder = tmp_path / "a" / "b" / "export"
    folder.mkdir(parents=True)
    with pytest.raises(UserError, match="lora-template-name"):
        save_tokenizer(tiny_tokenizer({"default": CHATML, name: CHATML}), folder)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    save_tokenizer(tiny_tokenizer({"default": CHATML, "tool_use": CHATML}), folder)
    assert sorted(path.name for path in folder.rglob("*.jinja")) == [
        "chat_template.jinja",
        "tool_use.jinja",
    ]
