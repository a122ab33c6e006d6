from __future__ import annotations

from typing import Any

import pytest

from docs.generate.tables import field_table, table, type_of, with_definitions


def test_a_cell_may_hold_lines_and_bars() -> None:
    text = table(["a"], [["one\n  two | three, `x|y`"]])
    assert text.splitlines()[-1] == "| one two \\| three, `x|y` |"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({}, "any"),
        ({"type": "string", "format": "date-time"}, "string (date-time)"),
        ({"type": "integer", "minimum": 1, "maximum": 150}, "integer, ≥ 1, ≤ 150"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        ({"const": True}, "`true`"),
        ({"enum": ["a", "b"]}, '`"a"` or `"b"`'),
        ({"type": "array", "items": {"type": "number"}}, "list of number"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "object of string"),
        ({"type": "object", "additionalProperties": True}, "object"),
        ({"$ref": "#/components/schemas/JobPage"}, "[JobPage](#jobpage)"),
    ],
)
def test_types_are_told_in_words(schema: dict[str, Any], words: str) -> None:
    assert type_of(schema) == words


def test_fields_of_inner_objects_follow_their_own() -> None:
    inner = {"properties": {"x": {"type": "integer"}}}
    schema = {
        "required": ["plain"],
        "properties": {
            "plain": inner,
            "several": {"type": "array", "items": inner},
            "named": {"anyOf": [{"type": "object", "additionalProperties": inner}]},
        },
    }
    names = [line.split("`")[1] for line in field_table(schema).splitlines()[2:]]
    assert names == ["plain", "plain.x", "several", "several[].x", "named", "named.*.x"]


def test_references_are_replaced_by_what_they_refer_to() -> None:
    schema = {"properties": {"a": [{"$ref": "#/$defs/A"}]}}
    definitions = {"A": {"items": {"$ref": "#/$defs/B"}}, "B": {"type": "string"}}
    assert with_definitions(schema, definitions) == {
        "properties": {"a": [{"items": {"type": "string"}}]}
    }
