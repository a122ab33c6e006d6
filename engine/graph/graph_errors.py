"""The errors of a graph and of its inputs, with ComfyUI's error types and in its shape.

An answer shows only so many of them that it stays small, whatever was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.errors import GraphInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import Input, NodeType, type_name
from engine.graph.graph import Source

_SHOWN_ERRORS = 50
"""The most errors that one answer has; it says how many there are in all."""
_SHOWN_OUTPUTS = 50
"""The most ids in one list of dependent outputs."""
_SHOWN_OUTPUTS_IN_ALL = 200
"""The most ids in all those lists of one answer."""
_LISTED_CHOICES = 20
_SHOWN_CHARS = 100


@dataclass(frozen=True, slots=True)
class InputError:
    """One entry of a node's errors. `type` is ComfyUI's name for the kind of error."""

    type: str
    message: str
    details: str
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    listed: str = ""
    """What may follow the details, and need not be told twice."""

    def body(self) -> dict[str, Any]:
        """The error as a JSON object."""
        return {
            "type": self.type,
            "message": self.message,
            "details": self.details + self.listed,
            "extra_info": dict(self.extra_info),
        }


class InputInvalid(Exception):
    """A node's input is invalid."""

    def __init__(self, error: InputError) -> None:
        super().__init__(error)
        self.error = error


def missing_input(name: str) -> InputError:
    """A required input has no value."""
    message = "A required input is missing"
    return InputError("required_input_missing", message, name, extra_info={"input_name": name})


@dataclass(frozen=True, slots=True)
class GivenInput:
    """An input and the value that a prompt gives it. Each method makes one of its errors."""

    name: str
    declared: Input
    value: Any
    catalogue: Catalogue

    def wrong_type(self) -> InputInvalid:
        """The value cannot be converted to the declared type."""
        problem = f"must be {type_name(self.declared)}"
        return self._invalid("invalid_input_type", "A value has the wrong type", problem)

    def too_small(self, least: float) -> InputInvalid:
        """The number is less than `least`."""
        problem = f"{_shown(self.value)}, at least {least}"
        return self._invalid("value_smaller_than_min", "A value is too small", problem)

    def too_big(self, most: float) -> InputInvalid:
        """The number is greater than `most`."""
        problem = f"{_shown(self.value)}, at most {most}"
        return self._invalid("value_bigger_than_max", "A value is too big", problem)

    def too_long(self, text: str, most: int) -> InputInvalid:
        """The text has more than `most` characters. The error repeats only its beginning."""
        problem = f"{len(text)} characters, at most {most}"
        received = f"{text[:_SHOWN_CHARS]}…"
        return self._invalid(
            "value_bigger_than_max", "A text is too long", problem, received=received
        )

    def not_in_list(self, choices: Sequence[str]) -> InputInvalid:
        """The value is not one of `choices`."""
        listed = ", ".join(choices[:_LISTED_CHOICES]) + (" …" if choices[_LISTED_CHOICES:] else "")
        received = _shown(self.value)
        return InputInvalid(
            InputError(
                "value_not_in_list",
                "A value is not in its list",
                f"{self.name}: {received!r}",
                extra_info={"input_name": self.name, "received_value": received},
                listed=f" not in [{listed}]",
            )
        )

    def bad_link(self, problem: str) -> InputInvalid:
        """The value is a link to no output of the graph."""
        return self._invalid("bad_linked_input", "A link leads nowhere", problem)

    def wrong_link_type(self, source: Source, received_type: str) -> InputInvalid:
        """The linked output is of another type than the input."""
        return InputInvalid(
            InputError(
                "return_type_mismatch",
                "A link brings another type than the input takes",
                f"{self.name}: {received_type}, not {type_name(self.declared)}",
                extra_info={
                    "input_name": self.name,
                    "input_config": self._config(),
                    "received_type": received_type,
                    "linked_node": [source.node_id, source.output],
                },
            )
        )

    def _invalid(
        self, type: str, message: str, problem: str, *, received: str | None = None
    ) -> InputInvalid:
        extra_info = {
            "input_name": self.name,
            "input_config": self._config(),
            "received_value": _shown(self.value) if received is None else received,
        }
        return InputInvalid(InputError(type, message, f"{self.name}: {problem}", extra_info))

    def _config(self) -> list[Any]:
        """The input as `object_info` has it, but of a long list only the first choices."""
        kind, options = self.catalogue.input_config(self.declared)
        return [kind[:_LISTED_CHOICES] if isinstance(kind, list) else kind, options]


def _shown(value: Any) -> Any:
    """A value as an error repeats it: scalars and links, but no deeper structure."""
    match value:
        case int() if abs(value) >= 2**64:
            return "an integer of more than 64 bits"
        case str() | int() | float() | None:
            return value
        case [str() | int() as node_id, str() | int() as output]:
            return [node_id, output]
        case _:
            return f"a {type(value).__name__}"


def graph_invalid(
    errors: Mapping[str, Sequence[InputError]],
    sources: Mapping[str, Sequence[str]],
    types: Mapping[str, NodeType],
) -> GraphInvalid:
    """The error of a graph in which some nodes have errors.

    `sources` has the ids of the nodes that a node is linked to, `types` the type of every node.
    """
    node_errors = _node_errors(errors, sources, types)
    node_id, first = next(iter(errors.items()))
    where = f"node {node_id} ({types[node_id].class_type})"
    return GraphInvalid(
        "prompt_outputs_failed_validation",
        "The prompt is not valid",
        f"{where}: {first[0].message}: {first[0].details}",
        extra_info={
            "errors": sum(len(found) for found in errors.values()),
            "errors_shown": sum(len(each["errors"]) for each in node_errors.values()),
        },
        node_errors=node_errors,
    )


def graph_too_costly(
    node_id: str,
    error: InputError,
    sources: Mapping[str, Sequence[str]],
    types: Mapping[str, NodeType],
) -> GraphInvalid:
    """The error of a graph that is valid, but exceeds a limit at one of its nodes."""
    return GraphInvalid(
        error.type,
        error.message,
        error.details,
        extra_info={**error.extra_info, "node_id": node_id},
        node_errors=_node_errors({node_id: [error]}, sources, types),
    )


def _node_errors(
    errors: Mapping[str, Sequence[InputError]],
    sources: Mapping[str, Sequence[str]],
    types: Mapping[str, NodeType],
) -> dict[str, Any]:
    consumers = _consumers(sources)
    shown: dict[str, Any] = {}
    errors_left, outputs_left = _SHOWN_ERRORS, _SHOWN_OUTPUTS_IN_ALL
    for node_id, found in errors.items():
        if not errors_left:
            break
        most = min(_SHOWN_OUTPUTS, outputs_left)
        outputs = _dependent_outputs(node_id, consumers, types, most=most)
        bodies = [error.body() for error in found[:errors_left]]
        shown[node_id] = {
            "errors": bodies,
            "dependent_outputs": outputs,
            "class_type": types[node_id].class_type,
        }
        errors_left -= len(bodies)
        outputs_left -= len(outputs)
    return shown


def _consumers(sources: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The nodes that take an output of a node, by its id."""
    consumers: dict[str, list[str]] = {node_id: [] for node_id in sources}
    for node_id, linked in sources.items():
        for source in dict.fromkeys(linked):
            consumers[source].append(node_id)
    return consumers


def _dependent_outputs(
    node_id: str,
    consumers: Mapping[str, Sequence[str]],
    types: Mapping[str, NodeType],
    *,
    most: int,
) -> list[str]:
    """The output nodes that need a node, the nearest first, `most` at most."""
    found: list[str] = []
    reached = {node_id}
    pending = [node_id]
    for current in pending:
        if len(found) >= most:
            break
        if types[current].is_output:
            found.append(current)
        fresh = [each for each in consumers[current] if each not in reached]
        reached.update(fresh)
        pending += fresh
    return found
