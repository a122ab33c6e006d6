"""The event types, from the models that define them."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from docs.generate.tables import field_table, with_definitions
from events import types
from events.types import EVENT_TYPES, EventData, JobEvent


def event_types() -> str:
    """A section for each type: where it is stored, what it means, its fields."""
    meanings = _field_docstrings()
    return "\n\n".join(_section(each, meanings) for each in EVENT_TYPES.values())


def _section(event: type[EventData], meanings: dict[str, dict[str, str]]) -> str:
    stream = "JOBS" if issubclass(event, JobEvent) else "DELIVERIES"
    schema = event.model_json_schema()
    definitions = schema.pop("$defs", {})
    for name, each in {event.__name__: schema, **definitions}.items():
        _describe(each, meanings.get(name, {}))
    parts = [
        f"### `{event.type_name}`",
        f"`{event.__name__}`, stored in `{stream}`.",
        inspect.cleandoc(event.__doc__ or ""),
        field_table(with_definitions(schema, definitions)) if event.model_fields else "No fields.",
    ]
    return "\n\n".join(filter(None, parts))


def _describe(schema: dict[str, Any], meanings: dict[str, str]) -> None:
    for name, meaning in meanings.items():
        schema["properties"][name]["description"] = meaning


def _field_docstrings() -> dict[str, dict[str, str]]:
    """By class and field. Pydantic keeps them for models that ask for it; events do not."""
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
