"""Packages of nodes: the example, installed as an operator does, and modules made up by tests."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engine.extensions import GROUP, Extension, installed_extensions

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "own-nodes"


def install_example(folder: Path) -> Path:
    """Install the example package below `folder`; see `install`."""
    return install(EXAMPLE, folder)


def install(package: Path, folder: Path) -> Path:
    """Build a package and install it below `folder`; returns the entry for Python's path.

    Nothing is downloaded, because all that the build needs is installed.
    """
    source, target = folder / "source", folder / "installed"
    shutil.copytree(package, source, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, *offline, "--target", str(target), str(source)], check=True, timeout=300
    )
    return target


def forget(package: str) -> None:
    """Unload the modules of an installed package, so that the next test imports it again or not at
    all.
    """
    for name in [each for each in sys.modules if each.partition(".")[0] == package]:
        del sys.modules[name]
    importlib.invalidate_caches()


@contextmanager
def installed(package: Path, folder: Path) -> Iterator[Extension]:
    """A package of `packages/`, built, installed below `folder`, and found by its entry point."""
    target = install(package, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(target)
        (found,) = installed_extensions()
        try:
            yield found
        finally:
            forget(f"darkroom_{package.name}")


def entry_point(
    monkeypatch: pytest.MonkeyPatch, name: str = "own_nodes", **members: Any
) -> EntryPoint:
    """Return the entry point of a module with these members and of this version."""
    module = ModuleType(name)
    vars(module).update({"NODES_API": "1.0"} | members)
    monkeypatch.setitem(sys.modules, name, module)
    return EntryPoint("nodes", name, GROUP)
