"""Recipes of version 0.1 define methods of optional interfaces on `Recipe`, and still work."""

import pickle

import pytest

from phalanx import recipe as public
from phalanx.recipe import (
    Benchmarking,
    CollectingData,
    Exporting,
    ExportingGraphs,
    Options,
    Portable,
    PretrainedWeights,
    Recipe,
    Showing,
)
from phalanx.recipe.benchmarking import default_benchmark, known_benchmarks
from phalanx.recipe.collecting import collecting_settings
from phalanx.recipe.exporting import export_forms
from phalanx.recipe.first_version import INTERFACES, find_deprecated
from phalanx.recipe.interface import Recipe as Small
from phalanx.recipe.loading import builtin_recipes, load_recipe_class
from phalanx.recipe.pretrained import stored_weights
from phalanx.recipe.signing import carried_options
from phalanx.tracing.trace import trace_recipe
from tests.ranks.runs import FIXTURES

FIRST = f"{FIXTURES / 'recipes' / 'first_version.py'}:First"


class Plain(Recipe):
    def model(self):
        return None


class Exports(Recipe):
    def export(self, tensors, folder, form):
        return "own"


class Draws:
    def charts(self, sums):
        return ["chart", *super().charts(sums)]


class Mixed(Draws, Recipe):
    pass


class Newer(Exports, Showing):
    benchmarks = {"road": "It drives."}  # noqa: RUF012

    def samples(self, model):
        return ["sample"]


def test_a_recipe_is_small():
    methods = [name for name, value in vars(Small).items() if callable(value) and name[0] != "_"]
    written = {"model", "data", "weight", "loss", "evaluate", "metrics"}
    hooks = {"groups", "blocks", "example", "check"}
    assert set(methods) == {*written, *hooks, "Options"}


def test_interfaces_are_public_and_share_no_name():
    assert all(getattr(public, kind.__name__) is kind for kind in INTERFACES)
    names = [name for kind in INTERFACES for name in vars(kind) if not name.startswith("_")]
    assert len(names) == len(set(names))
    assert not any(name in vars(Recipe) for name in names)


def test_a_recipe_that_defines_none_of_them_inherits_none():
    assert Plain.__bases__ == (Recipe,)
    assert find_deprecated(Plain) == []
    recipe = Plain(Options())
    assert (stored_weights(recipe), export_forms(recipe), known_benchmarks(recipe)) == ({}, {}, {})
    assert (default_benchmark(recipe), collecting_settings(Plain)) == (None, None)
    assert carried_options(recipe) == {}


def test_a_recipe_of_version_0_1_inherits_what_it_defines():
    recipe = Exports(Options())
    assert [isinstance(recipe, kind) for kind in INTERFACES] == [
        kind is Exporting for kind in INTERFACES
    ]
    assert recipe.export({}, None, "final") == "own"
    assert recipe.export_forms == {}
    assert type(pickle.loads(pickle.dumps(recipe))) is Exports  # noqa: S301
    (finding,) = find_deprecated(Exports)
    assert (finding.slug, finding.severity) == ("recipe-interface", "warning")
    assert "`export`" in finding.what
    assert "class Exports(Recipe, Exporting)" in finding.fix


class Cooperative(Recipe):
    def export(self, tensors, folder, form):
        return super().export(tensors, folder, form)

    def samples(self, model):
        return [*Recipe.samples(self, model), *self.charts({})]


class Registering(Recipe):
    def __init_subclass__(cls, **given):
        pass  # and nothing of Recipe's


class Registered(Registering):
    def export(self, tensors, folder, form):
        return "own"


class ShowsFirst(Recipe):
    def samples(self, model):
        return []


class ExportsToo(ShowsFirst):
    def export(self, tensors, folder, form): ...


class OtherOrder(Recipe):
    def export(self, tensors, folder, form): ...

    def samples(self, model):
        return []


class Diamond(ExportsToo, OtherOrder):
    pass


class Late(Recipe):
    pass


Late.export = lambda self, tensors, folder, form: "late"


class PerInstance(Recipe):
    def __init__(self, options):
        super().__init__(options)
        self.export_forms = {"adapter": "The adapter alone."}

    def export(self, tensors, folder, form): ...


def test_defaults_can_be_called_as_in_version_0_1():
    recipe = Cooperative(Options())
    assert recipe.export({}, None, "final") is None
    assert recipe.samples(None) == []
    assert recipe.weights() == {}


@pytest.mark.parametrize("kind", [Registered, Diamond, Late])
def test_any_class_that_defines_a_method_implements_its_interface(kind):
    assert isinstance(kind(Options()), Exporting)
    assert [finding.slug for finding in find_deprecated(kind)][:1] == ["recipe-interface"]
    assert not issubclass(Plain, kind)


def test_attributes_of_an_object_count():
    assert export_forms(PerInstance(Options())) == {"adapter": "The adapter alone."}


def test_methods_of_a_mixin_count_too():
    recipe = Mixed(Options())
    assert isinstance(recipe, Showing)
    assert list(recipe.charts({})) == ["chart"]
    assert list(recipe.samples(None)) == []


def test_each_class_is_named_for_its_own_part():
    assert issubclass(Newer, Benchmarking)
    found = {finding.what.split("`")[1]: finding.fix for finding in find_deprecated(Newer)}
    assert set(found) == {"Newer", "Exports"}
    assert "Benchmarking" in found["Newer"]
    assert "Showing" not in found["Newer"]


@pytest.mark.parametrize("name", sorted(set(builtin_recipes()) - {"detection"}))
def test_recipes_that_ship_are_written_the_new_way(name):
    assert find_deprecated(load_recipe_class(name)) == []


def test_every_interface_of_a_recipe_of_version_0_1_is_found_and_said_once():
    trace, findings = trace_recipe(FIRST, {"base": "missing.safetensors"})
    assert [finding.slug for finding in findings] == ["recipe-interface"]
    for kind in (
        Benchmarking,
        CollectingData,
        Exporting,
        ExportingGraphs,
        Portable,
        PretrainedWeights,
        Showing,
    ):
        assert kind.__name__ in findings[0].what
    assert trace.default_benchmark == "sums"
    assert [finding.slug for finding in trace.weights_findings] == ["no-base"]
