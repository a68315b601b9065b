"""Imports point down only, nothing imports in a circle, and torch stays where it belongs."""

import pytest

from tests.contract.source import PACKAGE, ROOT, imports, is_package, source_files

# A room may import the rooms above it in its list and nothing else. `engine`, `tracing` and
# `exporter` need torch: they are reached only as child processes.
WITHOUT_TORCH = (
    "codec",
    "errors",
    "job.source",
    "job.deepspeed",
    "job",
    "job.importing",
    "machine",
    "run.event_kinds",
    "run",
    "run.sinks",
    "recipe",
    "planner.schema",
    "planner.batch",
    "planner.memory",
    "planner.time",
    "planner.choices",
    "planner",
    "diagnose.causes",
    "diagnose",
    "prepare",
    "supervise",
    "scripts",
    "places.nodes",
    "places.slurm",
    "places.remote",
    "places",
    "watch",
    "watch.web",
    "verbs",
    "output",
    "cli.options",
    "cli",
    "api",
    "__init__",
    "__main__",
)
WITH_TORCH = (
    *WITHOUT_TORCH[: WITHOUT_TORCH.index("diagnose") + 1],
    "engine.process",
    "engine.model",
    "engine.data",
    "engine.strategies",
    "engine.training",
    "engine.checkpoint",
    "engine.fast",
    "engine.rank",
    "engine.launcher",
    "engine",
    "tracing",
    "exporter",
)

TORCH_LAZY = ("recipe/tensors.py",)
TORCH_ALLOWED = (
    "engine/",
    "tracing/",
    "exporter/",
    "recipes/",
    "machine/torch_probe.py",
    *TORCH_LAZY,
)
MOST_FILES = 21


def module_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def room_of(module):
    """The folder of a module; a module beside the rooms is a room of its own."""
    folder = module if is_package(f"phalanx.{module}") else module.rpartition(".")[0]
    return folder or module


def own_imports():
    """(module, imported module, where) for every import of the package by itself."""
    for path in source_files():
        for found in imports(path):
            if found.module.split(".")[0] == "phalanx":
                target = found.module.removeprefix("phalanx").removeprefix(".") or "__init__"
                yield module_of(path), target, found


def test_every_room_has_its_place():
    rooms = {room_of(module_of(path)) for path in source_files()}
    unknown = {room for room in rooms if room.split(".")[0] != "recipes"}
    assert unknown <= {*WITHOUT_TORCH, *WITH_TORCH}


@pytest.mark.parametrize("order", [WITHOUT_TORCH, WITH_TORCH], ids=["without torch", "with torch"])
def test_imports_point_down(order):
    wrong = [
        str(found)
        for module, target, found in own_imports()
        if (room := room_of(module)) in order
        and (order is WITHOUT_TORCH or room not in WITHOUT_TORCH)
        and room_of(target) != room
        and room_of(target) not in order[: order.index(room)]
        # `recipes` are loaded by name; the converters of one are a command of their own.
        and not (room == "cli" and target == "recipes.detection.converting")
    ]
    assert not wrong, "\n".join(["an import that does not point down:", *wrong])


def test_no_two_folders_import_each_other():
    edges = {}
    for module, target, found in own_imports():
        pair = (room_of(module), room_of(target))
        if pair[0] != pair[1]:
            edges.setdefault(pair, found)
    both = [f"{edges[a, b]}\n    {edges[b, a]}" for a, b in edges if a < b and (b, a) in edges]
    assert not both, "\n".join(["folders that import each other:", *both])


def test_no_modules_import_in_a_circle():
    graph = {}
    for module, target, _ in own_imports():
        graph.setdefault(module, set()).add(target)
    circles = [sorted(part) for part in _strongly_connected(graph) if len(part) > 1]
    assert not circles, f"modules that import in a circle: {circles}"


def _strongly_connected(graph):
    """Tarjan's algorithm."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            cut = stack.index(node)
            found.append(stack[cut:])
            del stack[cut:]

    for node in list(graph):
        if node not in index:
            visit(node)
    return found


def test_no_room_is_crowded():
    crowded = {
        str(folder.relative_to(PACKAGE)): count
        for folder in {path.parent for path in source_files()}
        if (count := len(list(folder.glob("*.py")))) > MOST_FILES
    }
    assert not crowded, f"more than {MOST_FILES} files side by side: {crowded}"


def test_no_package_has_the_name_of_a_function():
    import phalanx

    taken = [name for name in phalanx.__all__ if is_package(f"phalanx.{name}")]
    assert not taken, f"`import phalanx.{taken[0]}` would replace the function" if taken else ""


def test_recipes_import_only_the_recipe_interface():
    wrong = []
    for path in source_files():
        if room_of(module_of(path)).split(".")[0] != "recipes":
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
