"""Converts the literals of a prompt to the types that the nodes declare."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from engine.graph.declarations import (
    AnyNumber,
    Boolean,
    Choice,
    Float,
    InputFile,
    Int,
    Link,
    String,
)
from engine.graph.graph_errors import GivenInput
from engine.graph.limits import Limits


def literal_of(given: GivenInput, limits: Limits, input_files: Collection[str] | None) -> Any:
    """The value of an input in its declared type. Raises InputInvalid.

    `input_files` are the names that an `InputFile` may have; None allows any name.
    """
    match given.declared:
        case Int() as declared:
            return _integer(given, declared, limits)
        case Float() as declared:
            return _float(given, declared)
        case String():
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


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold it: half of a surrogate pair is no text."""
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
    if input_files is not None and name not in input_files:
        raise given.not_in_list(tuple(input_files))
    return name
