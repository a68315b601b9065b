"""Any text and vision model of transformers: asked once, and what it said is kept."""

import json

import numpy as np
import pytest
import torch

from phalanx.recipe.loading import load_recipe
from phalanx.recipes.policy import vision
from phalanx.recipes.policy.options import SIZES
from phalanx.recipes.policy.text import embed_texts
from tests.recipes.lora.models import write_translator
from tests.recipes.policy.robots import SMALL, write_swings


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Demonstrations with a camera."""
    folder = tmp_path_factory.mktemp("data") / "pictures"
    return write_swings(folder, episodes=2, steps=4, cameras=("wrist",))


@pytest.fixture(scope="module")
def seer(tmp_path_factory):
    """A folder with a small SigLIP, its text half included, as the hub has it."""
    from transformers import SiglipConfig, SiglipModel

    folder = tmp_path_factory.mktemp("siglip")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
             "num_attention_heads": 2}  # fmt: skip
    config = SiglipConfig(
        text_config={**sizes, "vocab_size": 50},
        vision_config={**sizes, "image_size": 48, "patch_size": 8},
    )
    SiglipModel(config).save_pretrained(folder)
    about = {"size": {"height": 48, "width": 48}, "image_mean": [0.4] * 3, "image_std": [0.2] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(about))
    return str(folder)


def recipe_of(data, **options):
    given = {"data": str(data), "cameras": ["wrist"], "image_size": 32}
    recipe = load_recipe("policy", {**given, **SMALL, **options})
    findings = [finding for finding in recipe.check() if finding.severity == "error"]
    assert not findings, findings
    return recipe


def test_a_frozen_model_looks_once(pictures, seer, monkeypatch):
    recipe = recipe_of(pictures, vision_encoder=seer)
    assert recipe.options.seen_size == 32
    data = recipe.data("train")
    batch = data.__getitems__(np.arange(3), np.arange(3))
    assert batch["seen"].shape == (3, 1, 16, 32)  # a grid of 6 x 6 as one of 4 x 4
    step = recipe.parts["train"].steps[2]
    again = vision.Frozen(seer).look(recipe.demonstrations.images["wrist"][step : step + 1])
    np.testing.assert_allclose(batch["seen"][2, 0], again[0], atol=2e-3)
    model = recipe.model()
    assert model.vision is None  # nothing of it is trained or saved
    made = model(batch, torch.randn(3, 4, 2))
    assert made.shape == (3, 4, 2)
    monkeypatch.setattr(vision, "load_vision", None)
    assert len(recipe_of(pictures, vision_encoder=seer).data("train")) == len(data)


def test_a_model_that_learns_is_part_of_the_policy(pictures, seer):
    recipe = recipe_of(pictures, vision_encoder=seer, train_vision=True)
    model = recipe.model()
    batch = recipe.data("train").__getitems__(np.arange(2), np.arange(2))
    assert "images" in batch
    with torch.no_grad():
        model.action_out.weight.normal_()
    recipe.loss(model, batch, torch.arange(2))["denoising"].sum.backward()
    first = next(p for n, p in model.vision.named_parameters() if "patch_embedding" in n)
    assert first.grad.abs().max() > 0


def test_the_encoder_of_a_t5_embeds_descriptions(tmp_path, pictures):
    folder = write_translator(tmp_path / "t5") or str(tmp_path / "t5")
    rows = embed_texts(["a cup of tea", "two rolls with milk please"], folder)
    assert rows.shape == (2, 32)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    alone = embed_texts(["a cup of tea"], folder)  # padding of a longer one changes nothing
    np.testing.assert_allclose(alone[0], rows[0], atol=1e-5)


@pytest.mark.parametrize(
    ("size", "low", "high"),
    [("tiny", 0.8e6, 1.2e6), ("6m", 5.5e6, 7.5e6), ("170m", 160e6, 185e6), ("1b", 0.95e9, 1.1e9)],
)
def test_sizes_are_what_they_are_called(size, low, high):
    sizes = {"state_size": 39, "action_size": 4, "text_size": 384, "tasks": ["a"], "seen_size": 0}
    with torch.device("meta"):
        model = load_recipe("policy", {"data": "/nowhere", "size": size, **sizes}).model()
    assert low < sum(p.numel() for p in model.parameters()) < high
    assert SIZES[size].width % SIZES[size].heads == 0
