"""Constants: tests override them by variables, and every such variable must be one that is read."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from settings.constant import constant
from settings.settings import Settings

ROOT = Path(__file__).parents[3]
PRODUCT = ("actors", "cli", "engine", "events", "local", "operations", "serve_app", "storage")
PRODUCT += ("comfyui", "settings", "telemetry")
USERS = ("tests", "benchmarks")


def calls_in(file: Path) -> list[str]:
    """The first arguments of the calls of `constant` in a file."""
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Call(func=ast.Name(id="constant"), args=[ast.Constant(value=str(name)), *_]):
                names.append(name)
    return names


def names_of_constants() -> list[str]:
    files = (file for package in PRODUCT for file in sorted((ROOT / package).rglob("*.py")))
    return [name for file in files for name in calls_in(file)]


def test_a_variable_of_tests_overrides_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARKROOM_A", "4")
    assert constant("A", 1.5) == 1.5
    monkeypatch.setenv("DARKROOM_TEST_A", "4")
    monkeypatch.setenv("DARKROOM_TEST_B", "false")
    assert (constant("A", 1.5), constant("B", True)) == (4.0, False)
    monkeypatch.setenv("DARKROOM_TEST_A", "soon")
    with pytest.raises(ValueError, match="soon"):
        constant("A", 1.5)


def test_every_variable_that_tests_set_is_that_of_a_constant() -> None:
    here = Path(__file__)
    files = [file for folder in USERS for file in (ROOT / folder).rglob("*.py") if file != here]
    used = {
        name
        for file in files
        for name in re.findall(r"\bDARKROOM_TEST_([A-Z0-9_]+)", file.read_text())
    }
    assert used
    assert used - set(names_of_constants()) == set()


def test_no_two_constants_and_no_setting_have_one_name() -> None:
    names = names_of_constants()
    assert len(names) == len(set(names)) > 20
    assert {f"DARKROOM_{name}" for name in names} & Settings.variables() == set()
