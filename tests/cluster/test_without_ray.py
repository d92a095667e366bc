"""Without `--ray` nothing of Ray is imported, and the options of a cluster say what they need."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from intarsia.cli.cluster import on_cluster
from intarsia.cluster.connection import connected
from intarsia.cluster.serving import Scale, build
from intarsia.errors import IntarsiaError

PACKAGE = Path(__file__).parents[2] / "intarsia"
ON_RAY = {"cluster/front.py", "cluster/router.py"}  # modules that run on a cluster only


def imported_at_once(path: Path) -> set[str]:
    """The modules that a module imports when it is imported itself."""
    found = set[str]()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def test_no_module_imports_ray_at_once() -> None:
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        modules = imported_at_once(path)
        if name not in ON_RAY:
            assert not any(module.partition(".")[0] == "ray" for module in modules), name
            assert not modules & {"intarsia.cluster.front", "intarsia.cluster.router"}, name
        if not name.startswith("cluster/"):
            assert not any(module.startswith("intarsia.cluster.") for module in modules), name


def test_the_options_say_what_they_need() -> None:
    with pytest.raises(IntarsiaError, match="need --ray ADDRESS"), on_cluster(None, 2, None):
        pass
    with on_cluster(None, 1, None):
        pass
    with pytest.raises(IntarsiaError, match="--precision int8"), on_cluster("local", 1, None, precision="int8"):
        pass


def test_the_number_of_replicas() -> None:
    assert (Scale.parse("3").least, Scale.parse("3").most) == (3, 3)
    assert (Scale.parse("1:4").least, Scale.parse("1:4").most) == (1, 4)
    for wrong in ("", "0", "4:1", "1:", "many"):
        with pytest.raises(IntarsiaError, match="--replicas"):
            Scale.parse(wrong)
    with pytest.raises(IntarsiaError, match="lack `bank`"):
        build({"replicas": 2})


def test_an_address_of_ray_client_is_refused() -> None:
    pytest.importorskip("ray")
    with pytest.raises(IntarsiaError, match="Ray Client is not supported"), connected("ray://host:10001"):
        pass
