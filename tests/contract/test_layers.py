"""Imports point down only, and torch stays where it belongs."""

from pathlib import Path

import pytest

from tests.contract.source import PACKAGE, ROOT, imports, source_files

# Lower numbers know nothing of higher ones. `launch` and `engine` stand side by side.
LAYERS = {
    "errors": 0,
    "job": 1,
    "machine": 1,
    "run": 1,
    "recipe": 2,
    "planner": 3,
    "diagnose": 3,
    "launch": 4,
    "engine": 4,
    "exporter": 5,
    "watch": 6,
    "recipes": 6,
    "cli": 7,
    "api": 8,
    "__main__": 9,
    "__init__": 9,
}

TORCH_LAZY = ("recipe/tensors.py",)
TORCH_ALLOWED = ("engine/", "exporter/", "recipes/", "machine/torch_probe.py", *TORCH_LAZY)


def layer_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def layer_of_module(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def test_every_part_of_the_package_has_a_layer():
    assert {layer_of(path) for path in source_files()} <= set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_down(layer):
    wrong = [
        str(found)
        for path in source_files()
        if layer_of(path) == layer
        for found in imports(path)
        if found.module.split(".")[0] == "phalanx"
        and (target := layer_of_module(found.module)) != layer
        and LAYERS[target] >= LAYERS[layer]
    ]
    assert not wrong, "\n".join(["an import that does not point down:", *wrong])


def test_recipes_import_only_the_recipe_interface():
    wrong = []
    for path in source_files():
        if layer_of(path) != "recipes":
            continue
        own = ".".join(path.relative_to(PACKAGE.parent).parts[:3])
        wrong += [
            str(found)
            for found in imports(path)
            if found.module.split(".")[0] == "phalanx"
            and found.module.split(".")[:2] != ["phalanx", "recipe"]
            and not f"{found.module}.".startswith(f"{own}.")
        ]
    assert not wrong, "\n".join(["a recipe knows more than phalanx.recipe:", *wrong])


def test_torch_is_imported_only_where_it_is_needed():
    wrong = [
        str(found)
        for path in source_files()
        if not path.relative_to(PACKAGE).as_posix().startswith(TORCH_ALLOWED)
        for found in imports(path)
        if found.module.split(".")[0] == "torch"
    ]
    assert not wrong, "\n".join(["torch outside the engine:", *wrong])


@pytest.mark.parametrize("name", TORCH_LAZY)
def test_torch_is_imported_inside_functions(name):
    # A module-level import here would make `phalanx plan` and every error message wait for torch.
    module = PACKAGE / name
    found = [i for i in imports(module) if i.module.split(".")[0] == "torch"]
    assert found, f"{module.relative_to(ROOT)} no longer imports torch: update this contract"
    assert all(i.is_lazy for i in found), "\n".join(str(i) for i in found if not i.is_lazy)
