"""No test runs the benchmarks, so this says at least that what they import is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "benchmarks").rglob("*.py"))


def defined(module: str) -> set[str] | None:
    """The names that a module or a folder of ours defines; None if it is not ours."""
    path = ROOT.joinpath(*module.split("."))
    if path.is_dir():
        return {each.stem for each in path.iterdir()}
    if not path.with_suffix(".py").exists():
        return set() if (ROOT / module.partition(".")[0]).is_dir() else None
    names = set[str]()
    for node in ast.parse(path.with_suffix(".py").read_text()).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.add(name)
            case ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {each.id for each in targets if isinstance(each, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_benchmark_imports_is_there(script: Path) -> None:
    imports = [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(script.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    ]
    missing = [
        f"{name} of {module}"
        for module, name in imports
        if (names := defined(module)) is not None and name not in names
    ]
    assert missing == []
