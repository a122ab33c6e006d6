"""Packages have no import cycles, a description each, and one import path for each name."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = ("darkroom_client", "darkroom_ipadapter", "darkroom_preprocessors")
"""Packages of their own, in `client` and below `packages`."""
INTERFACE = "engine.interface"
"""The module that gathers what the service imports of the engine."""
PACKAGES = (
    "actors",
    "cli",
    "comfyui",
    "engine",
    "events",
    "local",
    "operations",
    "serve_app",
    "settings",
    "storage",
    "telemetry",
    "training",
)


@cache
def files() -> list[Path]:
    """Every Python file of ours, by its path from the root."""
    rooms = (*PACKAGES, "benchmarks", "client", "docs", "examples", "packages", "tests")
    return sorted(path.relative_to(ROOT) for room in rooms for path in (ROOT / room).rglob("*.py"))


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def test_modules_import_each_other_in_no_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports for types alone count: a circle of words is a circle."""
    for name in ("ipadapter", "preprocessors"):
        monkeypatch.syspath_prepend(ROOT / "packages" / name)
    graph = grimp.build_graph(*PACKAGES, *DISTRIBUTIONS, cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_every_room_says_what_lives_there() -> None:
    silent = [
        str(path)
        for path in files()
        if path.name == "__init__.py"
        and path.parts[0] in PACKAGES
        and not (ast.get_docstring(syntax(path)) or "").split("\n\n")[0].endswith(".")
    ]
    assert silent == []


def test_a_name_has_one_import_path() -> None:
    """It is imported from the module that defines it, or from the engine's interface."""
    modules = {module_name(path): path for path in files()}
    elsewhere = [
        f"{path}: {alias.name} from {node.module}"
        for path in files()
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.ImportFrom) and node.module in modules and node.module != INTERFACE
        for alias in node.names
        if f"{node.module}.{alias.name}" not in modules
        and alias.name in imported_names(modules[node.module])
    ]
    assert elsewhere == []


@cache
def imported_names(path: Path) -> frozenset[str]:
    return frozenset(
        alias.asname or alias.name
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    )
