"""Evaluation on one rank: every sample once, exact sums, the model left as it was."""

import numpy as np
import pytest
import torch
from torch import nn

from phalanx.engine.process.group import Process
from phalanx.engine.strategies.precision import Precision
from phalanx.engine.strategies.single import Single
from phalanx.engine.training.evaluation import Evaluator
from phalanx.recipe import Options, Recipe, Rows
from tests.fixtures.plans import plan_with

CPU = torch.device("cpu")


class Numbers:
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitems__(self, ids, keys):
        return {"id": torch.from_numpy(ids), "x": torch.from_numpy(ids.astype(np.float32))}


class Counting(Recipe):
    def __init__(self):
        super().__init__(Options())
        self.sizes = []
        self.dtypes = set()
        self.was_training = []
        self.had_gradients = []

    def evaluate(self, model, batch):
        self.sizes.append(len(batch["id"]))
        self.dtypes.add(batch["x"].dtype)
        self.was_training.append(model.training)
        self.had_gradients.append(model(batch["x"][:, None]).requires_grad)
        return {"ids": batch["id"].sum(), "samples": len(batch["id"]), "tiny": torch.tensor(0.1)}

    def metrics(self, sums):
        return {"mean": sums["ids"] / sums["samples"], "count": sums["samples"], **sums}


def make(size, batch_size, *, model=None, precision="fp32", recipe=None, workers=0):
    plan = plan_with(evaluate_batch_size=batch_size, workers=workers, pin_memory=False)
    recipe = recipe or Counting()
    strategy = Single(recipe, model or nn.Linear(1, 1), Process(0, 1, CPU, "none"))
    strategy.adopt(None, Precision(precision, CPU), None)
    evaluator = Evaluator(
        recipe,
        Numbers(size),
        plan=plan,
        strategy=strategy,
        prefetch=2,
        seed=0,
    )
    return recipe, evaluator


@pytest.mark.parametrize(("size", "batch_size"), [(7, 2), (13, 5), (1, 8), (360, 32), (29, 29)])
def test_every_sample_counts_once(size, batch_size):
    recipe, evaluator = make(size, batch_size)
    evaluation = evaluator.run()
    assert evaluation.samples == size
    assert evaluation.metrics["count"] == size
    assert evaluation.metrics["ids"] == size * (size - 1) / 2
    assert sum(recipe.sizes) == size
    assert max(recipe.sizes) <= batch_size


def test_sums_are_added_in_double():
    # In float32 a thousand times 0.1 is 99.999; the value itself is float32's 0.1.
    _, evaluator = make(1000, 1)
    tiny = float(np.float32(0.1))
    assert evaluator.run().metrics["tiny"] == pytest.approx(1000 * tiny, abs=1e-9)


def test_rows_are_kept_in_the_order_of_the_samples():
    class Listing(Counting):
        def evaluate(self, model, batch):
            ids = batch["id"].repeat_interleave(batch["id"] % 2)  # those of even ids have none
            return {**super().evaluate(model, batch), "odd": Rows(ids[:, None].float())}

        def metrics(self, sums):
            self.odd = sums["odd"]
            return {"rows": len(sums["odd"])}

    recipe, evaluator = make(7, 1, recipe=Listing())
    assert evaluator.run().metrics == {"rows": 3.0}
    assert recipe.odd.tolist() == [[1.0], [3.0], [5.0]]
    assert recipe.odd.dtype == torch.float32  # as the recipe gave it


def test_metrics_are_plain_numbers():
    _, evaluator = make(7, 2)
    assert {type(v) for v in evaluator.run().metrics.values()} == {float}


def test_it_can_be_run_again_with_the_same_result():
    _, evaluator = make(7, 2)
    assert evaluator.run().metrics == evaluator.run().metrics


def test_the_model_evaluates_without_gradients_and_dropout():
    recipe, evaluator = make(7, 2, model=nn.Linear(1, 1).train())
    evaluator.run()
    assert not any(recipe.was_training)
    assert not any(recipe.had_gradients)


@pytest.mark.parametrize("is_training", [True, False])
def test_the_model_is_left_as_it_was_found(is_training):
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)).train(is_training)
    _, evaluator = make(7, 2, model=model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    evaluator.run()
    assert model.training is is_training
    assert all(torch.equal(tensor, before[n]) for n, tensor in model.state_dict().items())


def test_a_part_of_the_model_that_was_frozen_in_eval_stays_so():
    # A frozen backbone whose BatchNorm must not move.
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)).train()
    _, evaluator = make(7, 2, model=model)
    model[1].eval()
    evaluator.run()
    assert [module.training for module in model] == [True, False]


def test_the_model_is_left_as_it_was_found_after_an_error():
    class Failing(Counting):
        def evaluate(self, model, batch):
            raise RuntimeError("own words")

    model = nn.Linear(1, 1).train()
    _, evaluator = make(7, 2, recipe=Failing(), model=model)
    with pytest.raises(RuntimeError, match="own words"):
        evaluator.run()
    assert model.training


def test_inputs_are_fp64_under_fp64():
    recipe, evaluator = make(7, 2, precision="fp64", model=nn.Linear(1, 1).double())
    evaluator.run()
    assert recipe.dtypes == {torch.float64}
