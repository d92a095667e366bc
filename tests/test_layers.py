"""Imports between the package's modules point down the layers of `docs/layers.py` and close no cycle.

The test reads the source: imports inside functions and under TYPE_CHECKING count too. `from package import name` is an
edge to the module `package.name` if that exists, otherwise to the package itself. Importing a module also runs the
`__init__` of its packages; the test does not count that, because an `__init__` may re-export its own modules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from docs.layers import APART, LAYERS, PAGE, block, page_block

ROOT = Path(__file__).parent.parent
PACKAGE = "intarsia"
RANKS = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
TOP = len(LAYERS)  # the package's own `__init__`


class Edge(NamedTuple):
    source: str
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target}"


def find_modules(root: Path) -> dict[str, Path]:
    """Every module's dotted name, and its file."""
    modules = {}
    for file in sorted((root / PACKAGE).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return modules


def imported(node: ast.AST, source: str, is_package: bool) -> Iterator[str]:
    """The dotted names that an import statement asks for."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = source.split(".")
            up = node.level - 1 if is_package else node.level
            base = ".".join([*parts[: len(parts) - up], *filter(None, [node.module])])
        yield from (f"{base}.{alias.name}" for alias in node.names)


def find_edges(modules: dict[str, Path]) -> list[Edge]:
    edges = set()
    for source, file in modules.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for name in imported(node, source, file.name == "__init__.py"):
                if name.split(".")[0] != PACKAGE:
                    continue
                target = name
                while target not in modules:
                    target = target.rpartition(".")[0]
                if target != source:
                    edges.add(Edge(source, target, getattr(node, "lineno", 0)))
    return sorted(edges)


def layer_of(module: str) -> str:
    """The part of the package that a module belongs to; empty for the package's own `__init__`."""
    return [*module.split("."), ""][1]


def points_up(edge: Edge) -> bool:
    source, target = layer_of(edge.source), layer_of(edge.target)
    if source == target:
        return False
    if any(source in layer and target in layer for layer in APART):
        return True
    return RANKS.get(target, TOP) > RANKS.get(source, TOP)


def find_cycles(modules: dict[str, Path], edges: list[Edge]) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others (strongly connected components)."""
    targets: dict[str, set[str]] = {name: set() for name in modules}
    for edge in edges:
        targets[edge.source].add(edge.target)
    reach = {name: _reachable(name, targets) for name in modules}
    groups = {tuple(sorted(b for b in reach[a] if a in reach[b])) for a in modules if a in reach[a]}
    return [list(group) for group in sorted(groups)]


def _reachable(start: str, targets: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(targets[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += targets[name]
    return found


def test_every_module_has_a_layer() -> None:
    assert {layer_of(name) for name in find_modules(ROOT)} - {""} == set(RANKS)


def test_imports_point_down() -> None:
    wrong = [str(edge) for edge in find_edges(find_modules(ROOT)) if points_up(edge)]
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other() -> None:
    modules = find_modules(ROOT)
    assert find_cycles(modules, find_edges(modules)) == []


def test_the_documentation_draws_the_same_layers() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page_block(text) == block(), "python docs/layers.py --write puts the drawing into the page"


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("import intarsia.bank.bank", "intarsia.bank.bank"),
        ("from intarsia.bank import bank", "intarsia.bank.bank"),
        ("from intarsia.bank.bank import Bank", "intarsia.bank.bank"),
        ("from ..bank.bank import Bank", "intarsia.bank.bank"),
        ("from .. import bank", "intarsia.bank"),
        ("import intarsia", "intarsia"),
        ("def f():\n    from intarsia.serve.predictor import Predictor", "intarsia.serve.predictor"),
        ("if TYPE_CHECKING:\n    from intarsia.bank.bank import Bank", "intarsia.bank.bank"),
    ],
)
def test_an_import_that_points_up_is_found(tmp_path: Path, line: str, target: str) -> None:
    for name in ("__init__", "bank/__init__", "bank/bank", "serve/__init__", "serve/predictor", "train/__init__"):
        file = tmp_path / PACKAGE / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (tmp_path / PACKAGE / "train" / "loop.py").write_text(line)
    edges = find_edges(find_modules(tmp_path))
    assert [(edge.source, edge.target) for edge in edges if points_up(edge)] == [("intarsia.train.loop", target)]


def test_a_cycle_is_found(tmp_path: Path) -> None:
    folder = tmp_path / PACKAGE / "encoder"
    folder.mkdir(parents=True)
    for file in (tmp_path / PACKAGE / "__init__.py", folder / "__init__.py"):
        file.touch()
    for name, line in {"a": "from . import b", "b": "from .c import x", "c": "import intarsia.encoder.a"}.items():
        (folder / f"{name}.py").write_text(line)
    (folder / "d.py").write_text("from intarsia.encoder import a")
    modules = find_modules(tmp_path)
    names = [f"{PACKAGE}.encoder.{name}" for name in "abc"]
    assert find_cycles(modules, find_edges(modules)) == [names]
