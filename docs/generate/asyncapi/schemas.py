"""The JSON Schemas of the messages, from the models of the events."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from docs.generate.events import REFERENCE, event_schemas
from events.bus.streams import JOBS
from events.cloud_events import SOURCE
from events.types import EVENT_TYPES

CLOUD_EVENT = "CloudEvent"
HEADERS = "StoredHeaders"

_TEXT = {"type": "string"}
_NULL = {"type": "null"}


def envelope() -> dict[str, Any]:
    """Return the envelope of every event.

    The envelope does not restrict `data`, because each type has its own data.
    """
    return {
        "type": "object",
        "description": "CloudEvents 1.0 in JSON. Fields that are null are omitted",
        "required": [
            *("specversion", "id", "source", "type", "subject", "time", "sequence", "data"),
            "datacontenttype",
        ],
        "properties": {
            "specversion": {"const": "1.0"},
            "id": {
                **_TEXT,
                "description": "Id of the event, the same whenever the event is sent. Use it to "
                "ignore repeated events",
            },
            "source": {"const": SOURCE},
            "type": _TEXT,
            "subject": {**_TEXT, "format": "uuid", "description": "Id of the job"},
            "time": {**_TEXT, "format": "date-time"},
            "sequence": {
                **_TEXT,
                "pattern": "^[0-9]{10,}$",
                "description": "Number of the event in the history of the job, from 1",
            },
            "datacontenttype": {"const": "application/json"},
            "traceparent": {**_TEXT, "description": "https://www.w3.org/TR/trace-context"},
            "data": {"type": "object"},
        },
    }


def headers() -> dict[str, Any]:
    """Return the headers that NATS adds to stored messages, and the id of the event."""
    return {
        "type": "object",
        "required": ["Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp"],
        "properties": {
            "Nats-Stream": {"type": "string", "const": JOBS},
            "Nats-Subject": {
                **_TEXT,
                "description": "The subject under which the event is stored: `jobs.*.<job id>`",
            },
            "Nats-Sequence": {
                **_TEXT,
                "pattern": "^[1-9][0-9]*$",
                "description": "Offset of the event in the log. Offsets increase: continue after "
                "the last handled offset",
            },
            "Nats-Time-Stamp": {**_TEXT, "description": "The time at which the event was stored"},
            "Nats-Msg-Id": {**_TEXT, "description": "Id of the event"},
        },
    }


def data_schemas(names: Collection[str]) -> dict[str, Any]:
    """Return the schemas of the event types `names` and of their models, by the models' names."""
    schemas = event_schemas()
    found: dict[str, Any] = {}
    missing = [EVENT_TYPES[name].__name__ for name in names]
    while missing:
        name = missing.pop(0)
        if name not in found:
            found[name] = _as_sent(schemas[name])
            missing += _named_in(schemas[name])
    return dict(sorted(found.items()))


def _named_in(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [name for each in schema for name in _named_in(each)]
    if not isinstance(schema, dict):
        return []
    own = [schema["$ref"].removeprefix(REFERENCE.format(model=""))] if "$ref" in schema else []
    return own + [name for each in schema.values() for name in _named_in(each)]


def _as_sent(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without null, which is never sent, and without Pydantic's titles."""
    if "properties" not in schema:
        return schema
    properties = {name: _without_null(each) for name, each in schema["properties"].items()}
    return {**schema, "properties": properties}


def _without_null(field: dict[str, Any]) -> dict[str, Any]:
    is_null = _NULL in field.get("anyOf", ())
    hidden = {"title", "anyOf", "$ref"} | ({"default"} if is_null else set())
    rest = {key: value for key, value in field.items() if key not in hidden}
    choices = [each for each in field.get("anyOf", ()) if each != _NULL]
    if "$ref" in field:
        choices = [{"$ref": field["$ref"]}]
    match choices:
        case []:
            return rest
        case [{"$ref": _}]:  # other members beside a reference have no effect
            return {"allOf": choices, **rest} if rest else choices[0]
        case [only]:
            return {**only, **rest}
        case _:
            return {"anyOf": choices, **rest}
