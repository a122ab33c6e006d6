"""The HTTP routes, from the OpenAPI document of the application."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from tempfile import TemporaryDirectory
from typing import Any

from docs.generate.tables import Schema, default_of, field_table, table, type_of
from serve_app.assembly import build_asgi
from settings.settings import Settings


def openapi_document() -> dict[str, Any]:
    """Return the document of `/openapi.json` without starting anything."""
    with TemporaryDirectory() as folder:
        nowhere = Settings.load(
            data_dir=folder, nats_url="nats://127.0.0.1:1", secret="of the document alone"
        )
        return build_asgi(nowhere).openapi()


@dataclass
class Operation:
    """One handler. The same handler may have more than one path."""

    tag: str
    content: Schema
    calls: list[str] = field(default_factory=list)
    """Methods and paths, such as `GET /v1/jobs`; the first path is the main path."""


def http_routes() -> str:
    """Return a section for each operation, by tag, followed by the errors and the bodies."""
    document = openapi_document()
    operations = list(_operations(document))
    parts = []
    for tag in dict.fromkeys(each.tag for each in operations):
        parts.append(f"## Routes: {tag}")
        parts += [_section(each) for each in operations if each.tag == tag]
    parts += ["## Errors", _errors(operations), "## Bodies"]
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += [f"### {name}", schema.get("description", ""), _body(schema)]
    return "\n\n".join(filter(None, parts))


def _operations(document: Schema) -> Iterable[Operation]:
    found: dict[str, Operation] = {}
    for path, methods in document["paths"].items():
        for method, content in methods.items():
            id = content.get("x-twin-of", content["operationId"])
            operation = found.setdefault(id, Operation(content["tags"][0], content))
            operation.calls.append(f"{method.upper()} {path}")
    return found.values()


def _section(operation: Operation) -> str:
    usual, *others = operation.calls
    content = operation.content
    parts = [
        f"### `{usual}`",
        content.get("description", ""),
        f"Also at {', '.join(f'`{each}`' for each in others)}." if others else "",
        "" if content.get("security") else "Needs no API key.",
        _parameters(content.get("parameters", ())),
        *_request_body(content),
        _answers(content["responses"]),
    ]
    return "\n\n".join(filter(None, parts))


def _parameters(parameters: Iterable[Schema]) -> str:
    rows = [
        (
            f"`{each['name']}`",
            each["in"],
            type_of(each["schema"]),
            "required" if each.get("required") else default_of(each["schema"]),
            each.get("description", ""),
        )
        for each in parameters
    ]
    return table(("parameter", "in", "type", "default", "meaning"), rows) if rows else ""


def _request_body(content: Schema) -> Iterator[str]:
    for media_type, body in content.get("requestBody", {}).get("content", {}).items():
        yield f"Body, `{media_type}`:"
        yield _body(body["schema"])
        if "example" in body:
            yield f"```json\n{json.dumps(body['example'], indent=2, ensure_ascii=False)}\n```"


def _body(schema: Schema) -> str:
    return field_table(schema) if "properties" in schema else type_of(schema)


def _answers(responses: Schema) -> str:
    """Return a table with a row for each success, and a list of the error statuses."""
    rows = [
        (status, _answer_type(answer), answer["description"])
        for status, answer in responses.items()
        if not _is_error(status)
    ]
    errors = ", ".join(sorted(filter(_is_error, responses)))
    return f"{table(('answer', 'body', 'meaning'), rows)}\n\n[Errors](#errors): {errors}."


def _answer_type(answer: Schema) -> str:
    """Return the type of a JSON body, or the media types of another body."""
    content = answer.get("content", {})
    if "application/json" in content:
        return type_of(content["application/json"]["schema"])
    return ", ".join(f"`{each}`" for each in content)


def _errors(operations: Iterable[Operation]) -> str:
    rows = {
        (status, answer["description"])
        for each in operations
        for status, answer in each.content["responses"].items()
        if _is_error(status)
    }
    return "The body is always an [ErrorBody](#errorbody).\n\n" + table(
        ("status", "when"), sorted(rows)
    )


def _is_error(status: str) -> bool:
    return int(status) >= HTTPStatus.BAD_REQUEST
