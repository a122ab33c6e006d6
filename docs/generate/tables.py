"""Markdown tables, and JSON Schemas as such tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Schema: TypeAlias = Mapping[str, Any]

FIELD_COLUMNS = ("field", "type", "default", "meaning")

_BAR_OR_CODE = re.compile(r"(?P<code>`[^`]*`)|\|")
_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. A cell may hold line breaks and `|`."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    """Return the text on one line.

    `|` is escaped only outside of code, as Python-Markdown requires.
    """
    return _BAR_OR_CODE.sub(lambda match: match["code"] or "\\|", " ".join(text.split()))


def field_table(schema: Schema) -> str:
    """Return a table of the fields of an object. The fields of inner objects follow their field."""
    return table(FIELD_COLUMNS, _field_rows(schema))


def _field_rows(schema: Schema, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        default = "required" if name in required else default_of(field)
        yield f"`{prefix}{name}`", type_of(field), default, field.get("description", "")
        for suffix, inner in _inner_objects(field):
            yield from _field_rows(inner, f"{prefix}{name}{suffix}.")


def _inner_objects(field: Schema) -> Iterator[tuple[str, Schema]]:
    for choice in field.get("anyOf", [field]):
        if "properties" in choice:
            yield "", choice
        for suffix, key in (("[]", "items"), (".*", "additionalProperties")):
            if isinstance(inner := choice.get(key), dict):
                yield suffix, inner


def default_of(field: Schema) -> str:
    """Return the default in words, or nothing if there is none or it is null."""
    default = field.get("default")
    return "" if default is None else f"`{json.dumps(default, ensure_ascii=False)}`"


def type_of(schema: Schema) -> str:
    """Return the type in words, with its bounds. A named schema is a link to its heading."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if choices := schema.get("anyOf"):
        return " or ".join(dict.fromkeys(map(type_of, choices)))
    if values := schema.get("enum", [schema["const"]] if "const" in schema else None):
        return " or ".join(f"`{json.dumps(each)}`" for each in values)
    bounds = [words.format(schema[key]) for key, words in _BOUNDS.items() if key in schema]
    return ", ".join([_kind(schema), *bounds])


def _kind(schema: Schema) -> str:
    kind = str(schema.get("type", "any"))
    if kind == "array" and schema.get("items"):
        return f"list of {type_of(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {type_of(schema['additionalProperties'])}"
    return f"{kind} ({schema['format']})" if "format" in schema else kind


def with_definitions(schema: Any, definitions: Schema) -> Any:
    """Return the schema with each reference replaced by its definition."""
    if isinstance(schema, list):
        return [with_definitions(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return with_definitions(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: with_definitions(each, definitions) for key, each in schema.items()}
