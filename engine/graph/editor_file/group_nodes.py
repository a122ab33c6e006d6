"""Converts the content of a group node of older files to a subgraph.

The editor names the inputs of a group node after the inputs of its nodes, and stores the values of
its widgets in the order of its nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from engine.graph.editor_file.format import Group, Input, Link, Node, Subgraph, SubgraphSlot
from engine.graph.editor_file.widgets import Declaration, Widget, inputs_of

INPUTS = "-10"
"""The id of the node that represents the inputs of a subgraph, inside the subgraph."""
PRIMITIVE, REROUTE = "PrimitiveNode", "Reroute"


class GroupNode(NamedTuple):
    subgraph: Subgraph
    widgets: list[Widget]
    """The widgets of the group node, in the order of its values, named after its inputs."""


def group_node(name: str, group: Group, declared: Callable[[str], Declaration | None]) -> GroupNode:
    return _Conversion(name, group, declared).result()


class _Conversion:
    def __init__(
        self, name: str, group: Group, declared: Callable[[str], Declaration | None]
    ) -> None:
        self._group = group
        self._declared = declared
        nodes = [_unlinked(node, str(index)) for index, node in enumerate(group.nodes)]
        self._subgraph = Subgraph(id=name, nodes=nodes, links=[])
        self._widgets: list[Widget] = []
        self._names: dict[str, int] = {}
        self._linked_outputs: dict[tuple[int, int], Any] = {}
        """The type of the link at each output that is linked inside the group."""
        self._external: dict[tuple[int, int], Any] = {}
        """The type of each output that is also linked outside the group."""

    def result(self) -> GroupNode:
        self._link_nodes()
        converted = [
            (node, slot, widget)
            for index, node in enumerate(self._subgraph.nodes)
            for slot, widget in self._expose_node(index, node)
        ]
        for node, slot, widget in converted:
            if slot.link is None:
                self._expose(node, slot, widget)
        return GroupNode(self._subgraph, self._widgets)

    def _link_nodes(self) -> None:
        nodes = self._subgraph.nodes
        for each in self._group.links:
            match each:
                case [int() as source, int() as output, int() as target, int() as slot, *more]:
                    slots = nodes[target].inputs if 0 <= target < len(nodes) else []
                    if 0 <= slot < len(slots) and 0 <= source < len(nodes):
                        slots[slot].link = self._new_link(str(source), output)
                        self._linked_outputs[source, output] = more[-1] if more else None
        for each in self._group.external:
            match each:
                case [int() as node, int() as output, kind]:
                    self._external[node, output] = kind

    def _new_link(self, origin_id: str, slot: int) -> str:
        links = self._subgraph.links
        links.append(Link(id=str(len(links)), origin_id=origin_id, origin_slot=slot))
        return links[-1].id

    def _expose_node(self, index: int, node: Node) -> list[tuple[Input, Widget]]:
        """Add the inputs and outputs of a node to those of the group, and return its widgets that
        were converted to inputs. These come after all others.
        """
        inputs, outputs = self._sides(index, node)
        slots = {each.name: each for each in reversed(node.inputs)}
        for name, widget in inputs.items():
            slot = slots.get(name)
            if widget is None or (slot is not None and slot.widget):
                continue
            if slot is None:
                slot = Input(name=name, type=widget.type)
                node.inputs = [*node.inputs, slot]
            self._expose(node, slot, widget)
        for name, widget in inputs.items():
            slot = slots.get(name)
            if widget is None and slot is not None and slot.link is None:
                self._expose(node, slot, None)
        for output in range(outputs):
            at = (index, output)
            is_hidden = at in self._linked_outputs and at not in self._external
            if self._custom(node, "output", str(output)).get("visible", not is_hidden):
                link_id = self._new_link(node.id, output)
                self._subgraph.outputs.append(SubgraphSlot(link_ids=[link_id]))
        known = [(each, inputs.get(each.name)) for each in node.inputs if each.widget]
        return [(slot, widget) for slot, widget in known if widget is not None]

    def _sides(self, index: int, node: Node) -> tuple[dict[str, Widget | None], int]:
        """Return the inputs of a node that can be inputs of the group, and the number of outputs
        that can be its outputs.
        """
        if (declaration := self._declared(node.type)) is not None:
            return inputs_of(declaration), len(declaration.get("output") or ())
        is_linked = (index, 0) in self._linked_outputs
        if node.type == PRIMITIVE and is_linked:
            kind = str(self._linked_outputs[index, 0])
            options = {"control_after_generate": kind not in ("STRING", "BOOLEAN")}
            return {"value": Widget("value", kind, is_required=True, options=options)}, 1
        is_within = is_linked and (index, 0) not in self._external
        if node.type == REROUTE and not (is_within and any(each.link for each in node.inputs)):
            kinds = self._linked_outputs | self._external
            for each in node.inputs:
                each.name = str(kinds.get((index, 0), "*"))
            return {each.name: None for each in node.inputs}, 1
        return {}, 0

    def _expose(self, node: Node, slot: Input, widget: Widget | None) -> None:
        """Make an input of a node an input of the group, unless it is hidden."""
        custom = self._custom(node, "input", slot.name)
        name = self._name_of(node, slot, custom)
        if widget is None and custom.get("visible") is False:
            return
        inputs = self._subgraph.inputs
        slot.link = self._new_link(INPUTS, len(inputs))
        inputs.append(SubgraphSlot(name=name, link_ids=[slot.link]))
        if widget is not None:
            self._widgets.append(replace(widget, name=name))

    def _name_of(self, node: Node, slot: Input, custom: dict[str, Any]) -> str:
        name = str(custom.get("name") or slot.label or slot.name)
        key = name
        if name in self._names or (node.type == PRIMITIVE and node.title):
            prefix = node.title or node.type
            key = name = f"{prefix} {slot.name}"
            if name in self._names:
                name = f"{prefix} {self._names[name]} {slot.name}"
        self._names[key] = self._names.get(key, 1) + 1
        return name

    def _custom(self, node: Node, side: str, name: str) -> dict[str, Any]:
        """Return what the author of the file has changed about an input or output of the group."""
        found: Any = self._group.config
        for each in (node.id, side, name):
            found = found.get(each) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}


def _unlinked(node: Node, id: str) -> Node:
    inputs = [each.model_copy(update={"link": None}) for each in node.inputs]
    return node.model_copy(update={"id": id, "inputs": inputs})
