"""The OpenAPI document as programs read it: short operation ids, named bodies, twins marked."""

from __future__ import annotations

from typing import Any

from fastapi.routing import APIRoute

_TWIN_PREFIX = "/api/v1/"
"""Paths below it are those of ComfyUI's clients; each has a twin by our own scheme."""


def operation_id(route: APIRoute) -> str:
    """`generateWorkflow`, and `generateWorkflowTwin` for its second path."""
    first, *others = route.name.split("_")
    twin = "Twin" if route.path.startswith(_TWIN_PREFIX) else ""
    return "".join([first, *(each.capitalize() for each in others), twin])


def finish(document: dict[str, Any]) -> dict[str, Any]:
    """What FastAPI wrote, changed in place."""
    schemas = document["components"]["schemas"]
    _remove_422(document["paths"])
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    paths = {
        operation["operationId"]: f"{method.upper()} {path}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    for operations in document["paths"].values():
        for operation in operations.values():
            _name_body(operation, schemas)
            _mark_twin(operation, paths)
            for callback in operation.get("callbacks", {}).values():
                for receiver in callback.values():
                    receiver["post"]["operationId"] = f"{operation['operationId']}Completed"
    return document


def _remove_422(paths: dict[str, Any]) -> None:
    """FastAPI documents it on every route: here it is a 400 in our shape."""
    for path in paths.values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            for callback in operation.get("callbacks", {}).values():
                _remove_422(callback)


def _name_body(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """A body with a title is a schema of its own, so that clients get one type of that name."""
    for media_type in operation.get("requestBody", {}).get("content", {}).values():
        title = media_type["schema"].get("title")
        if title is not None:
            schemas[title] = media_type["schema"]
            media_type["schema"] = {"$ref": f"#/components/schemas/{title}"}


def _mark_twin(operation: dict[str, Any], paths: dict[str, str]) -> None:
    id = operation["operationId"].removesuffix("Twin")
    if id != operation["operationId"]:
        operation["x-twin-of"] = id
        operation["description"] += f"\n\nThe same as `{paths[id]}`."
