"""Nodes that only compute values: numbers, texts, truth values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError
from engine.graph.cost import Estimate, Scalar
from engine.graph.declarations import (
    AnyValue,
    Boolean,
    Choice,
    Float,
    Int,
    Link,
    String,
    node,
)

if TYPE_CHECKING:
    from engine.diffusion.context import Context

_MOST = 2**63 - 1
_MOST_CHARS = 2**17
_SHOWN_CHARS = 100
_TEXT = String(multiline=True)
_ANY = Link("*")
_WHOLE = Int(0, min=-_MOST, max=_MOST)
_primitive_node = partial(node, category="utils/primitive", is_pure=True)
_string_node = partial(node, category="utils/string", is_pure=True)


@_primitive_node(
    "PrimitiveInt",
    inputs={"value": _WHOLE},
    outputs=("INT",),
    display_name="Int",
)
def primitive_int(context: Context, value: int) -> tuple[int]:
    """Provides a whole number."""
    return (value,)


@_primitive_node(
    "SeedNode",
    inputs={
        "seed": Int(
            0, min=0, max=_MOST, tooltip="The seed. A negative seed is replaced with a random one."
        )
    },
    outputs=("INT",),
    output_names=("seed",),
    display_name="Seed",
)
def seed_node(context: Context, seed: int) -> tuple[int]:
    """Provides one seed for several nodes."""
    return (seed,)


@_primitive_node(
    "PrimitiveFloat",
    inputs={"value": Float(0.0, min=-_MOST, max=_MOST, step=0.1)},
    outputs=("FLOAT",),
    display_name="Float",
)
def primitive_float(context: Context, value: float) -> tuple[float]:
    """Provides a number."""
    return (value,)


@_primitive_node(
    "PrimitiveString",
    inputs={"value": String()},
    outputs=("STRING",),
    display_name="String",
)
def primitive_string(context: Context, value: str) -> tuple[str]:
    """Provides a text."""
    return (value,)


@_primitive_node(
    "PrimitiveStringMultiline",
    inputs={"value": _TEXT},
    outputs=("STRING",),
    display_name="String (Multiline)",
)
def primitive_string_multiline(context: Context, value: str) -> tuple[str]:
    """Provides a text of several lines."""
    return (value,)


@_primitive_node(
    "PrimitiveBoolean",
    inputs={"value": Boolean(False)},
    outputs=("BOOLEAN",),
    display_name="Boolean",
)
def primitive_boolean(context: Context, value: bool) -> tuple[bool]:
    """Provides a truth value."""
    return (value,)


@node(
    "ComfyNumberConvert",
    inputs={"value": AnyValue(tooltip="A number, a truth value, or a text that is a number.")},
    outputs=("FLOAT", "INT"),
    category="utils",
    display_name="Number Convert",
    is_pure=True,
)
def number_convert(context: Context, value: bool | int | float | str) -> tuple[float, int]:
    """Converts a value to a number, and to a whole number, which is rounded towards zero."""
    try:
        number = float(value)
        if not math.isfinite(number):
            raise ValueError
    except (ValueError, OverflowError) as error:
        raise EngineError(f"{str(value)[:_SHOWN_CHARS]!r} is not a number") from error
    try:
        return number, int(value)
    except ValueError:  # The text is a fraction.
        return number, int(number)


def _text_of(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return str(value)
    return f"a value of the type {type(value).__name__}"


def _preview_estimate(inputs: Mapping[str, Any]) -> Estimate:
    source = inputs["source"]
    text = _text_of(source.value if isinstance(source, Scalar) else source)
    return Estimate(results=1, result_bytes=len(text.encode()))


@node(
    "PreviewAny",
    inputs={"source": _ANY},
    category="utils",
    display_name="Preview as Text",
    passed_input="source",
    is_output=True,
    estimate=_preview_estimate,
)
def preview_any(context: Context, source: Any) -> list[str]:
    """Saves a text, a number or a truth value as a text result of the job. Of other values, the
    result is the type.
    """
    return [_text_of(source)]


_RATIOS = {
    "1:1 (Square)": (1, 1),
    "2:3 (Portrait Photo)": (2, 3),
    "3:2 (Photo)": (3, 2),
    "3:4 (Portrait Standard)": (3, 4),
    "4:3 (Standard)": (4, 3),
    "9:16 (Portrait Widescreen)": (9, 16),
    "16:9 (Widescreen)": (16, 9),
    "21:9 (Ultrawide)": (21, 9),
}


@node(
    "ResolutionSelector",
    inputs={
        "aspect_ratio": Choice(tuple(_RATIOS), default="1:1 (Square)"),
        "megapixels": Float(
            1.0,
            min=0.1,
            max=16.0,
            step=0.1,
            tooltip="The number of pixels, in units of 1024 x 1024 pixels.",
        ),
    },
    optional={
        "multiple": Int(
            8, min=8, max=128, step=4, tooltip="The sides become multiples of this, in pixels."
        )
    },
    outputs=("INT", "INT"),
    output_names=("width", "height"),
    category="utils",
    display_name="Resolution Selector",
    is_pure=True,
)
def resolution_selector(
    context: Context, aspect_ratio: str, megapixels: float, multiple: int = 8
) -> tuple[int, int]:
    """Computes a width and a height from their ratio and the number of pixels."""
    ratio = _RATIOS[aspect_ratio]
    factor = math.sqrt(megapixels * 1024 * 1024 / math.prod(ratio))
    width, height = (round(side * factor / multiple) * multiple for side in ratio)
    return width, height


@node(
    "ComfySwitchNode",
    inputs={"switch": Boolean(False), "on_false": _ANY, "on_true": _ANY},
    outputs=(_ANY.type,),
    output_names=("output",),
    category="logic",
    display_name="Switch",
)
def switch_node(context: Context, **_inputs: Any) -> tuple[Any]:
    """Passes on one of two values of any type. The other is neither checked nor run.

    The switch must be a literal, or a link to a PrimitiveBoolean with a literal.
    """
    raise AssertionError("a switch is replaced with its chosen input before a graph runs")


@_string_node(
    "StringConcatenate",
    inputs={"string_a": _TEXT, "string_b": _TEXT, "delimiter": String()},
    outputs=("STRING",),
    display_name="Concatenate",
)
def string_concatenate(
    context: Context, string_a: str, string_b: str, delimiter: str
) -> tuple[str]:
    """Joins two texts with a delimiter between them."""
    return (delimiter.join((string_a, string_b)),)


@_string_node(
    "StringSubstring",
    inputs={"string": _TEXT, "start": _WHOLE, "end": _WHOLE},
    outputs=("STRING",),
    display_name="Substring",
)
def string_substring(context: Context, string: str, start: int, end: int) -> tuple[str]:
    """Takes the part of a text from `start` up to, but not including, `end`. Negative positions
    count from the end of the text.
    """
    return (string[start:end],)


@_string_node(
    "StringLength",
    inputs={"string": _TEXT},
    outputs=("INT",),
    output_names=("length",),
    display_name="Length",
)
def string_length(context: Context, string: str) -> tuple[int]:
    """Counts the characters of a text."""
    return (len(string),)


@_string_node(
    "CaseConverter",
    inputs={
        "string": _TEXT,
        "mode": Choice(("UPPERCASE", "lowercase", "Capitalize", "Title Case")),
    },
    outputs=("STRING",),
    display_name="Case Converter",
)
def case_converter(context: Context, string: str, mode: str) -> tuple[str]:
    """Changes the case of a text."""
    match mode:
        case "UPPERCASE":
            return (string.upper(),)
        case "lowercase":
            return (string.lower(),)
        case "Capitalize":
            return (string.capitalize(),)
        case _:
            return (string.title(),)


@_string_node(
    "StringTrim",
    inputs={"string": _TEXT, "mode": Choice(("Both", "Left", "Right"))},
    outputs=("STRING",),
    display_name="Trim",
)
def string_trim(context: Context, string: str, mode: str) -> tuple[str]:
    """Removes white space from the ends of a text."""
    match mode:
        case "Left":
            return (string.lstrip(),)
        case "Right":
            return (string.rstrip(),)
        case _:
            return (string.strip(),)


@_string_node(
    "StringReplace",
    inputs={"string": _TEXT, "find": _TEXT, "replace": _TEXT},
    outputs=("STRING",),
    display_name="Replace",
)
def string_replace(context: Context, string: str, find: str, replace: str) -> tuple[str]:
    """Replaces every occurrence of a text inside another one."""
    chars = len(string) + string.count(find) * max(0, len(replace) - len(find))
    if chars > _MOST_CHARS:
        raise EngineError(
            f"the text would have {chars} characters, more than the limit of {_MOST_CHARS}"
        )
    return (string.replace(find, replace),)


@_string_node(
    "StringContains",
    inputs={"string": _TEXT, "substring": _TEXT, "case_sensitive": Boolean(True)},
    outputs=("BOOLEAN",),
    output_names=("contains",),
    display_name="Contains",
)
def string_contains(
    context: Context, string: str, substring: str, case_sensitive: bool
) -> tuple[bool]:
    """Tests whether a text contains another one."""
    if not case_sensitive:
        string, substring = string.lower(), substring.lower()
    return (substring in string,)


@_string_node(
    "StringCompare",
    inputs={
        "string_a": _TEXT,
        "string_b": _TEXT,
        "mode": Choice(("Starts With", "Ends With", "Equal")),
        "case_sensitive": Boolean(True),
    },
    outputs=("BOOLEAN",),
    display_name="Compare",
)
def string_compare(
    context: Context, *, string_a: str, string_b: str, mode: str, case_sensitive: bool
) -> tuple[bool]:
    """Tests whether a text begins with another one, ends with it, or equals it."""
    if not case_sensitive:
        string_a, string_b = string_a.lower(), string_b.lower()
    match mode:
        case "Starts With":
            return (string_a.startswith(string_b),)
        case "Ends With":
            return (string_a.endswith(string_b),)
        case _:
            return (string_a == string_b,)
