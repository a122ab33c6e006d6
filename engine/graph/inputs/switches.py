"""Switches: each link to one is replaced by what it chooses, before a prompt is checked.

So only the chosen branch is checked, counted and run, and a switch passes on any type. It must be
true or false by literals alone; the link to any other is left, and is an error of its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.graph.inputs.literals import finite_number

_SWITCH = "ComfySwitchNode"
_TRUTH = "PrimitiveBoolean"


def without_switches(nodes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The nodes, with what their switches choose in the places of the links to them."""
    if not any(_class_type(node) == _SWITCH for node in nodes.values()):
        return nodes
    chosen: dict[str, Any] = {}
    return {node_id: _relinked(node, nodes, chosen) for node_id, node in nodes.items()}


def _relinked(node: Any, nodes: Mapping[str, Any], chosen: dict[str, Any]) -> Any:
    inputs = _inputs(node)
    if _class_type(node) == _SWITCH or not inputs:
        return node
    return {**node, "inputs": {name: _value(each, nodes, chosen) for name, each in inputs.items()}}


def _value(given: Any, nodes: Mapping[str, Any], chosen: dict[str, Any]) -> Any:
    """The value, or what the switches choose that it leads to; `chosen` remembers each of them."""
    passed: dict[str, None] = {}
    value = given
    while (switch := _linked(value, nodes, _SWITCH)) is not None:
        if switch in chosen:
            value = chosen[switch]
            break
        if switch in passed:  # a cycle of switches chooses nothing
            value = [switch, 0]
            break
        passed[switch] = None
        inputs = _inputs(nodes[switch])
        truth = _truth(inputs.get("switch"), nodes)
        name = "on_true" if truth else "on_false"
        if truth is None or name not in inputs:
            value = [switch, 0]
            break
        value = inputs[name]
    chosen.update(dict.fromkeys(passed, value))
    return value


def _truth(given: Any, nodes: Mapping[str, Any]) -> bool | None:
    """The truth value, also of a primitive; None if only the run tells it."""
    if (primitive := _linked(given, nodes, _TRUTH)) is not None:
        given = _inputs(nodes[primitive]).get("value")
    if isinstance(given, bool):
        return given
    number = finite_number(given)
    return None if number is None else number != 0


def _linked(value: Any, nodes: Mapping[str, Any], class_type: str) -> str | None:
    """The id of the node of that type whose output the value is a link to."""
    match value:
        case [str() as node_id, int() as output] if output == 0 and output is not False:
            return node_id if _class_type(nodes.get(node_id)) == class_type else None
        case _:
            return None


def _class_type(node: Any) -> Any:
    return node.get("class_type") if isinstance(node, dict) else None


def _inputs(node: Any) -> dict[str, Any]:
    inputs = node.get("inputs") if isinstance(node, dict) else None
    return inputs if isinstance(inputs, dict) else {}
