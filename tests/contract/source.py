"""The package's own source as facts: files, modules, imports, calls."""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "phalanx"


@dataclass(frozen=True)
class Import:
    """One imported module, and whether the import stands inside a function."""

    path: Path
    line: int
    module: str
    is_lazy: bool

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.module}"


def source_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(path: Path) -> Iterator[Import]:
    """Every import of a file except those under `if TYPE_CHECKING:`."""
    yield from _imports(path, tree(path), is_lazy=False)


def _imports(path: Path, node: ast.AST, *, is_lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _imports(path, other, is_lazy=is_lazy)
            continue
        if isinstance(child, ast.Import):
            for name in child.names:
                yield Import(path, child.lineno, name.name, is_lazy)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{path}:{child.lineno}: relative import"
            for name in child.names:
                # `from phalanx.cli import console` imports the module phalanx.output.console.
                full = f"{child.module}.{name.name}"
                module = full if is_module(full) else str(child.module)
                yield Import(path, child.lineno, module, is_lazy)
        inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from _imports(path, child, is_lazy=is_lazy or inside)


def is_module(name: str) -> bool:
    file = PACKAGE.parent / f"{name.replace('.', '/')}.py"
    return name.startswith("phalanx.") and (file.is_file() or is_package(name))


def is_package(name: str) -> bool:
    return (PACKAGE.parent / name.replace(".", "/") / "__init__.py").is_file()


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """(`torch.load`, node) for every call of a dotted name."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            yield ast.unparse(node.func), node


def tracked_files() -> list[Path]:
    """What git keeps, or would keep; without git, the folders that hold our files."""
    # safe.directory: in CI the checkout may belong to another user.
    argv = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True)
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:
        folders = (ROOT / name for name in ("src", "tests", "docs", "scripts", "benchmarks", ".ci"))
        paths = [*ROOT.iterdir(), *(path for folder in folders for path in folder.rglob("*"))]
    return [path for path in paths if path.is_file() and "__pycache__" not in path.parts]
