"""The loss is Ultralytics' own: the same numbers, the same gradients, also of nothing."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from phalanx.recipe import Epoch
from phalanx.recipe.loading import load_recipe
from phalanx.recipes.detection.data import as_input
from phalanx.recipes.detection.loss import sum_losses


@pytest.fixture(scope="module")
def recipe(shapes):
    return load_recipe("detection", {"data": str(shapes), "image_size": 64})


@pytest.fixture(scope="module")
def network(recipe):
    torch.manual_seed(3)
    network = recipe.model()
    network.args = SimpleNamespace(box=7.5, cls=0.5, dfl=1.5)
    return network


def batch_of(recipe, count=6):
    ids = np.arange(count)
    return recipe.data("train").__getitems__(ids, ids * 7919 + 1, Epoch(0, 99))


def theirs(network, predictions, batch):
    from ultralytics.utils.loss import v8DetectionLoss

    there = batch["classes"] >= 0
    images = torch.arange(len(there))[:, None].expand_as(there)[there]
    boxes = batch["boxes"][there]
    centre, size = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    labels = {
        "batch_idx": images.float(),
        "cls": batch["classes"][there].float(),
        "bboxes": torch.cat([centre, size], 1),
    }
    total, _ = v8DetectionLoss(network)(predictions, labels)
    return total / len(there)


def ours(predictions, batch):
    sums = sum_losses(predictions, batch["classes"], batch["boxes"], strides=[8, 16, 32])
    weight = sums.weight.clamp(min=1)  # Ultralytics divides by no less
    return torch.stack([7.5 * sums.box, 0.5 * sums.cls, 1.5 * sums.dfl]) / weight


def gradients(network, loss):
    network.zero_grad()
    loss.sum().backward()
    return {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}


def test_numbers_and_gradients_are_those_of_ultralytics(recipe, network):
    batch = batch_of(recipe)
    assert (batch["classes"] >= 0).sum() > 20
    found = network(as_input(batch["image"], network))
    expected = theirs(network, found, batch)
    mine = ours(found, batch)
    torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)
    first = gradients(network, theirs(network, network(as_input(batch["image"], network)), batch))
    second = gradients(network, ours(network(as_input(batch["image"], network)), batch))
    assert first.keys() == second.keys()
    largest = max(float(gradient.abs().max()) for gradient in first.values())
    for name in first:  # some are zero but for rounding
        atol = 1e-4 * max(float(first[name].abs().max()), 1e-4 * largest)
        torch.testing.assert_close(second[name], first[name], rtol=1e-3, atol=atol)


def test_images_without_objects_are_background(recipe, network):
    batch = batch_of(recipe, 2)
    batch["classes"].fill_(-1)
    found = network(as_input(batch["image"], network))
    torch.testing.assert_close(ours(found, batch), theirs(network, found, batch))
    assert sum_losses(found, batch["classes"], batch["boxes"], strides=[8, 16, 32]).weight == 0
    gradients(network, ours(found, batch))


def test_what_fills_up_the_boxes_changes_nothing(recipe, network):
    batch = batch_of(recipe, 3)
    found = network(as_input(batch["image"], network))
    longer = {
        "classes": torch.nn.functional.pad(batch["classes"], (0, 32), value=-1),
        "boxes": torch.nn.functional.pad(batch["boxes"], (0, 0, 0, 32), value=0.3),
    }
    torch.testing.assert_close(ours(found, longer), ours(found, batch))


def test_the_terms_share_one_weight(recipe, network):
    terms = recipe.loss(network, batch_of(recipe, 2), torch.arange(2))
    assert list(terms) == ["box", "cls", "dfl"]
    assert len({id(term.weight) for term in terms.values()}) == 1
    assert recipe.weight(None) is None


def test_a_step_reads_no_value(recipe):
    """So that a whole step can be a CUDA graph: on the meta device there are no values to read."""
    with torch.device("meta"):
        network = recipe.model()
    batch = {name: tensor.to("meta") for name, tensor in batch_of(recipe).items()}
    terms = recipe.loss(network, batch, torch.zeros(6, dtype=torch.int64, device="meta"))
    sum(term.sum for term in terms.values()).backward()
    learned = [p for p in network.parameters() if p.requires_grad]
    assert all(p.grad is not None for p in learned)
