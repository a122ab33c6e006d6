"""The JSON Schemas of what is in a message, from the models of the events."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from docs.generate.events import REFERENCE, event_schemas
from events.bus.streams import JOBS
from events.types import EVENT_TYPES
from events.wire.cloud_events import SOURCE

CLOUD_EVENT = "CloudEvent"
HEADERS = "StoredHeaders"

_TEXT = {"type": "string"}
_NULL = {"type": "null"}


def envelope() -> dict[str, Any]:
    """Of every event. `data` is left open here: each type has its own."""
    return {
        "type": "object",
        "description": "CloudEvents 1.0 in JSON. A field that is null is left out",
        "required": [
            *("specversion", "id", "source", "type", "subject", "time", "sequence", "data"),
            "datacontenttype",
        ],
        "properties": {
            "specversion": {"const": "1.0"},
            "id": {**_TEXT, "description": "The same whenever the event is sent: drop repeats"},
            "source": {"const": SOURCE},
            "type": _TEXT,
            "subject": {**_TEXT, "format": "uuid", "description": "Id of the job"},
            "time": {**_TEXT, "format": "date-time"},
            "sequence": {
                **_TEXT,
                "pattern": "^[0-9]{10,}$",
                "description": "Place in the history of the job, from 1",
            },
            "datacontenttype": {"const": "application/json"},
            "traceparent": {**_TEXT, "description": "https://www.w3.org/TR/trace-context"},
            "data": {"type": "object"},
        },
    }


def headers() -> dict[str, Any]:
    """Those that NATS adds to what is stored, and the id of the event."""
    return {
        "type": "object",
        "required": ["Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp"],
        "properties": {
            "Nats-Stream": {"type": "string", "pattern": rf"^{JOBS}(_[0-9]+)?$"},
            "Nats-Subject": {**_TEXT, "description": "Where it is stored: `jobs.*.<job id>`"},
            "Nats-Sequence": {
                **_TEXT,
                "pattern": "^[1-9][0-9]*$",
                "description": "Place in the log, which rises: go on behind the last one handled",
            },
            "Nats-Time-Stamp": {**_TEXT, "description": "When it was stored"},
            "Nats-Msg-Id": {**_TEXT, "description": "Id of the event"},
        },
    }


def data_schemas(names: Collection[str]) -> dict[str, Any]:
    """Of the event types `names` and of what they hold, by the names of the models."""
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
    """Without null, which is never sent, and without the titles that Pydantic makes of names."""
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
        case [{"$ref": _}]:  # nothing that stands beside a reference counts
            return {"allOf": choices, **rest} if rest else choices[0]
        case [only]:
            return {**only, **rest}
        case _:
            return {"anyOf": choices, **rest}
