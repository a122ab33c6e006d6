from __future__ import annotations

import inspect
from importlib import import_module
from pkgutil import walk_packages

from engine import nodes
from engine.graph.declarations import gather_nodes


def test_every_module_of_the_package_adds_its_nodes() -> None:
    names = [each.name for each in walk_packages(nodes.__path__, f"{nodes.__name__}.")]
    declared = gather_nodes(*map(import_module, names))
    assert {each.class_type for each in declared} == {each.class_type for each in nodes.NODE_TYPES}


def test_a_body_takes_the_inputs_that_its_node_declares() -> None:
    for declared in nodes.NODE_TYPES:
        signature = inspect.signature(declared.body)
        signature.bind("the context", **dict.fromkeys(declared.all_inputs))
        signature.bind("the context", **dict.fromkeys(declared.inputs))  # the others have defaults
        context, *taken = (
            each.name for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD
        )
        assert context == "context", declared
        assert set(taken) <= set(declared.all_inputs), declared


def test_a_node_says_what_it_does_and_where_it_belongs() -> None:
    silent = [each for each in nodes.NODE_TYPES if not (each.description and each.category)]
    assert silent == []
