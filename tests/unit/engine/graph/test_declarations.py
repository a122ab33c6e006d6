from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from engine.graph.declarations import NodeType, gather_nodes, node


def declared(class_type: str) -> NodeType:
    @node(class_type, inputs={})
    def body(context: Any) -> tuple[()]:
        return ()

    return body


def module_of(name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(content)
    return module


def test_a_modules_nodes_are_those_that_it_declares() -> None:
    first, second, third = declared("First"), declared("Second"), declared("Third")
    one = module_of("one", constant=3, second=second, first=first, node=node)
    other = module_of("other", third=third)
    assert gather_nodes(one, other) == (second, first, third)
    assert gather_nodes() == ()


def test_a_node_that_is_imported_elsewhere_counts_once() -> None:
    first, second = declared("First"), declared("Second")
    one = module_of("one", first=first)
    other = module_of("other", imported=first, second=second)
    assert gather_nodes(one, other) == (first, second)
    assert gather_nodes(other, one) == (first, second)


def test_a_name_that_is_declared_twice_is_an_error() -> None:
    one, other = module_of("one", a=declared("Same")), module_of("other", b=declared("Same"))
    with pytest.raises(ValueError, match="other: Same is declared twice"):
        gather_nodes(one, other)
    with pytest.raises(ValueError, match="Same"):
        gather_nodes(module_of("both", a=declared("Same"), b=declared("Same")))
