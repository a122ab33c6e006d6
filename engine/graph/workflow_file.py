"""Finds the graph in the body of a workflow request.

A body has the graph as a member, is a graph itself, or is a file of ComfyUI's editor. An editor
file is converted to a graph if the conversion is certain. Its format is described in
https://docs.comfy.org/specs/workflow_json, versions 0.4 and 1.0. The values of a node are a list
without names, in the order in which the node type declares its inputs. After a seed, the list has
one more value, which states how the editor changes the seed after each run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, BeforeValidator, FailFast, Field, ValidationError

from engine.errors import GraphInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import Link, NodeType
from engine.graph.graph import SEED_INPUTS

_NOTES = ("Note", "MarkdownNote")
_REROUTE, _PRIMITIVE = "Reroute", "PrimitiveNode"
_AFTER_A_RUN = ("fixed", "increment", "decrement", "randomize")
_UPLOAD, _UPLOAD_LABEL = "upload", "image"
_SHOWN = 100
"""The largest number of characters of a text that an error message quotes."""
_RUNS = 0
"""The mode of a node that is neither muted nor bypassed."""

Id: TypeAlias = Annotated[str, Field(coerce_numbers_to_str=True)]
"""An id, converted to a string as in a graph.

With many numbers of equal hash values as ids, a caller could make sets and dicts slow.
"""
_LINK_MEMBERS = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")


def _by_name(link: Any) -> Any:
    """Return a link as a dict. In version 0.4, a link is a list."""
    return dict(zip(_LINK_MEMBERS, link, strict=False)) if isinstance(link, list) else link


class _Link(BaseModel):
    id: Id
    origin_id: Id
    origin_slot: int


class _Input(BaseModel):
    name: str
    link: Id | None = None


class _Node(BaseModel):
    id: Id
    type: str
    mode: int = _RUNS
    inputs: Annotated[list[_Input], FailFast()] = Field(default_factory=list)
    widgets_values: list[Any] | dict[str, Any] = Field(default_factory=list)


class _File(BaseModel):
    nodes: Annotated[list[_Node], FailFast()]
    links: Annotated[list[Annotated[_Link, BeforeValidator(_by_name)]], FailFast()]


class _Uncertain(Exception):
    """The file cannot be converted to a graph with certainty."""


def is_of_editor(value: object) -> bool:
    """Whether the value has the form of a file of ComfyUI's editor, and not of a graph."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("nodes"), list)
        and isinstance(value.get("links"), list)
    )


def prompt_of(file: Mapping[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """Return the graph as the editor's "Save (API Format)" writes it.

    Raises GraphInvalid if the conversion is not certain.
    """
    try:
        return _Graph(_File.model_validate(file), catalogue).prompt()
    except ValidationError as error:
        place = ".".join(str(each) for each in error.errors()[0]["loc"])
        why = f"{place} is not in the form that the editor writes"
    except _Uncertain as error:
        why = str(error)
    raise GraphInvalid(
        "no_prompt",
        "This is a file of ComfyUI's editor, and it cannot be converted with certainty",
        f'{why}. Save the workflow in the editor with "Save (API Format)" or "Export (API)", '
        "and send that file",
    )


class _Graph:
    def __init__(self, file: _File, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._nodes = {each.id: each for each in file.nodes if each.type not in _NOTES}
        self._links = {each.id: each for each in file.links}
        self._sources: dict[Id | None, _Link] = {}
        """The link before all reroutes, by the id of the link after them."""

    def prompt(self) -> dict[str, Any]:
        return {
            node.id: {"class_type": node.type, "inputs": self._inputs(node)}
            for node in self._nodes.values()
            if node.type not in {_REROUTE, _PRIMITIVE}
        }

    def _inputs(self, node: _Node) -> dict[str, Any]:
        where = _node_text(node)
        declared = self._catalogue.node(node.type)
        if node.mode != _RUNS:
            raise _Uncertain(f"{where} is muted or bypassed")
        if declared is None:
            raise _Uncertain(f"{where} has an unknown type")
        inputs = _values(node, declared, where)
        for each in node.inputs:
            if each.name == _UPLOAD and declared.file_inputs:
                continue
            if each.name not in declared.all_inputs:
                raise _Uncertain(f"{where} has the unknown input {each.name[:_SHOWN]!r}")
            if each.link is not None:
                inputs[each.name] = self._given(each.link, where)
        return inputs

    def _given(self, link: Id, where: str) -> Any:
        """Return the output at which a link starts, or the value of a primitive node."""
        source = self._source(link)
        origin = self._nodes.get(source.origin_id) if source else None
        if source is None or origin is None:
            raise _Uncertain(f"a link to {where} has no source")
        if origin.type != _PRIMITIVE:
            return [origin.id, source.origin_slot]
        if not isinstance(origin.widgets_values, list) or not origin.widgets_values:
            raise _Uncertain(f"{_node_text(origin)} has no value")
        value = origin.widgets_values[0]
        if isinstance(value, list | dict):  # An input would treat such a value as a link.
            raise _Uncertain(
                f"{_node_text(origin)} has a value that is neither a text nor a number"
            )
        return value

    def _source(self, link: Id) -> _Link | None:
        """Follow reroutes back from a link. Return the first link, or None if there is none."""
        visited: dict[Id, None] = {}
        at: Id | None = link
        while at not in self._sources:
            found = None if at is None or at in visited else self._links.get(at)
            if found is None:
                return None
            visited[found.id] = None
            origin = self._nodes.get(found.origin_id)
            if origin is None or origin.type != _REROUTE:
                self._sources[found.id] = found
            else:
                at = origin.inputs[0].link if origin.inputs else None
        self._sources |= dict.fromkeys(visited, self._sources[at])
        return self._sources[at]


def _node_text(node: _Node) -> str:
    return f"node {node.id[:_SHOWN]} ({node.type[:_SHOWN]})"


def _values(node: _Node, declared: NodeType, where: str) -> dict[str, Any]:
    names = [name for name, each in declared.all_inputs.items() if not isinstance(each, Link)]
    if isinstance(node.widgets_values, dict):
        return {name: node.widgets_values[name] for name in names if name in node.widgets_values}
    values, waiting = {}, list(reversed(node.widgets_values))
    for name in names:
        if not waiting:
            break
        values[name] = waiting.pop()
        if name in SEED_INPUTS and waiting and waiting[-1] in _AFTER_A_RUN:
            waiting.pop()
    if declared.file_inputs and waiting == [_UPLOAD_LABEL]:
        waiting.clear()
    if waiting or any(name in declared.inputs for name in names[len(values) :]):
        raise _Uncertain(f"{where} has more or fewer values than its type has here")
    return values


def workflow_members(body: object, catalogue: Catalogue) -> dict[str, Any]:
    """Return the members of a workflow request, with its unchecked graph as `prompt`.

    Raises GraphInvalid for an editor file that cannot be converted to a graph with certainty.
    """
    members = body if isinstance(body, dict) else {}
    if is_of_editor(members):
        return {"prompt": prompt_of(members, catalogue)}
    if is_of_editor(members.get("prompt")):
        return {**members, "prompt": prompt_of(members["prompt"], catalogue)}
    if "prompt" not in members and members and all(map(_is_node, members.values())):
        return {"prompt": members}
    return members


def _is_node(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("class_type"), str)
