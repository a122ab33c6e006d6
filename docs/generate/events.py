"""The event types, from the models that define them."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from pydantic.json_schema import models_json_schema

from docs.generate.tables import field_table, with_definitions
from events import types
from events.types import EVENT_TYPES, EventData, JobEvent

REFERENCE = "#/components/schemas/{model}"
"""The template of references between schemas."""


def event_types() -> str:
    """Return a section for each type: where it is stored, its meaning, and its fields."""
    schemas = event_schemas()
    return "\n\n".join(_section(each, schemas) for each in EVENT_TYPES.values())


def event_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schemas of all events and of their models, by class name."""
    meanings = _field_docstrings()
    _, document = models_json_schema(
        [(each, "validation") for each in EVENT_TYPES.values()], ref_template=REFERENCE
    )
    schemas: dict[str, dict[str, Any]] = document["$defs"]
    for name, schema in schemas.items():
        _describe(schema, meanings.get(name, {}))
    return schemas


def _section(event: type[EventData], schemas: dict[str, dict[str, Any]]) -> str:
    stream = "JOBS" if issubclass(event, JobEvent) else "DELIVERIES"
    schema = schemas[event.__name__]
    parts = [
        f"### `{event.type_name}`",
        f"`{event.__name__}`, stored in `{stream}`.",
        inspect.cleandoc(event.__doc__ or ""),
        field_table(with_definitions(schema, schemas)) if event.model_fields else "No fields.",
    ]
    return "\n\n".join(filter(None, parts))


def _describe(schema: dict[str, Any], meanings: dict[str, str]) -> None:
    for name, meaning in meanings.items():
        schema["properties"][name]["description"] = meaning


def _field_docstrings() -> dict[str, dict[str, str]]:
    """Return the docstrings by class and field, which Pydantic does not keep for events."""
    classes = [
        node
        for node in ast.parse(inspect.getsource(types)).body
        if isinstance(node, ast.ClassDef) and node.name in vars(types)
    ]
    return {each.name: _docstrings_of(each) for each in classes}


def _docstrings_of(definition: ast.ClassDef) -> dict[str, str]:
    return {
        field.target.id: text.value.value
        for field, text in zip(definition.body, definition.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
