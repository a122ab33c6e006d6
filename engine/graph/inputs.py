"""Checks one node's inputs against its declaration and turns literals into their declared types."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.graph.catalogue import Catalogue
from engine.graph.declarations import (
    Boolean,
    Choice,
    Float,
    Input,
    InputFile,
    Int,
    Link,
    NodeType,
    String,
    type_name,
)
from engine.graph.graph import Source
from engine.graph.limits import Limits

_LISTED_CHOICES = 20
_SHOWN_CHARS = 100


@dataclass(frozen=True, slots=True)
class InputError:
    """One entry of a node's errors, in ComfyUI's shape."""

    type: str
    message: str
    details: str
    extra_info: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "message": self.message,
            "details": self.details,
            "extra_info": dict(self.extra_info),
        }


@dataclass(slots=True)
class Checked:
    """A node's inputs after the check."""

    literals: dict[str, Any] = field(default_factory=dict)
    links: dict[str, Source] = field(default_factory=dict)
    errors: list[InputError] = field(default_factory=list)

    @property
    def targets(self) -> tuple[str, ...]:
        """The nodes that it is linked to."""
        return tuple(source.node_id for source in self.links.values())


class _Refused(Exception):
    def __init__(self, error: InputError) -> None:
        super().__init__(error)
        self.error = error


def check_inputs(
    inputs: Mapping[str, Any],
    declared: NodeType,
    types: Mapping[str, NodeType],
    *,
    catalogue: Catalogue,
    limits: Limits,
    input_files: Collection[str] | None = None,
) -> Checked:
    """Check what is declared, ignore what is not. `types` has all nodes of the graph."""
    checked = Checked()
    check = _Check(types, catalogue, limits, input_files)
    for name, each in declared.all_inputs.items():
        if name in declared.optional and name not in inputs:
            continue
        try:
            check.one(name, each, inputs, checked)
        except _Refused as refused:
            checked.errors.append(refused.error)
    if declared.pixel_inputs and not checked.errors:
        checked.errors += check.pixels(declared.pixel_inputs, checked.literals)
    if declared.check and not checked.errors:
        try:
            declared.check(checked.literals)
        except ValueError as error:
            message = "A node refuses its inputs"
            checked.errors.append(InputError("custom_validation_failed", message, str(error)))
    return checked


@dataclass(frozen=True, slots=True)
class _Check:
    types: Mapping[str, NodeType]
    catalogue: Catalogue
    limits: Limits
    input_files: Collection[str] | None
    """The names that an `InputFile` may be given; None: any."""

    def one(self, name: str, declared: Input, inputs: Mapping[str, Any], checked: Checked) -> None:
        if name not in inputs:
            extra = {"input_name": name}
            error = InputError("required_input_missing", "A required input is missing", name, extra)
            raise _Refused(error)
        value = inputs[name]
        if isinstance(value, list) or isinstance(declared, Link):
            source = self._source(name, declared, value)
            # Kept even where the type does not match, so that the node it names is checked too.
            checked.links[name] = source
            self._require_type(name, declared, source)
        else:
            checked.literals[name] = self._literal(name, declared, value)

    def pixels(self, names: tuple[str, ...], literals: Mapping[str, Any]) -> list[InputError]:
        if not all(name in literals for name in names):
            return []
        asked = math.prod(literals[name] for name in names)
        if asked <= self.limits.max_pixels:
            return []
        details = f"{' x '.join(names)}: {asked} pixels, at most {self.limits.max_pixels}"
        extra = {"input_name": names[0], "received_value": asked}
        return [InputError("value_bigger_than_max", "Too many pixels", details, extra)]

    def _source(self, name: str, declared: Input, value: Any) -> Source:
        match value:
            case [str() as node_id, int() as output] if not isinstance(output, bool):
                target = self.types.get(node_id)
                if target is None:
                    problem = f"{name}: there is no node {node_id}"
                elif not 0 <= output < len(target.outputs):
                    problem = f"{name}: {target.class_type} has {len(target.outputs)} outputs"
                else:
                    return Source(node_id, output)
            case _:
                problem = f"{name}: must be [node id, output index]"
        message = "A link leads nowhere"
        raise self._refused("bad_linked_input", message, problem, (name, declared, value))

    def _require_type(self, name: str, declared: Input, source: Source) -> None:
        received = self.types[source.node_id].outputs[source.output]
        expected = type_name(declared)
        if received == expected:
            return
        extra = {
            "input_name": name,
            "input_config": self._config(declared),
            "received_type": received,
            "linked_node": [source.node_id, source.output],
        }
        message = "A link brings another type than the input takes"
        details = f"{name}: {received}, not {expected}"
        raise _Refused(InputError("return_type_mismatch", message, details, extra))

    def _literal(self, name: str, declared: Input, value: Any) -> Any:
        match declared:
            case Int():
                return self._whole(name, declared, value)
            case Float():
                number = finite_number(value)
                self._require_range(name, declared, number, value, (declared.min, declared.max))
                return number
            case String():
                return self._text(name, declared, value)
            case Boolean():
                return self._truth(name, declared, value)
            case Choice():
                return self._chosen(name, declared, value)
            case InputFile():
                return self._file(name, declared, value)
            case Link():
                raise AssertionError("a link has no literal")

    def _whole(self, name: str, declared: Int, value: Any) -> int:
        number = whole_number(value)
        self._require_range(name, declared, number, value, self.limits.bounds(declared))
        assert number is not None
        return number - number % declared.multiple

    def _text(self, name: str, declared: String, value: Any) -> str:
        text = str(value) if finite_number(value) is not None else value
        if not isinstance(text, str) or not _is_unicode(text):
            raise self._wrong_type(name, declared, value)
        if len(text) > (most := self.limits.max_text_chars):
            problem = f"{name}: {len(text)} characters, at most {most}"
            at = (name, declared, f"{text[:_SHOWN_CHARS]}…")
            raise self._refused("value_bigger_than_max", "A text is too long", problem, at)
        return text

    def _truth(self, name: str, declared: Boolean, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        number = finite_number(value)
        if number is None:
            raise self._wrong_type(name, declared, value)
        return number != 0

    def _chosen(self, name: str, declared: Choice, value: Any) -> str:
        choices = self.catalogue.choices(declared)
        if isinstance(value, str):
            if value in choices:
                return value
            if declared.resolve:
                try:
                    return declared.resolve(value)
                except ValueError:
                    pass
        raise _not_in_list(name, value, choices)

    def _file(self, name: str, declared: InputFile, value: Any) -> str:
        if not isinstance(value, str) or not _is_unicode(value):
            raise self._wrong_type(name, declared, value)
        if self.input_files is not None and value not in self.input_files:
            raise _not_in_list(name, value, tuple(self.input_files))
        return value

    def _require_range(
        self, name: str, declared: Int | Float, number: float | None, /, *rest: Any
    ) -> None:
        value, (least, most) = rest
        if number is None:
            raise self._wrong_type(name, declared, value)
        at = (name, declared, value)
        if number < least:
            problem = f"{name}: {_shown(value)}, at least {least}"
            raise self._refused("value_smaller_than_min", "A value is too small", problem, at)
        if number > most:
            problem = f"{name}: {_shown(value)}, at most {most}"
            raise self._refused("value_bigger_than_max", "A value is too big", problem, at)

    def _wrong_type(self, name: str, declared: Input, value: Any) -> _Refused:
        problem = f"{name}: must be {type_name(declared)}"
        at = (name, declared, value)
        return self._refused("invalid_input_type", "A value has the wrong type", problem, at)

    def _refused(
        self, type: str, message: str, details: str, at: tuple[str, Input, Any]
    ) -> _Refused:
        name, declared, value = at
        extra = {
            "input_name": name,
            "input_config": self._config(declared),
            "received_value": _shown(value),
        }
        return _Refused(InputError(type, message, details, extra))

    def _config(self, declared: Input) -> list[Any]:
        return self.catalogue.input_config(declared)


def _not_in_list(name: str, value: Any, choices: Sequence[str]) -> _Refused:
    some = ", ".join(choices[:_LISTED_CHOICES]) + (" …" if choices[_LISTED_CHOICES:] else "")
    extra = {"input_name": name, "received_value": _shown(value)}
    details = f"{name}: {_shown(value)!r} not in [{some}]"
    return _Refused(InputError("value_not_in_list", "A value is not in its list", details, extra))


def whole_number(value: Any) -> int | None:
    """An integer from a number or a numeric string, cut towards zero; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(value)
    except (ValueError, OverflowError):
        return None


def finite_number(value: Any) -> float | None:
    """A finite float from a number or a numeric string; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: Any) -> Any:
    """A value as an error repeats it: scalars and links, never a tree of any depth."""
    match value:
        case int() if abs(value) >= 2**64:
            return "an integer of more than 64 bits"
        case str() | int() | float() | None:
            return value
        case [str() | int() as node_id, str() | int() as output]:
            return [node_id, output]
        case _:
            return f"a {type(value).__name__}"
