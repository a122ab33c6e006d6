from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from engine import nodes
from engine.graph.declarations import gather_nodes


def test_every_module_of_the_package_adds_its_nodes() -> None:
    names = [each.name for each in iter_modules(nodes.__path__)]
    declared = gather_nodes(*(import_module(f"{nodes.__name__}.{name}") for name in names))
    assert {each.class_type for each in declared} == {each.class_type for each in nodes.NODE_TYPES}
