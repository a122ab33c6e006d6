"""The file of ComfyUI's editor, turned into a graph where that is certain.

Its form is that of https://docs.comfy.org/specs/workflow_json, 0.4 and 1.0. It has the values of a
node as a bare list, in the order in which the node declares them. Behind a seed the editor adds
what it does to it after each run.
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
"""A button of a node that names a file: its input, which no graph has, and its value."""
_SHOWN = 100
"""The most characters that an error repeats of a text."""
_RUNS = 0
"""The mode of a node that is neither muted nor bypassed."""

Id: TypeAlias = Annotated[str, Field(coerce_numbers_to_str=True)]
"""As a graph has it. Of numbers whoever sends them can choose many that a set mistakes for one."""
_LINK_MEMBERS = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")


def _by_name(link: Any) -> Any:
    """A link of version 0.4 is a list."""
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
    """Why the file cannot be turned into a graph with certainty."""


def is_of_editor(value: object) -> bool:
    """Whether it has the form of a file of ComfyUI's editor, and not that of a graph."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("nodes"), list)
        and isinstance(value.get("links"), list)
    )


def prompt_of(file: Mapping[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """The graph as "Save (API Format)" would have it. Raises GraphInvalid where that is open."""
    try:
        return _Graph(_File.model_validate(file), catalogue).prompt()
    except ValidationError as error:
        place = ".".join(str(each) for each in error.errors()[0]["loc"])
        why = f"{place} is not as the editor writes it"
    except _Uncertain as error:
        why = str(error)
    raise GraphInvalid(
        "no_prompt",
        "This is the file of ComfyUI's editor, and what it would run is not certain",
        f'{why}; save it there with "Save (API Format)" (Export (API)), and send that file',
    )


class _Graph:
    def __init__(self, file: _File, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._nodes = {each.id: each for each in file.nodes if each.type not in _NOTES}
        self._links = {each.id: each for each in file.links}
        self._sources: dict[Id | None, _Link] = {}
        """By the link, the one at the other end of reroutes."""

    def prompt(self) -> dict[str, Any]:
        return {
            node.id: {"class_type": node.type, "inputs": self._inputs(node)}
            for node in self._nodes.values()
            if node.type not in {_REROUTE, _PRIMITIVE}
        }

    def _inputs(self, node: _Node) -> dict[str, Any]:
        where = _place(node)
        declared = self._catalogue.node(node.type)
        if node.mode != _RUNS:
            raise _Uncertain(f"{where} is muted or bypassed")
        if declared is None:
            raise _Uncertain(f"{where} is of a type that is not known here")
        inputs = _values(node, declared, where)
        for each in node.inputs:
            if each.name == _UPLOAD and declared.file_inputs:
                continue
            if each.name not in declared.all_inputs:
                raise _Uncertain(
                    f"{where} has an input {each.name[:_SHOWN]!r} that is not known here"
                )
            if each.link is not None:
                inputs[each.name] = self._given(each.link, where)
        return inputs

    def _given(self, link: Id, where: str) -> Any:
        """The output that a link comes from, or the value of a primitive node."""
        source = self._source(link)
        origin = self._nodes.get(source.origin_id) if source else None
        if source is None or origin is None:
            raise _Uncertain(f"a link to {where} comes from nowhere")
        if origin.type != _PRIMITIVE:
            return [origin.id, source.origin_slot]
        if not isinstance(origin.widgets_values, list) or not origin.widgets_values:
            raise _Uncertain(f"{_place(origin)} has no value")
        value = origin.widgets_values[0]
        if isinstance(value, list | dict):  # it would be read as a link, once for each input
            raise _Uncertain(f"{_place(origin)} has a value that is neither a text nor a number")
        return value

    def _source(self, link: Id) -> _Link | None:
        """The link at the other end of reroutes; None where there is none."""
        way: dict[Id, None] = {}
        at: Id | None = link
        while at not in self._sources:
            found = None if at is None or at in way else self._links.get(at)
            if found is None:
                return None
            way[found.id] = None
            origin = self._nodes.get(found.origin_id)
            if origin is None or origin.type != _REROUTE:
                self._sources[found.id] = found
            else:
                at = origin.inputs[0].link if origin.inputs else None
        self._sources |= dict.fromkeys(way, self._sources[at])
        return self._sources[at]


def _place(node: _Node) -> str:
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
        raise _Uncertain(f"{where} has more or fewer values than it has here")
    return values
