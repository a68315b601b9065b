"""The models of benchmarks/planner: what they are said to be, and that each of them trains."""

import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from phalanx.engine.data.micro_batches import choose_fetch
from phalanx.recipe.loading import load_recipe

FOLDER = Path(__file__).parents[2] / "benchmarks" / "planner"

IMAGE = {"size": 32, "classes": 5, "width": 8, "depths": [1, 1, 1, 1]}
TEXT = {"symbols": 19, "length": 8, "width": 16, "heads": 2, "depth": 2}
TINY = {
    "ResNet50": IMAGE,
    "ConvNextTiny": IMAGE,
    "MobileNet": {"size": 32, "classes": 5, "repeats": 1},
    "VitSmall": {"size": 32, "width": 16, "heads": 2, "depth": 2, "classes": 5},
    "VitBase": {"size": 32, "width": 16, "heads": 2, "depth": 2, "classes": 5},
    "Fcos": {**IMAGE, "size": 64, "pyramid": 8},
    "Yolo11n": {"size": 64, "classes": 5, "scale": 0.125},
    "SegmentationUnet": {"size": 16, "width": 4, "depth": 3},
    "Unet64": {"size": 16, "width": 8, "factors": [1, 2], "depth": 1, "attended": [1]},
    "Gpt2": TEXT,
    "Dense340M": TEXT,
    "Lora": {**TEXT, "rank": 2},
    "Llama300M": {**TEXT, "heads": 4, "groups": 2, "wide": 24},
    "Bert": TEXT,
    "FrozenBert": {**TEXT, "frozen": 1},
    "T5Small": {**TEXT, "answer": 4},
    "Policy6M": {"width": 16, "heads": 2, "depth": 2},
    "Policy170M": {"width": 16, "heads": 2, "depth": 2},
    "BevPlanner60M": {
        "cameras": 2, "height": 32, "breadth": 32, "stem": 4, "depths": [1, 1, 1, 1],
        "width": 16, "heads": 2, "depth": 1, "cells": 9,
    },
    "Lstm": {"symbols": 19, "length": 8, "width": 16},
    "Gru": {"bands": 8, "length": 16, "width": 8, "classes": 5},
    "Audio": {"length": 800, "width": 8, "depth": 2, "classes": 5},
    "Mlp": {"columns": 8, "width": 16, "depth": 2},
    "Dlrm": {"tables": 3, "rows": 11, "width": 4, "numbers": 3, "wide": 8},
    "Points": {"points": 16, "width": 4, "classes": 5},
    "SwinTiny": {
        "size": 32, "classes": 5, "width": 8, "depths": [2, 2], "heads": [1, 2], "window": 2,
    },
    "EfficientNetB0": {"size": 32, "classes": 5, "repeats": 1},
    "Conformer": {
        "bands": 8, "length": 32, "width": 16, "heads": 2, "depth": 2, "kernel": 3, "units": 7,
    },
    "Tagger": {"symbols": 19, "length": 8, "of_word": 12, "width": 8, "tags": 5},
    "ConvVae": {"size": 16, "widths": [4, 8], "latent": 4},
    "MlpMixer": {"size": 32, "width": 16, "depth": 2, "classes": 5},
    "Neox160M": TEXT,
}  # fmt: skip

# torchvision.org, huggingface.co and docs.ultralytics.com give these.
PUBLISHED = {
    "ResNet50": 25_557_032,
    "MobileNet": 3_504_872,
    "VitSmall": 22_050_664,
    "VitBase": 86_567_656,
    "Gpt2": 124_439_808,
    "T5Small": 60_506_624,
    "Yolo11n": 2_624_080,
    "SwinTiny": 28_288_354,
    "EfficientNetB0": 5_288_548,
    "MlpMixer": 59_880_472,
    "Neox160M": 162_322_944,
}


@pytest.fixture(autouse=True)
def beside_the_models(monkeypatch):
    """Loading a recipe puts its folder on the path and its files among the modules. Threads would
    wait for each other longer than these sizes take."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    before, threads = set(sys.modules), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def load(name, options):
    return load_recipe(f"{FOLDER / 'models.py'}:{name}", options)


def test_every_model_learns_what_it_is_shown():
    """Loss falls on one micro-batch, and every weight that should learn gets a gradient."""
    for name, options in TINY.items():
        torch.manual_seed(0)
        recipe = load(name, options)
        model, data = recipe.model(), recipe.data("train")
        ids = torch.arange(6).numpy()
        batch = choose_fetch(data)(ids, ids)
        learning = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(learning, lr=3e-3)
        losses = []
        for _ in range(3):
            torch.manual_seed(1)  # the same noise and dropout: only the weights differ
            terms = recipe.loss(model, batch, torch.from_numpy(ids))
            loss = sum(term.sum / term.weight for term in terms.values())
            loss.backward()
            missing = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
            assert not missing, f"{name}: no gradient for {missing}"
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[-1] < losses[0], f"{name}: {losses}"


def test_models_are_what_was_published():
    with torch.device("meta"):
        models = {name: load(name, {}).model() for name in PUBLISHED}
        image = torch.empty(1, 3, 640, 640)
    counts = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    assert counts == PUBLISHED
    with FlopCounterMode(display=False) as counter:
        models["Yolo11n"](image)
    assert counter.get_total_flops() == pytest.approx(6.5e9, rel=0.02)


def test_points_cover_every_model_and_both_halves_alike():
    from points import FIRST, FITTED, FRESH, FRESH_SETTINGS, SETTINGS, UNTOUCHED, find_settings

    assert {s.model for s in FIRST} == {s.model for s in SETTINGS} == {*FITTED, *UNTOUCHED}
    assert not set(FITTED) & set(UNTOUCHED) and len(FITTED) == len(UNTOUCHED)
    assert {*FITTED, *UNTOUCHED, *FRESH, "Dense340M"} == set(TINY)
    assert len({s.name for s in SETTINGS}) == len(SETTINGS)
    ways = {"bf16", "fp16", "fp32", "tf32", "sgd", "activation_checkpointing=on", "ema"}
    for half in ("fitted", "untouched"):
        own = [s for s in SETTINGS if s.half == half]
        assert {w for s in own for w in ways if w in s.settings} == ways
        assert sum(len(s.micro_batches) for s in own) >= 30
        for setting in own:
            job = setting.job(setting.micro_batches[0])
            assert job.global_batch_size == setting.micro_batches[0]
    assert [s.model for s in FRESH_SETTINGS] == list(FRESH)
    assert not set(FRESH) & {*FITTED, *UNTOUCHED}
    assert find_settings(["fresh"]) == FRESH_SETTINGS
