"""Errors in the contract's envelope, with its codes."""

from __future__ import annotations

from fastapi import Response

from engine.errors import GraphInvalid
from serve_app.api_error import ApiError

_CODES = {
    "idempotency_conflict": (422, "idempotency_key_reuse"),
    "rate_exceeded": (429, "rate_limited"),
    "internal": (500, "upstream_error"),
    "unavailable": (503, "upstream_error"),
}
"""Status and code of what the contract calls otherwise than we do."""


def error_response(error: ApiError) -> Response:
    """What is wrong with a request is a 422 there."""
    usual = (422 if error.status == 400 else error.status, error.type)
    status, code = _CODES.get(error.type, usual)
    message = f"{error.message} {error.details}".strip()
    told = ApiError(status, code, message, headers=error.headers)
    details = error.extra_info or None
    return told.response_with({"error": {"code": code, "message": message, "details": details}})


def invalid_workflow(error: GraphInvalid) -> ApiError:
    """With what is wrong at each node."""
    body = error.body()
    told = body["error"]
    nodes = {
        node: [
            {"field": each["extra_info"].get("input_name"), "reason": each["type"]}
            for each in found["errors"]
        ]
        for node, found in body["node_errors"].items()
    }
    first = next(
        (
            f"Node {node} ({found['class_type']}): {each['message']} {each['details']}"
            for node, found in body["node_errors"].items()
            for each in found["errors"]
        ),
        "",
    )
    return ApiError(
        422,
        "invalid_workflow",
        first or told["message"],
        details="" if first else told["details"],
        extra_info={"type": told["type"], "node_errors": nodes},
    )


def missing_asset(message: str) -> ApiError:
    return ApiError(422, "missing_asset", message)


def not_found() -> ApiError:
    """Alike for what there never was and for what is another owner's."""
    return ApiError(404, "not_found", "There is no such asset.")
