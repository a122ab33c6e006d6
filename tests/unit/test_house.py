"""The house keeps its order: small rooms and files, short functions, no circles, one door each."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "actors",
    "engine",
    "events",
    "serve_app",
    "settings",
    "storage",
    "telemetry",
    "training",
)

MOST_MODULES = 16
MOST_LINES = 300
LONGEST_FUNCTION = 40

LONG_FILES: dict[str, str] = {}
"""Files that may be longer, each with its reason."""
LONG_FUNCTIONS: dict[str, str] = {}
"""Functions that may be longer, `file:name`, each with its reason."""


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


def test_no_folder_has_more_modules_than_one_can_see_at_once() -> None:
    modules = Counter(path.parent for path in files() if path.name != "__init__.py")
    assert {str(room): n for room, n in modules.items() if n > MOST_MODULES} == {}


def test_no_file_is_long() -> None:
    lines = {str(path): (ROOT / path).read_text().count("\n") for path in files()}
    long = {path for path, count in lines.items() if count > MOST_LINES}
    assert long == LONG_FILES.keys()


def test_no_function_is_long() -> None:
    long = {
        f"{path}:{node.name}"
        for path in files()
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > LONGEST_FUNCTION
    }
    assert long == LONG_FUNCTIONS.keys()


def test_modules_import_each_other_in_no_circle() -> None:
    """Imports for types alone count: a circle of words is a circle."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
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
    """It is imported from the module that defines it, never from one that imports it, too."""
    modules = {module_name(path): path for path in files()}
    elsewhere = [
        f"{path}: {alias.name} from {node.module}"
        for path in files()
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.ImportFrom) and node.module in modules
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


def test_the_map_names_every_module() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = dict(
        re.findall(r"^\*\*(\w+)/\*\*(.*?)(?=^\*\*\w+/\*\*|^## |\Z)", text, re.DOTALL | re.MULTILINE)
    )
    unnamed = [
        str(path)
        for path in files()
        if path.parts[0] in PACKAGES
        and not path.name.startswith("__")
        and f"`{path.name}`" not in rooms[path.parts[0]]
    ]
    assert unnamed == []
