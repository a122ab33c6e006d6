"""Checks the inputs of one node: what links lead to, and literals by their declared types."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine.graph.catalogue import Catalogue
from engine.graph.declarations import Link, NodeType, type_name
from engine.graph.graph import Source
from engine.graph.graph_errors import GivenInput, InputError, InputInvalid, missing_input
from engine.graph.inputs.constants import Constants
from engine.graph.inputs.literals import literal_of
from engine.graph.limits import Limits

_SHOWN_ID = 100


@dataclass(slots=True)
class CheckedInputs:
    """The inputs of a node after the check."""

    literals: dict[str, Any] = field(default_factory=dict)
    links: dict[str, Source] = field(default_factory=dict)
    folded: dict[str, Source] = field(default_factory=dict)
    """Links to values that were known, which are among the literals."""
    errors: list[InputError] = field(default_factory=list)

    @property
    def sources(self) -> tuple[str, ...]:
        """The ids of the nodes that the links come from."""
        linked = (*self.links.values(), *self.folded.values())
        return tuple([source.node_id for source in linked])


def check_inputs(
    inputs: Mapping[str, Any],
    declared: NodeType,
    types: Mapping[str, NodeType],
    *,
    catalogue: Catalogue,
    limits: Limits,
    constants: Constants,
    input_files: Collection[str] | None = None,
) -> CheckedInputs:
    """Check the inputs that a node type declares, and ignore all others.

    `types` has the type of every node of the prompt by its id. `input_files` are the names that an
    `InputFile` may have; None allows any name. Links to what `constants` has become literals.
    """
    checked = CheckedInputs()
    for name, each in declared.all_inputs.items():
        if name not in inputs:
            if name not in declared.optional:
                checked.errors.append(missing_input(name))
            continue
        given = GivenInput(name, each, inputs[name], catalogue)
        try:
            if isinstance(given.value, list) or isinstance(each, Link):
                _check_link(given, types, checked)
                source = checked.links[name]
                if isinstance(each, Link) or not constants.has(source):
                    continue
                checked.folded[name] = checked.links.pop(name)
                given = replace(given, value=constants.value(source))
            checked.literals[name] = literal_of(given, limits, input_files)
        except InputInvalid as invalid:
            checked.errors.append(invalid.error)
    if not checked.errors:
        checked.errors += _pixel_errors(declared, checked.literals, limits)
    if not checked.errors:
        checked.errors += _own_errors(declared, checked)
    return checked


def _check_link(given: GivenInput, types: Mapping[str, NodeType], checked: CheckedInputs) -> None:
    source = _source(given, types)
    # A link of the wrong type is kept as well, so that the node it comes from is checked too.
    checked.links[given.name] = source
    received_type = types[source.node_id].outputs[source.output]
    if received_type not in type_name(given.declared).split(","):
        raise given.wrong_link_type(source, received_type)


def linked_values(inputs: object, declared: NodeType) -> list[str]:
    """The ids of the nodes that values, as they were sent, are said to come from."""
    if not isinstance(inputs, dict):
        return []
    found = []
    for name, each in declared.all_inputs.items():
        match inputs.get(name):
            case [str() as node_id, int()] if not isinstance(each, Link):
                found.append(node_id)
    return found


def _source(given: GivenInput, types: Mapping[str, NodeType]) -> Source:
    match given.value:
        case [str() as node_id, int() as output] if not isinstance(output, bool):
            linked = types.get(node_id)
            if linked is None:
                raise given.bad_link(f"there is no node {node_id[:_SHOWN_ID]}")
            if not 0 <= output < len(linked.outputs):
                raise given.bad_link(f"{linked.class_type} has {len(linked.outputs)} outputs")
            return Source(node_id, output)
        case _:
            raise given.bad_link("must be [node id, output index]")


def _pixel_errors(
    declared: NodeType, literals: Mapping[str, Any], limits: Limits
) -> list[InputError]:
    """The error of a node that asks for too many pixels, as far as its literals say."""
    names = declared.pixel_inputs
    if not names or not all(name in literals for name in names):
        return []
    pixels = math.prod(literals[name] for name in names)
    if pixels <= limits.max_pixels:
        return []
    details = f"{' x '.join(names)}: {pixels} pixels, at most {limits.max_pixels}"
    extra_info = {"input_name": names[0], "received_value": pixels}
    return [InputError("value_bigger_than_max", "Too many pixels", details, extra_info)]


def _own_errors(declared: NodeType, checked: CheckedInputs) -> list[InputError]:
    """The error that the node type's own check finds. The run makes it where values are unknown."""
    if declared.check is None or declared.has_values(checked.links):
        return []
    try:
        declared.check(checked.literals)
    except ValueError as error:
        message = "A node refuses its inputs"
        return [InputError("custom_validation_failed", message, str(error))]
    return []
