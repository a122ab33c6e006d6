"""Nodes that only compute values: numbers, texts, truth values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.errors import EngineError
from engine.graph.declarations import Boolean, Choice, Float, Int, Link, String, node

if TYPE_CHECKING:
    from engine.diffusion.context import Context

_MOST = 2**63 - 1
_MOST_CHARS = 2**17
_TEXT = String(multiline=True)
_ANY = Link("*")
_WHOLE = Int(0, min=-_MOST, max=_MOST)


@node(
    "PrimitiveInt",
    inputs={"value": _WHOLE},
    outputs=("INT",),
    category="utils/primitive",
    display_name="Int",
    is_pure=True,
)
def primitive_int(context: Context, value: int) -> tuple[int]:
    """A whole number."""
    return (value,)


@node(
    "SeedNode",
    inputs={"seed": Int(0, min=0, max=_MOST, tooltip="A negative one is drawn.")},
    outputs=("INT",),
    output_names=("seed",),
    category="utils/primitive",
    display_name="Seed",
    is_pure=True,
)
def seed_node(context: Context, seed: int) -> tuple[int]:
    """A seed for several nodes."""
    return (seed,)


@node(
    "PrimitiveFloat",
    inputs={"value": Float(0.0, min=-_MOST, max=_MOST, step=0.1)},
    outputs=("FLOAT",),
    category="utils/primitive",
    display_name="Float",
    is_pure=True,
)
def primitive_float(context: Context, value: float) -> tuple[float]:
    """A number."""
    return (value,)


@node(
    "PrimitiveString",
    inputs={"value": String()},
    outputs=("STRING",),
    category="utils/primitive",
    display_name="String",
    is_pure=True,
)
def primitive_string(context: Context, value: str) -> tuple[str]:
    """A text."""
    return (value,)


@node(
    "PrimitiveStringMultiline",
    inputs={"value": _TEXT},
    outputs=("STRING",),
    category="utils/primitive",
    display_name="String (Multiline)",
    is_pure=True,
)
def primitive_string_multiline(context: Context, value: str) -> tuple[str]:
    """A text of several lines."""
    return (value,)


@node(
    "PrimitiveBoolean",
    inputs={"value": Boolean(False)},
    outputs=("BOOLEAN",),
    category="utils/primitive",
    display_name="Boolean",
    is_pure=True,
)
def primitive_boolean(context: Context, value: bool) -> tuple[bool]:
    """True or false."""
    return (value,)


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

    Which one must follow from literals alone, its own or that of a PrimitiveBoolean.
    """
    raise AssertionError("what it chooses stands in its place")


@node(
    "StringConcatenate",
    inputs={"string_a": _TEXT, "string_b": _TEXT, "delimiter": String()},
    outputs=("STRING",),
    category="utils/string",
    display_name="Concatenate",
    is_pure=True,
)
def string_concatenate(
    context: Context, string_a: str, string_b: str, delimiter: str
) -> tuple[str]:
    """Puts two texts one after the other, with a third between them."""
    return (delimiter.join((string_a, string_b)),)


@node(
    "StringSubstring",
    inputs={"string": _TEXT, "start": _WHOLE, "end": _WHOLE},
    outputs=("STRING",),
    category="utils/string",
    display_name="Substring",
    is_pure=True,
)
def string_substring(context: Context, string: str, start: int, end: int) -> tuple[str]:
    """A part of a text, without the character at `end`; negative places count from its end."""
    return (string[start:end],)


@node(
    "StringLength",
    inputs={"string": _TEXT},
    outputs=("INT",),
    output_names=("length",),
    category="utils/string",
    display_name="Length",
    is_pure=True,
)
def string_length(context: Context, string: str) -> tuple[int]:
    """The number of characters of a text."""
    return (len(string),)


@node(
    "CaseConverter",
    inputs={
        "string": _TEXT,
        "mode": Choice(("UPPERCASE", "lowercase", "Capitalize", "Title Case")),
    },
    outputs=("STRING",),
    category="utils/string",
    display_name="Case Converter",
    is_pure=True,
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


@node(
    "StringTrim",
    inputs={"string": _TEXT, "mode": Choice(("Both", "Left", "Right"))},
    outputs=("STRING",),
    category="utils/string",
    display_name="Trim",
    is_pure=True,
)
def string_trim(context: Context, string: str, mode: str) -> tuple[str]:
    """Takes white space off the ends of a text."""
    match mode:
        case "Left":
            return (string.lstrip(),)
        case "Right":
            return (string.rstrip(),)
        case _:
            return (string.strip(),)


@node(
    "StringReplace",
    inputs={"string": _TEXT, "find": _TEXT, "replace": _TEXT},
    outputs=("STRING",),
    category="utils/string",
    display_name="Replace",
    is_pure=True,
)
def string_replace(context: Context, string: str, find: str, replace: str) -> tuple[str]:
    """Replaces a part of a text wherever it stands."""
    chars = len(string) + string.count(find) * max(0, len(replace) - len(find))
    if chars > _MOST_CHARS:
        raise EngineError(f"the text would have {chars} characters, at most {_MOST_CHARS} are made")
    return (string.replace(find, replace),)


@node(
    "StringContains",
    inputs={"string": _TEXT, "substring": _TEXT, "case_sensitive": Boolean(True)},
    outputs=("BOOLEAN",),
    output_names=("contains",),
    category="utils/string",
    display_name="Contains",
    is_pure=True,
)
def string_contains(
    context: Context, string: str, substring: str, case_sensitive: bool
) -> tuple[bool]:
    """Whether a text has another in it."""
    if not case_sensitive:
        string, substring = string.lower(), substring.lower()
    return (substring in string,)


@node(
    "StringCompare",
    inputs={
        "string_a": _TEXT,
        "string_b": _TEXT,
        "mode": Choice(("Starts With", "Ends With", "Equal")),
        "case_sensitive": Boolean(True),
    },
    outputs=("BOOLEAN",),
    category="utils/string",
    display_name="Compare",
    is_pure=True,
)
def string_compare(
    context: Context, *, string_a: str, string_b: str, mode: str, case_sensitive: bool
) -> tuple[bool]:
    """Whether a text begins with another, ends with it, or is the same."""
    if not case_sensitive:
        string_a, string_b = string_a.lower(), string_b.lower()
    match mode:
        case "Starts With":
            return (string_a.startswith(string_b),)
        case "Ends With":
            return (string_a.endswith(string_b),)
        case _:
            return (string_a == string_b,)
