"""Converts a file of ComfyUI's editor to a graph, as the editor's "Save (API Format)" does.

Nodes that only the editor knows, muted nodes and bypassed nodes are not part of a graph. A link
from a reroute, Get, Set or bypassed node is replaced by the link to its source, and a link from a
primitive node by its value. A link from a muted node is removed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeAlias

from pydantic import ValidationError

from engine.errors import GraphInvalid
from engine.graph.editor_file.format import Definitions, File, Graph, Id, Input, Node, Subgraph
from engine.graph.editor_file.group_nodes import INPUTS, PRIMITIVE, REROUTE, group_node
from engine.graph.editor_file.placeholders import chosen_text, filled_prefix
from engine.graph.editor_file.widgets import (
    CONTROL_AFTER_GENERATE,
    Declaration,
    Widget,
    inputs_of,
    named_values,
)
from engine.graph.validation import missing_node_types

Declared: TypeAlias = Callable[[str], Declaration | None]
"""Returns the declaration of a node type, or None for an unknown type."""

_MUTED, _BYPASSED = 2, 4
_SETTERS, _GETTERS = ("SetNode", "easy setNode"), ("GetNode", "easy getNode")
_PASSING = (REROUTE, "Reroute (rgthree)", "ReroutePrimitive|pysssss", *_SETTERS)
"""The types of nodes whose output is their first input."""
_OF_EDITOR = {
    *_PASSING,
    *_GETTERS,
    PRIMITIVE,
    "Bookmark (rgthree)",
    "Fast Actions Button (rgthree)",
    "Fast Bypasser (rgthree)",
    "Fast Groups Bypasser (rgthree)",
    "Fast Groups Muter (rgthree)",
    "Fast Muter (rgthree)",
    "Label (rgthree)",
    "MarkdownNote",
    "Mute / Bypass Relay (rgthree)",
    "Mute / Bypass Repeater (rgthree)",
    "Node Collector (rgthree)",
    "Note",
    "Note Plus (mtb)",
    "Random Unmuter (rgthree)",
}
"""The types of nodes that only the editor knows."""
_GROUP = re.compile("workflow[>/](.*)", re.DOTALL)
"""The type of a group node, with the name of the group."""
_NESTED = re.compile(r"\s*(\d+)\s*:\s*(.+)", re.DOTALL)
"""In some versions, the name of a promoted widget that belongs to a nested subgraph."""
_OWN_INPUT = "-1"
"""The node id of a promoted widget that is an input of the subgraph."""
_NO_INPUTS = ("control_after_generate", "upload")
"""The names of widgets that are no inputs."""
_CORE = ("nodes", "comfy_extras.", "comfy_api_nodes.")
"""The modules of the nodes that belong to ComfyUI itself."""
_PREFIX = "filename_prefix"
_MOST_SIZE = 10_000
"""The largest number of nodes and links of all subgraphs, each counted as often as it is used."""
_MOST_FOLLOWED = 100_000
"""The largest number of links that are followed for all inputs."""
_DEEPEST = 20
_LONGEST_PREFIX = 1000
_MOST_INPUTS = 200
"""The largest number of inputs of a bypassed node that are compared with its outputs."""


class _Uncertain(Exception):
    """The file cannot be converted to a graph with certainty."""


class _Output(NamedTuple):
    """An output of a node that is not replaced. The node may be muted."""

    node_id: str
    output: int


class _Value(NamedTuple):
    value: Any
    is_of_widget: bool = True
    """Whether the editor sets the widget of the input to the value, whose placeholders it replaces.
    It does not do this with a value that a subgraph gets.
    """


class _Link(NamedTuple):
    """A link on the way from an input of type `kind` back to its source."""

    scope: _Scope
    link_id: Id
    kind: str


_Source: TypeAlias = _Output | _Value | None
"""The source of an input. None means that the input keeps the value of its widget."""


def prompt_of(
    file: Mapping[str, Any],
    declared: Declared,
    *,
    now: datetime | None = None,
    choose: Callable[[Sequence[str]], str] = secrets.choice,
) -> dict[str, Any]:
    """Return the graph of a file, with the placeholders in its texts replaced.

    `choose` takes one option of a choice in a prompt. Raises GraphInvalid if a node has an unknown
    type, or if the conversion is not certain.
    """
    try:
        checked = File.model_validate(file)
        return _Conversion(checked, declared, now=now or datetime.now(UTC), choose=choose).prompt()
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


class _Definition:
    """The nodes of the file, of a subgraph or of a group node, for all its uses."""

    def __init__(self, graph: Graph, widgets: list[Widget] | None = None) -> None:
        """`widgets` are those of a group node."""
        self.graph = graph
        self.widgets = widgets
        self.nodes = {each.id: each for each in graph.nodes}
        self.links = {each.id: each for each in graph.links}
        named = [each for each in graph.nodes if each.type in _SETTERS and each.values]
        self.setters = {str(each.values[0]): each for each in reversed(named)}
        """The nodes that set a variable, by its name."""
        self.inputs = graph.inputs if isinstance(graph, Subgraph) else []
        self.outputs = graph.outputs if isinstance(graph, Subgraph) else []
        named_inputs = list(enumerate(each.name for each in self.inputs))
        self.indexes = {name: index for index, name in reversed(named_inputs)}
        """The index of each input of the subgraph by its name."""
        linked = [
            (link.origin_slot, node.id, each)
            for node in graph.nodes
            for each in node.inputs
            if each.link is not None and (link := self.links.get(each.link)) is not None
            if link.origin_id == INPUTS
        ]
        self.exposed = {(node_id, each.name): index for index, node_id, each in linked}
        """The index of the input of the subgraph that leads to an input of a node."""
        self.exposed_widgets = sorted({index for index, _, each in linked if each.widget})
        """The indexes of the inputs of the subgraph that lead to widgets."""
        self.size = len(self.inputs) + sum(
            1 + len(each.inputs) + len(each.values) + len(each.promoted) for each in graph.nodes
        )
        """The work for one use, in nodes and their inputs and values."""


class _Scope:
    """One use of a definition."""

    def __init__(
        self,
        definition: _Definition,
        *,
        prefix: str = "",
        outer: _Scope | None = None,
        user: Node | None = None,
    ) -> None:
        """`user` is the node in `outer` that uses the definition."""
        self.definition = definition
        self.prefix = prefix
        self.outer = outer
        self.inner: dict[Id, _Scope] = {}
        """The scopes of the subgraphs that are used here, by the ids of their users."""
        self.promoted: dict[Id, dict[str, Any]] = {}
        """Values that replace those of widgets, by the ids of the nodes and by name."""
        self.values: dict[int, Any] = {}
        """Values for the inputs of the subgraph, by their indexes."""
        self.given: list[Input | None] = []
        """The input of the user for each input of the subgraph."""
        if user is not None:
            self.given = _matching([each.name for each in definition.inputs], user.inputs)
            self._take_values(user)
            self._take_values_from_outside(user)

    def _take_values(self, user: Node) -> None:
        """Take the values that the user has for the inputs and the widgets of the subgraph."""
        promoted, values = user.promoted, user.values
        own = any(node_id == _OWN_INPUT for node_id, _ in promoted)
        by_name = {} if values else user.widgets_values_named or {}
        if self.definition.widgets is not None:
            by_name, _ = named_values(values, self.definition.widgets)
        elif promoted and (own or len(promoted) == len(values)):
            for (node_id, name), value in zip(promoted, values, strict=False):
                self._promote(node_id, name, value)
        else:
            exposed = self.definition.exposed_widgets
            has_more = len(values) > len(exposed)
            kept = [each for each in values if not (has_more and _is_control(each))]
            self.values |= dict(zip(exposed, kept, strict=False))
        for name, value in by_name.items():
            self._promote(_OWN_INPUT, name, value)

    def _take_values_from_outside(self, user: Node) -> None:
        """Take the values that the outer subgraph gives to promoted widgets of this node."""
        nodes: dict[str, list[Id]] = {}
        for node_id, name in user.promoted:
            nodes.setdefault(name, []).append(node_id)
        for name, value in (self.outer.promoted.get(user.id, {}) if self.outer else {}).items():
            nested = _NESTED.fullmatch(name)
            if name in self.definition.indexes:
                self._promote(_OWN_INPUT, name, value)
            elif nested is not None:
                self._promote(nested[1], nested[2], value)
            for node_id in nodes.get(name, ()):
                self._promote(node_id, name, value)

    def _promote(self, node_id: Id, name: str, value: Any) -> None:
        """Set the value of a widget. If an input of the subgraph leads to it, set this input."""
        if node_id == _OWN_INPUT:
            index = self.definition.indexes.get(name)
        else:
            index = self.definition.exposed.get((node_id, name))
        if value is None:
            return
        if index is not None:
            self.values[index] = value
        elif node_id != _OWN_INPUT:
            self.promoted.setdefault(node_id, {})[name] = value


def _matching(names: Iterable[str], inputs: Sequence[Input]) -> list[Input | None]:
    """Return the input for each name. If a name occurs twice, its second occurrence gets the second
    input of that name.
    """
    by_name: dict[str, list[Input]] = {}
    for each in reversed(inputs):
        by_name.setdefault(each.name, []).append(each)
    return [by_name[name].pop() if by_name.get(name) else None for name in names]


def _is_control(value: object) -> bool:
    return isinstance(value, str) and value in CONTROL_AFTER_GENERATE


class _Conversion:
    def __init__(
        self,
        file: File,
        declared: Declared,
        *,
        now: datetime,
        choose: Callable[[Sequence[str]], str],
    ) -> None:
        self._now = now
        self._choose = choose
        self._declared = cache(declared)
        self._inputs_of = cache(self._inputs_of_type)
        self._definition = cache(self._definition_of_type)
        self._groups = (file.extra.groups if file.extra else None) or {}
        self._subgraphs = {each.id: each for each in _subgraphs(file.definitions)}
        self._size = 0
        self._named_values: dict[str, dict[str, Any]] = {}
        """The values of the widgets that placeholders have named, by the names of the nodes."""
        self._sources: dict[_Link, _Source] = {}
        """The sources of the links that were followed before."""
        self._root = _Scope(_Definition(file))
        self._expand(self._root, depth=1)

    def prompt(self) -> dict[str, Any]:
        prompt: dict[str, dict[str, Any]] = {}
        unknown: dict[str, str] = {}
        for scope, node in self._running(self._root):
            node_id = scope.prefix + node.id
            if self._declared(node.type) is None:
                unknown.setdefault(node.type, node_id)
            else:
                prompt[node_id] = {"class_type": node.type, "inputs": self._inputs(scope, node)}
                if node.title:
                    prompt[node_id]["_meta"] = {"title": node.title}
        if unknown:
            raise missing_node_types(unknown)
        for inputs in [each["inputs"] for each in prompt.values()]:
            for name in [*inputs]:
                if isinstance(inputs[name], list) and inputs[name][0] not in prompt:
                    del inputs[name]
        return prompt

    def _running(self, scope: _Scope) -> Generator[tuple[_Scope, Node]]:
        """Yield the nodes that are part of the graph, with those of subgraphs."""
        for node in scope.definition.graph.nodes:
            if node.id in scope.inner:
                yield from self._running(scope.inner[node.id])
            elif node.mode not in (_MUTED, _BYPASSED) and not self._is_of_editor(node):
                yield scope, node

    def _is_of_editor(self, node: Node) -> bool:
        return node.type in _OF_EDITOR and self._declared(node.type) is None

    def _expand(self, scope: _Scope, *, depth: int) -> None:
        """Add the scopes of all subgraphs that run."""
        for node in scope.definition.graph.nodes:
            if node.mode in (_MUTED, _BYPASSED):
                continue
            if (definition := self._definition(node.type)) is None:
                continue
            prefix = f"{scope.prefix}{node.id}:"
            self._size += definition.size
            if self._size > _MOST_SIZE or depth > _DEEPEST or len(prefix) > _LONGEST_PREFIX:
                raise _Uncertain(f"the subgraphs in {node.text} are too large or nested too deeply")
            inner = _Scope(definition, prefix=prefix, outer=scope, user=node)
            scope.inner[node.id] = inner
            self._expand(inner, depth=depth + 1)

    def _definition_of_type(self, class_type: str) -> _Definition | None:
        named = _GROUP.fullmatch(class_type)
        if named is not None and named[1] in self._groups:
            group = group_node(class_type, self._groups[named[1]], self._declared)
            return _Definition(group.subgraph, group.widgets)
        graph = self._subgraphs.get(class_type)
        return None if graph is None else _Definition(graph)

    def _inputs_of_type(self, class_type: str) -> dict[str, Widget | None]:
        declaration = self._declared(class_type)
        return inputs_of(declaration) if declaration else {}

    def _inputs(self, scope: _Scope, node: Node) -> dict[str, Any]:
        """Return the inputs of a node, with the placeholders in its texts replaced."""
        widgets = self._inputs_of(node.type)
        linked = self._linked(scope, node)
        inputs = self._stored_inputs(scope, node, linked)
        for name, value in inputs.items():
            widget, source = widgets.get(name), linked.get(name)
            is_of_widget = not isinstance(source, _Value) or source.is_of_widget
            if widget is None or not is_of_widget or not isinstance(value, str):
                continue
            if widget.options.get("dynamicPrompts"):
                try:
                    inputs[name] = chosen_text(value, self._choose)
                except ValueError as error:
                    raise _Uncertain(f"{node.text}: {error}") from error
            elif name == _PREFIX and self._is_of_core(node):
                inputs[name] = filled_prefix(value, self._value_of, self._now)
        return inputs

    def _value_of(self, node_name: str, widget: str) -> Any:
        """Return the value of a widget of the first node with this name, or None."""
        found = self._named_nodes.get(node_name)
        if found is None:
            return None
        scope, node = found
        if node.type == PRIMITIVE:
            return node.values[0] if widget == "value" and node.values else None
        if node_name not in self._named_values:
            values = self._values(scope, node)
            inputs = self._stored_inputs(scope, node, self._linked(scope, node)).items()
            values |= {name: each for name, each in inputs if not isinstance(each, list)}
            self._named_values[node_name] = values
        return self._named_values[node_name].get(widget)

    @cached_property
    def _named_nodes(self) -> dict[str, tuple[_Scope, Node]]:
        """All nodes by their names, which are a property of the node, or else its title."""
        by_property: dict[str, tuple[_Scope, Node]] = {}
        by_title: dict[str, tuple[_Scope, Node]] = {}
        for scope, node in self._all_nodes(self._root):
            shown = (self._declared(node.type) or {}).get("display_name")
            by_title.setdefault(str(node.title or shown or node.type), (scope, node))
            if (name := (node.properties or {}).get("Node name for S&R")) is not None:
                by_property.setdefault(str(name), (scope, node))
        return by_title | by_property

    def _all_nodes(self, scope: _Scope) -> Generator[tuple[_Scope, Node]]:
        for node in scope.definition.graph.nodes:
            yield scope, node
            if node.id in scope.inner:
                yield from self._all_nodes(scope.inner[node.id])

    def _is_of_core(self, node: Node) -> bool:
        module = str((self._declared(node.type) or {}).get("python_module"))
        return module.startswith(_CORE)

    def _values(self, scope: _Scope, node: Node) -> dict[str, Any]:
        """Return the values of the widgets of a node by name."""
        widgets = [each for each in self._inputs_of(node.type).values() if each is not None]
        values = node.widgets_values or node.widgets_values_named or ()
        named, left = named_values(values, widgets)
        named = {**self._states(node, left), **named}
        return named | scope.promoted.get(node.id, {})

    def _linked(self, scope: _Scope, node: Node) -> dict[str, _Output | _Value]:
        """Return the sources of the linked inputs of a node by name."""
        linked = (each for each in node.inputs if each.link is not None)
        sources = ((each.name, self._source(scope, node, each)) for each in linked)
        return {name: source for name, source in sources if source is not None}

    def _stored_inputs(
        self, scope: _Scope, node: Node, linked: Mapping[str, _Output | _Value]
    ) -> dict[str, Any]:
        """Return the inputs of a node as they are in the file."""
        inputs = {
            name: _wrapped(value)
            for name, value in self._values(scope, node).items()
            if name not in _NO_INPUTS and not name.startswith("$$")
        }
        for name, source in linked.items():
            match source:
                case _Output(node_id, output):
                    inputs[name] = [node_id, output]
                case _Value(value):
                    inputs[name] = _wrapped(value)
        return inputs

    def _states(self, node: Node, left: list[Any]) -> dict[str, Any]:
        """Return inputs for the values that belong to no declared widget.

        Nodes of some packs add such widgets in the editor, with objects as values. Other surplus
        values come from another version of the node and are ignored.
        """
        states: dict[str, Any] = {}
        loras = 0
        if not left or self._is_of_core(node):
            return states
        if node.widgets_values_named is not None:
            return node.widgets_values_named
        for each in left:
            if isinstance(each, dict) and "lora" in each:
                loras += 1
                states[f"lora_{loras}"] = each
            elif isinstance(each, dict) and isinstance(each.get("type"), str):
                states[each["type"]] = each
            elif isinstance(each, dict | list) and each:
                raise _Uncertain(f"{node.text} has a value that its type does not have here")
        return states

    def _source(self, scope: _Scope, node: Node, slot: Input) -> _Source:
        """Follow a link back, through all nodes that are not part of the graph."""
        assert slot.link is not None
        at: _Link | _Source = _Link(scope, slot.link, slot.type_name)
        visited: dict[_Link, None] = {}
        while isinstance(at, _Link):
            if at in visited:
                raise _Uncertain(f"a link to {node.text} has no source")
            if len(self._sources) + len(visited) >= _MOST_FOLLOWED:
                raise _Uncertain("it has too many links through nodes that only the editor knows")
            visited[at] = None
            at = self._sources[at] if at in self._sources else self._link_before(at, node)
        self._sources |= dict.fromkeys(visited, at)
        return at

    def _link_before(self, at: _Link, consumer: Node) -> _Link | _Source:
        """Return the link before a node that is not part of the graph, or the source itself."""
        scope, link_id, kind = at
        definition = scope.definition
        link = definition.links.get(link_id)
        if link is not None and link.origin_id == INPUTS and scope.outer is not None:
            return _given_from_outside(scope, link.origin_slot, kind)
        origin = definition.nodes.get(link.origin_id) if link else None
        if link is None or origin is None:
            raise _Uncertain(f"a link to {consumer.text} has no source")
        if origin.id in scope.inner:
            return _link_to_output(scope.inner[origin.id], link.origin_slot, kind)
        if origin.type == PRIMITIVE:
            return _primitive_value(scope, origin, kind)
        if origin.mode == _BYPASSED:
            return _link_past_bypassed(scope, origin, link.origin_slot, kind)
        if not self._is_of_editor(origin):
            return _Output(scope.prefix + origin.id, link.origin_slot)
        setting: tuple[_Scope, Node] | None = (scope, origin)
        if origin.type in _GETTERS:
            setting = _setter(scope, origin)
        if setting is None:
            raise _Uncertain(f"no node sets the variable that {origin.text} gets")
        scope, origin = setting
        passed = origin.inputs[0].link if origin.type in _PASSING and origin.inputs else None
        return None if passed is None else _Link(scope, passed, kind)


def _subgraphs(definitions: Definitions | None) -> Generator[Subgraph]:
    pending = [definitions]
    while pending:
        for each in found.subgraphs if (found := pending.pop()) else ():
            yield each
            pending.append(each.definitions)


def _given_from_outside(scope: _Scope, slot: int, kind: str) -> _Link | _Source:
    """Return what the user of a subgraph gives to one of its inputs."""
    given = scope.given[slot] if 0 <= slot < len(scope.given) else None
    if given is not None and given.link is not None and scope.outer is not None:
        return _Link(scope.outer, given.link, kind)
    value, is_of_widget = scope.values.get(slot), scope.definition.widgets is not None
    return None if value is None else _Value(value, is_of_widget)


def _link_to_output(scope: _Scope, slot: int, kind: str) -> _Link | None:
    """Return the link to an output of a subgraph."""
    outputs = scope.definition.outputs
    links = outputs[slot].link_ids if 0 <= slot < len(outputs) else []
    return _Link(scope, links[0], kind) if links and links[0] in scope.definition.links else None


def _primitive_value(scope: _Scope, node: Node, kind: str) -> _Link | _Source:
    # Only in a group node, a primitive node has an input.
    for each in node.inputs:
        if each.link is not None:
            return _Link(scope, each.link, kind)
    promoted = scope.promoted.get(node.id)
    values = [*promoted.values()] if promoted else node.values
    return _Value(values[0]) if values else None


def _link_past_bypassed(scope: _Scope, node: Node, output: int, kind: str) -> _Link | None:
    """Return the link to the input of a bypassed node that is passed on as this output."""
    from_type = node.outputs[output].type_name if 0 <= output < len(node.outputs) else "*"
    same = node.inputs[output] if 0 <= output < len(node.inputs) else None

    def fits(each: Input) -> bool:
        return _fits(each.type_name, from_type) and _fits(each.type_name, kind)

    if kind in ("", "*"):
        candidates = [same] if same else node.inputs
    elif same is not None and fits(same):
        candidates = [same]
    else:
        inputs = node.inputs[:_MOST_INPUTS]
        candidates = [each for each in inputs if each.type_name == kind]
        candidates = candidates or [each for each in inputs if fits(each)]
    passed = candidates[0] if candidates else None
    if passed is None or passed.link is None:
        return None
    return _Link(scope, passed.link, passed.type_name)


def _fits(one: str, other: str) -> bool:
    """Whether the editor allows a link between these types, each of which may list several."""
    if one in ("", "*") or other in ("", "*"):
        return True
    kinds = {each.strip() for each in one.lower().split(",")}
    return not kinds.isdisjoint(each.strip() for each in other.lower().split(","))


def _setter(scope: _Scope, getter: Node) -> tuple[_Scope, Node] | None:
    """Return the node that sets the variable of `getter`, in its scope or around it."""
    name = str(getter.values[0]) if getter.values else ""
    around: _Scope | None = scope
    while around is not None:
        if (found := around.definition.setters.get(name)) is not None:
            return around, found
        around = around.outer
    return None


def _wrapped(value: Any) -> Any:
    """Return a value as an input, for which a list would be a link."""
    return {"__value__": value} if isinstance(value, list) else value
