"""Checks the inputs of one node: links, literals by their declared types, and known values.

The value of a pure node whose inputs are literals is computed before a graph is accepted. Such a
value has the same range, limits and cost as a literal. Errors have ComfyUI's types and shape, and
repeat only a bounded part of the request.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.errors import EngineError
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import (
    AnyNumber,
    AnyValue,
    Boolean,
    Choice,
    Float,
    Input,
    InputFile,
    Int,
    Link,
    NodeType,
    String,
    default_of,
    type_name,
)
from engine.graph.graph import Source
from engine.graph.limits import Limits, TextBudget

INPUT_SUFFIX = " [input]"
"""ComfyUI's suffix for the name of an upload. ComfyUI's names may also have a folder."""
_LISTED_CHOICES = 20
_SHOWN_CHARS = 100
_ANY = "*"


@dataclass(frozen=True, slots=True)
class InputError:
    """An error of a node. `type` is ComfyUI's name for the kind of error."""

    type: str
    message: str
    details: str
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    listed: str = ""
    """Text that `body` adds to the details."""

    def body(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "message": self.message,
            "details": self.details + self.listed,
            "extra_info": dict(self.extra_info),
        }


class InputInvalid(Exception):
    def __init__(self, error: InputError) -> None:
        super().__init__(error)
        self.error = error


def missing_input(name: str) -> InputError:
    message = "A required input is missing"
    return InputError("required_input_missing", message, name, extra_info={"input_name": name})


@dataclass(frozen=True, slots=True)
class GivenInput:
    """An input and its value in a prompt. Each public method returns one kind of error."""

    name: str
    declared: Input
    value: Any
    catalogue: Catalogue

    def wrong_type(self) -> InputInvalid:
        problem = f"must be {type_name(self.declared)}"
        return self._invalid("invalid_input_type", "A value has the wrong type", problem)

    def too_small(self, least: float) -> InputInvalid:
        problem = f"{_shown(self.value)}, at least {least}"
        return self._invalid("value_smaller_than_min", "A value is too small", problem)

    def too_big(self, most: float) -> InputInvalid:
        problem = f"{_shown(self.value)}, at most {most}"
        return self._invalid("value_bigger_than_max", "A value is too big", problem)

    def too_long(self, text: str, most: int) -> InputInvalid:
        problem = f"{len(text)} characters, at most {most}"
        received = f"{text[:_SHOWN_CHARS]}…"
        return self._invalid(
            "value_bigger_than_max", "A text is too long", problem, received=received
        )

    def not_in_list(self, choices: Sequence[str]) -> InputInvalid:
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
        return self._invalid("bad_linked_input", "A link does not lead to an output", problem)

    def wrong_link_type(self, source: Source, received_type: str) -> InputInvalid:
        return InputInvalid(
            InputError(
                "return_type_mismatch",
                "A link has another type than its input",
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
        """Return the input as in `object_info`, with only the first choices of a long list."""
        kind, options = self.catalogue.input_config(self.declared)
        return [kind[:_LISTED_CHOICES] if isinstance(kind, list) else kind, options]


def _shown(value: Any) -> Any:
    """Return a scalar or a link as it is, and a short description of any other value."""
    match value:
        case int() if abs(value) >= 2**64:
            return "an integer of more than 64 bits"
        case str() | int() | float() | None:
            return value
        case [str() | int() as node_id, str() | int() as output]:
            return [node_id, output]
        case _:
            return f"a {type(value).__name__}"


def literal_of(given: GivenInput, limits: Limits, input_files: Collection[str] | None) -> Any:
    """Return the value of an input in its declared type. Raises InputInvalid.

    `input_files` are the names that an `InputFile` may have; None allows any name.
    """
    match given.declared:
        case Int() as declared:
            return _integer(given, declared, limits)
        case Float() as declared:
            return _float(given, declared)
        case AnyValue() if isinstance(given.value, bool | int | float):
            return _any_number(given)
        case AnyValue() | String():
            return _text(given, limits)
        case Boolean():
            return _boolean(given)
        case Choice() as declared:
            return _choice(given, declared)
        case InputFile():
            return _input_file(given, input_files)
        case Link():
            raise AssertionError("a link has no literal")


def whole_number(value: Any) -> int | None:
    """Return a number or a numeric string as an integer, rounded towards zero, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(value)
    except (ValueError, OverflowError):
        return None


def finite_number(value: Any) -> float | None:
    """Return a number or a numeric string as a finite float, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can encode the text. It cannot encode half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _integer(given: GivenInput, declared: Int, limits: Limits) -> int:
    number = whole_number(given.value)
    if number is None:
        raise given.wrong_type()
    least, most = limits.bounds(declared)
    _require_range(given, number, least=least, most=most)
    return number - number % declared.multiple


def _float(given: GivenInput, declared: Float) -> float:
    if isinstance(declared, AnyNumber) and isinstance(given.value, int):
        _require_range(given, given.value, least=declared.min, most=declared.max)
        return given.value
    number = finite_number(given.value)
    if number is None:
        raise given.wrong_type()
    _require_range(given, number, least=declared.min, most=declared.max)
    return number


def _any_number(given: GivenInput) -> bool | int | float:
    if not isinstance(given.value, bool) and finite_number(given.value) is None:
        raise given.wrong_type()
    number: bool | int | float = given.value
    return number


def _require_range(given: GivenInput, number: float, *, least: float, most: float) -> None:
    if number < least:
        raise given.too_small(least)
    if number > most:
        raise given.too_big(most)


def _text(given: GivenInput, limits: Limits) -> str:
    text = given.value
    if not isinstance(text, str) and finite_number(text) is not None:
        text = str(text)
    if not isinstance(text, str) or not is_unicode(text):
        raise given.wrong_type()
    if len(text) > limits.max_text_chars:
        raise given.too_long(text, limits.max_text_chars)
    return text


def _boolean(given: GivenInput) -> bool:
    if isinstance(given.value, bool):
        return given.value
    number = finite_number(given.value)
    if number is None:
        raise given.wrong_type()
    return number != 0


def _choice(given: GivenInput, declared: Choice) -> str:
    choices = given.catalogue.choices(declared)
    if isinstance(given.value, str):
        if given.value in choices:
            return given.value
        if declared.resolve:
            try:
                return declared.resolve(given.value)
            except ValueError:
                pass
    raise given.not_in_list(choices)


def _input_file(given: GivenInput, input_files: Collection[str] | None) -> str:
    name = given.value
    if not isinstance(name, str) or not is_unicode(name):
        raise given.wrong_type()
    name = name.removesuffix(INPUT_SUFFIX).rpartition("/")[2]
    if input_files is not None and name not in input_files:
        raise given.not_in_list(tuple(input_files))
    return name


class Constants:
    """The known outputs of the pure nodes of one prompt."""

    def __init__(self, limits: Limits) -> None:
        self._outputs: dict[str, tuple[Any, ...]] = {}
        self._most_chars = limits.max_text_chars
        self._texts = TextBudget(limits)

    def has(self, source: Source) -> bool:
        return source.node_id in self._outputs

    def value(self, source: Source) -> Any:
        return self._outputs[source.node_id][source.output]

    def add(
        self, node_id: str, declared: NodeType, literals: Mapping[str, Any]
    ) -> InputError | None:
        """Compute a pure node whose inputs are all literals. Returns its error, or None."""
        if problem := self._texts.add_expressions(declared.expressions(literals)):
            return InputError("value_bigger_than_max", "The expressions are too long", problem)
        try:
            outputs = declared.body(None, **literals)
        except EngineError as error:
            return InputError("custom_validation_failed", "A node refuses its inputs", str(error))
        chars = sum(len(each) for each in outputs if isinstance(each, str))
        problem = self._texts.add(outputs)
        if chars > self._most_chars:
            details = (
                f"the node makes {chars} characters, but at most {self._most_chars} are allowed"
            )
            return InputError("value_bigger_than_max", "A text is too long", details)
        if problem:
            return InputError("value_bigger_than_max", "The texts are too long", problem)
        self._outputs[node_id] = outputs
        return None


_SHOWN_ID = 100


@dataclass(slots=True)
class CheckedInputs:
    literals: dict[str, Any] = field(default_factory=dict)
    links: dict[str, Source] = field(default_factory=dict)
    folded: dict[str, Source] = field(default_factory=dict)
    """The links to known values. `literals` contains these values."""
    errors: list[InputError] = field(default_factory=list)

    @property
    def sources(self) -> tuple[str, ...]:
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
    `InputFile` may have; None allows any name. Links to values in `constants` become literals.
    """
    checked = CheckedInputs()
    for name in declared.all_inputs:
        each = declared.chosen_input(name, checked.literals)
        if each is None:
            continue
        if name not in inputs:
            _use_default(name, each, declared, checked)
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


def _use_default(name: str, each: Input, declared: NodeType, checked: CheckedInputs) -> None:
    """Use the default of a part that is not given. Any other required input must be given."""
    if name in declared.parts and (default := default_of(each)) is not None:
        checked.literals[name] = default
    elif name not in declared.optional:
        checked.errors.append(missing_input(name))


def _check_link(given: GivenInput, types: Mapping[str, NodeType], checked: CheckedInputs) -> None:
    source = _source(given, types)
    # A link of the wrong type is kept too, so that the linked node is also checked.
    checked.links[given.name] = source
    received_type = types[source.node_id].outputs[source.output]
    allowed = type_name(given.declared).split(",")
    # An output of any type is that of a switch whose choice is not known.
    if received_type == _ANY or (received_type not in allowed and allowed != [_ANY]):
        raise given.wrong_link_type(source, received_type)


def linked_values(inputs: object, declared: NodeType) -> list[str]:
    """Return the ids of the nodes that are linked to inputs for values. `inputs` may be invalid."""
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
    """Return an error if the product of the `pixel_inputs` exceeds the largest number of pixels."""
    names = declared.pixel_inputs
    if not names or not all(name in literals for name in names):
        return []
    pixels = math.prod(literals[name] for name in names)
    if pixels <= limits.max_pixels:
        return []
    details = f"{' x '.join(names)}: {pixels} pixels, but at most {limits.max_pixels} are allowed"
    extra_info = {"input_name": names[0], "received_value": pixels}
    return [InputError("value_bigger_than_max", "Too many pixels", details, extra_info)]


def _own_errors(declared: NodeType, checked: CheckedInputs) -> list[InputError]:
    """Return the error from the check of the node type. The run checks unknown values."""
    if declared.check is None or declared.has_values(checked.links):
        return []
    try:
        declared.check(checked.literals)
    except ValueError as error:
        message = "A node refuses its inputs"
        return [InputError("custom_validation_failed", message, str(error))]
    return []
