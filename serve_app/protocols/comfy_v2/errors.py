"""Errors in the format of Comfy API v2, with the codes of that API."""

from __future__ import annotations

from fastapi import Response

from engine.interface import GraphInvalid
from serve_app.error_responses import ApiError

_CODES = {
    "idempotency_conflict": (422, "idempotency_key_reuse"),
    "rate_exceeded": (429, "rate_limited"),
    "internal": (500, "upstream_error"),
    "unavailable": (503, "upstream_error"),
}
"""HTTP status and code by Darkroom's error type, for types that differ in the v2 API."""


def error_response(error: ApiError) -> Response:
    """Build an error response of the v2 API, which answers an invalid request with 422."""
    usual = (422 if error.status == 400 else error.status, error.type)
    status, code = _CODES.get(error.type, usual)
    message = f"{error.message} {error.details}".strip()
    told = ApiError(status, code, message, headers=error.headers)
    details = error.extra_info or None
    return told.response_with({"error": {"code": code, "message": message, "details": details}})


def invalid_workflow(error: GraphInvalid) -> ApiError:
    """Build the error for an invalid graph, with the errors of each node."""
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
    """Build the error for an unknown asset, which is the same for an asset of another owner."""
    return ApiError(404, "not_found", "There is no such asset.")
