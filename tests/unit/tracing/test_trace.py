"""What a recipe is: sizes, fingerprints, and its mistakes as Findings."""

import json
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from phalanx.codec import from_json, to_json
from phalanx.planner.schema.trace import Trace
from phalanx.tracing.trace import fetch_time, run_trace, trace_recipe

PARITY = f"{Path(__file__).parents[2] / 'fixtures' / 'recipes' / 'parity.py'}:Parity"
TEMPLATE = """
import random
import numpy as np
import torch
from torch import nn
from phalanx.recipe import Finding, Options, Recipe

class MyOptions(Options):
    samples: int = 6
    shift: float = 0.0
    width: int = 3

class Rows:
    def __init__(self, size, shift):
        self.size, self.shift = size, shift
    def __len__(self):
        return self.size
    def __getitem__(self, index):
        return {sample}

class Mine(Recipe):
    Options = MyOptions
    metric = "accuracy"
    metric_mode = "max"
    def model(self):
        {model}
        return nn.Sequential(nn.Linear(2, self.options.width), nn.BatchNorm1d(self.options.width))
    def data(self, split):
        {data}
        return Rows(self.options.samples if split == "train" else 2, self.options.shift)
    def check(self):
        {check}
        return []
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A recipe file with some of its lines changed."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "traced_recipe", raising=False)

    def make(
        *,
        sample="{'x': torch.full((2,), index + self.shift)}",
        model="",
        data="",
        check="",
    ):
        text = TEMPLATE.replace("{sample}", sample)
        for name, line in (("model", model), ("data", data), ("check", check)):
            text = text.replace("{%s}" % name, line or "pass")  # noqa: UP031
        path = tmp_path / "traced_recipe.py"
        path.write_text(textwrap.dedent(text))
        return f"{path}:Mine"

    yield make
    sys.modules.pop("traced_recipe", None)


def trace(spec, **options):
    found, findings = trace_recipe(spec, options)
    assert findings == []
    return found


def finding_of(spec, **options):
    found, (finding,) = trace_recipe(spec, options)
    assert found is None
    return finding


def line_of(spec, text):
    path = spec.rpartition(":")[0]
    with open(path) as file:  # noqa: PTH123
        return next(n for n, line in enumerate(file, 1) if text in line)


def test_a_trace_has_the_facts_of_the_recipe(make):
    found = trace(make(), width=5)
    assert (found.num_samples, found.num_test_samples) == (6, 2)
    assert found.parameters == found.trainable_parameters == 2 * 5 + 5 + 5 + 5
    assert found.parameter_bytes == 4 * found.parameters
    assert found.has_batchnorm is True
    assert (found.metric, found.metric_mode) == ("accuracy", "max")
    assert found.options == {"samples": 6, "shift": 0.0, "width": 5}


def test_norms_with_a_forward_of_their_own_are_named(make):
    assert trace(make()).own_batchnorms == []
    line = (
        "norm = nn.BatchNorm1d(2); "
        "norm.__class__ = type('Own', (nn.BatchNorm1d,), {'forward': lambda self, x: x}); "
        "return nn.Sequential(norm, nn.SyncBatchNorm(2))"
    )
    assert trace(make(model=line)).own_batchnorms == ["0"]


def test_digits_is_traced():
    found = trace("digits")
    assert (found.num_samples, found.num_test_samples) == (1437, 360)
    assert found.has_batchnorm is False


def test_frozen_parameters_are_counted_apart(make):
    spec = make(model="return nn.Linear(3, 3, bias=False).requires_grad_(False)")
    found = trace(spec)
    assert (found.parameters, found.trainable_parameters) == (9, 0)


def test_the_model_costs_no_memory(make):
    # 2**40 parameters: 4 TiB.
    assert trace(make(model="return nn.Linear(2**20, 2**20, bias=False)")).parameters == 2**40


@pytest.mark.parametrize(
    "line",
    [
        "assert torch.linspace(0, 1, 3)[1].item() == 0.5",
        "assert torch.ones(3).tolist() == [1, 1, 1]",
        "assert torch.ones(3).numpy().sum() == 3",
        "assert np.asarray(torch.ones(3)).sum() == 3",
        "assert bool(torch.ones(()) == 1)",
    ],
)
def test_a_model_that_computes_while_it_is_built_is_traced(make, line):
    assert trace(make(model=line)).num_samples == 6


def test_the_same_recipe_has_the_same_fingerprints(make):
    spec = make()
    first, second = trace(spec), trace(spec)
    assert first.fetch_s > 0
    first, second = (replace(t, fetch_s=None, fetch_line=None) for t in (first, second))
    assert first == second


def test_the_data_fingerprint_changes_with_the_data(make):
    spec = make()
    first = trace(spec).data_fingerprint
    assert trace(spec, shift=0.5).data_fingerprint != first
    assert trace(spec, samples=7).data_fingerprint != first
    assert trace(spec, width=9).data_fingerprint == first


def test_the_data_fingerprint_changes_with_the_size_alone(make):
    spec = make(sample="{'x': torch.zeros(2)}")
    assert trace(spec, samples=7).data_fingerprint != trace(spec, samples=8).data_fingerprint


def test_options_are_part_of_the_trace(make):
    spec = make()
    assert trace(spec, width=9).options != trace(spec).options


def test_the_recipe_fingerprint_changes_with_the_source(make):
    first = trace(make()).recipe_fingerprint
    assert trace(make(check="x = 1")).recipe_fingerprint != first


@pytest.mark.parametrize("draw", ["torch.rand(2)", "np.random.rand(2)", "random.random()"])
def test_data_that_draws_from_the_global_generators_has_one_fingerprint(make, draw):
    # Otherwise no run on such a data set could be resumed.
    spec = make(sample=f"{{'x': {draw}, 'id': index}}")
    assert trace(spec).data_fingerprint == trace(spec).data_fingerprint


@pytest.mark.parametrize(
    "sample",
    [
        "{'x': torch.tensor(float(index))}",
        "(torch.zeros(2, 3, dtype=torch.bfloat16), index)",
        "{'name': f'sample {index}', 'mask': torch.zeros(3, dtype=torch.bool)}",
        "[torch.zeros(0, 4), {'a': (1.5, 2)}]",
        "torch.zeros(3, 2).t()",
        "np.zeros(3, dtype=np.uint8)",
        "torch.zeros(2, dtype=torch.complex64)",
    ],
)
def test_samples_of_any_kind_are_hashed(make, sample):
    assert trace(make(sample=sample)).num_samples == 6


def test_a_batch_with_a_tensor_without_dimensions_is_hashed(make):
    # As a batched data set may return: one temperature for the whole micro-batch.
    line = (
        "Rows.__getitems__ = lambda self, ids, keys: "
        "{'x': torch.ones(len(ids)), 't': torch.tensor(0.5)}"
    )
    assert trace(make(data=line)).num_samples == 6


def test_no_test_split_counts_zero_samples(make):
    assert trace(make(data="if split == 'test': return None")).num_test_samples == 0


def test_no_samples_is_a_finding(make):
    finding = finding_of(make(), samples=0)
    assert finding.slug == "no-samples"
    assert "0 samples" in finding.what


@pytest.mark.parametrize("method", ["model", "data", "check"])
def test_a_recipe_that_raises_is_a_finding_with_its_line(make, method):
    spec = make(**{method: "raise KeyError('own words')"})
    finding = finding_of(spec)
    assert finding.slug == "recipe-broken"
    assert "KeyError: 'own words'" in finding.what
    assert f"traced_recipe.py:{line_of(spec, 'own words')} in {method}" in finding.why


def test_a_sample_that_raises_is_a_finding_with_its_line(make):
    spec = make(sample="{'x': torch.load('/no/such/file')}")
    finding = finding_of(spec)
    assert "/no/such/file" in finding.what
    assert f"traced_recipe.py:{line_of(spec, 'torch.load')}" in finding.why


def test_a_method_that_is_not_written_is_named(make, tmp_path):
    path = tmp_path / "empty_recipe.py"
    path.write_text("from phalanx.recipe import Recipe\nclass Mine(Recipe):\n    pass\n")
    finding = finding_of(f"{path}:Mine")
    assert "model" in finding.what


def test_the_recipes_own_findings_are_passed_on(make):
    line = "return [Finding(slug='own', what='w', why='y', fix='f', severity='{}')]"
    found, findings = trace_recipe(make(check=line.format("error")), {})
    assert found is None
    assert [f.slug for f in findings] == ["own"]
    found, findings = trace_recipe(make(check=line.format("warning")), {})
    assert found is not None
    assert [f.slug for f in findings] == ["own"]


def test_wrong_options_are_findings(make):
    assert finding_of(make(), widthh=3).slug == "unknown-option"


def test_a_request_is_answered_in_json(make, tmp_path):
    request, result = tmp_path / "request.json", tmp_path / "result.json"
    request.write_text(json.dumps({"recipe": make(), "options": {"width": 4}}))
    run_trace(request, result)
    answer = json.loads(result.read_text())
    assert from_json(Trace, answer["trace"]).options["width"] == 4
    assert answer["findings"] == []
    request.write_text(json.dumps({"recipe": make(), "options": {"width": "wide"}}))
    run_trace(request, result)
    answer = json.loads(result.read_text())
    assert answer["trace"] is None
    assert answer["findings"][0]["slug"] == "wrong-option"


def test_parameters_are_listed_as_the_optimizer_gets_them():
    trace, _ = trace_recipe(PARITY, {"blocks": 2, "gain": True, "frozen": True, "groups": True})
    listed = trace.weights
    assert sum(weight.elements for weight in listed) == trace.parameters
    assert sum(w.elements * w.itemsize for w in listed if w.learns) == trace.trainable_bytes
    groups = [weight.group for weight in listed]
    assert groups == [0] * 6 + [1] * 11 + [None] * 2
    assert [w.shape for w in listed if not w.learns] == [(24, 12), (24,)]
    assert [w.shape for w in listed if w.block == 1] == [(48, 24), (24, 48), (48,), *[(24,)] * 3]
    assert from_json(Trace, json.loads(json.dumps(to_json(trace)))) == trace


def test_a_fetch_has_a_part_for_the_call_and_one_for_each_sample(monkeypatch):
    """One time per sample would have a large batch of vectorised data wait for its loader."""
    now, sizes = [0.0], []
    monkeypatch.setattr("phalanx.engine.data.fetch_time.time.perf_counter", lambda: now[0])

    class Vectorised:
        def __init__(self, per_sample_s):
            self.per_sample_s = per_sample_s

        def __len__(self):
            return 100_000

        def __getitems__(self, ids, keys):
            sizes.append(len(ids))
            now[0] += 1e-3 + self.per_sample_s * len(ids)
            return torch.ones(len(ids))

    line = fetch_time(Vectorised(1e-8), 4)
    assert line.fixed_s == pytest.approx(1e-3) and line.per_sample_s == pytest.approx(1e-8)
    assert max(sizes) == 8192
    sizes.clear()
    assert fetch_time(Vectorised(0.1), 4).at(10) == pytest.approx(1, rel=0.02)
    assert max(sizes) == 8, "more would take too long"
    sizes.clear()
    fetch_time(Vectorised(1e-8), 2**22)
    assert max(sizes) == 32, "more would take too much memory"
