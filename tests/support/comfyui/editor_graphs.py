"""Converts workflows that ComfyUI's page saved to prompts for its API.

The page stores the values of a node in the order of its widgets, so our declarations must list
inputs in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.graph.catalogue import Catalogue
from engine.graph.declarations import Input, InputFile, Int, Link, NodeType

Prompt = dict[str, Any]
_MUTED, _BYPASSED = 2, 4
_AFTER_SEEDS = {"fixed", "increment", "decrement", "randomize"}
_AFTER_FILES = {"image"}
_NOTES = {"Note", "MarkdownNote"}
_OUTSIDE = -10
"""The id that represents the inputs of a subgraph, inside it."""


def prompt_of(workflow: Mapping[str, Any], catalogue: Catalogue) -> Prompt:
    """Return the prompt of a saved workflow, without muted and unneeded nodes."""
    subgraphs = {each["id"]: each for each in workflow.get("definitions", {}).get("subgraphs", ())}
    scope = _Scope(workflow, "", None, subgraphs)
    return {
        f"{inner.prefix}{node['id']}": {
            "class_type": node["type"],
            "inputs": _inputs(inner, node, catalogue.node(node["type"])),
        }
        for inner, node in scope.nodes()
    }


@dataclass(frozen=True, eq=False)
class _Scope:
    """The workflow, or one use of a subgraph in it."""

    graph: Mapping[str, Any]
    prefix: str
    outer: tuple[_Scope, Mapping[str, Any]] | None
    """The scope around it, and the node that represents it there."""
    subgraphs: Mapping[str, Mapping[str, Any]]

    def nodes(self) -> Iterator[tuple[_Scope, Mapping[str, Any]]]:
        """Yield the nodes that run, including those of subgraphs."""
        for node in self.graph["nodes"]:
            if node.get("mode") in {_MUTED, _BYPASSED} or node["type"] in _NOTES:
                continue
            if node["type"] in self.subgraphs:
                yield from self.inside(node).nodes()
            elif node["type"] not in {"Reroute", "PrimitiveNode"}:
                yield self, node

    def inside(self, node: Mapping[str, Any]) -> _Scope:
        prefix = f"{self.prefix}{node['id']}:"
        return _Scope(self.subgraphs[node["type"]], prefix, (self, node), self.subgraphs)

    def node(self, node_id: int) -> Mapping[str, Any]:
        return next(each for each in self.graph["nodes"] if each["id"] == node_id)

    def source(self, link_id: int | None) -> Any:
        """Return the source of a link: [node id, output], a value in a list, or None."""
        link = next((each for each in map(_link, self.graph["links"]) if each[0] == link_id), None)
        if link is None:
            return None
        _, origin, slot = link
        return self._from_outside(slot) if origin == _OUTSIDE else self._output(origin, slot)

    def _from_outside(self, slot: int) -> Any:
        assert self.outer is not None
        scope, node = self.outer
        name = self.graph["inputs"][slot]["name"]
        given = next((each for each in node.get("inputs", ()) if each["name"] == name), {})
        return scope.source(given.get("link"))

    def _output(self, origin: int, slot: int) -> Any:
        node = self.node(origin)
        if node["type"] in self.subgraphs:
            inner = self.inside(node)
            output = inner.graph["outputs"][slot]
            return inner.source(output["linkIds"][0])
        if node["type"] == "PrimitiveNode":
            return [node["widgets_values"][0]]
        if node["type"] == "Reroute":
            return self.source(node["inputs"][0]["link"])
        if node.get("mode") == _BYPASSED:
            kind = node["outputs"][slot]["type"]
            passed = (each["link"] for each in node["inputs"] if each["type"] == kind)
            return self.source(next(passed, None))
        return None if node.get("mode") == _MUTED else [f"{self.prefix}{origin}", slot]


def _link(link: Any) -> tuple[int, int, int]:
    if isinstance(link, Mapping):
        return link["id"], link["origin_id"], link["origin_slot"]
    return link[0], link[1], link[2]


def _inputs(scope: _Scope, node: Mapping[str, Any], declared: NodeType | None) -> dict[str, Any]:
    values = node.get("widgets_values") or ()
    found = dict(values) if isinstance(values, Mapping) else dict(_named(values, declared))
    for given in node.get("inputs", ()):
        match scope.source(given.get("link")):
            case [value]:
                found[given["name"]] = value
            case [_, _] as source:
                found[given["name"]] = source
    return found


def _named(values: Sequence[Any], declared: NodeType | None) -> Iterator[tuple[str, Any]]:
    """The values of a node's widgets with their names."""
    rest = list(values)
    for name, each in declared.all_inputs.items() if declared else ():
        if isinstance(each, Link) or not rest:
            continue
        yield name, rest.pop(0)
        if rest and _is_extra(rest[0], after=each):
            rest.pop(0)


def _is_extra(value: object, *, after: Input) -> bool:
    """Whether the value belongs to a widget that is no input: seed control, or an upload."""
    match after:
        case Int():  # old workflows have a boolean
            return isinstance(value, bool) or value in _AFTER_SEEDS
        case InputFile():
            return value in _AFTER_FILES
        case _:
            return False
