"""Errors in the format of OpenAI's API."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from serve_app.error_responses import ApiError

RETRY = "x-should-retry"
"""The header that tells OpenAI's clients whether to repeat a request. Without it, they repeat a
request after the status 408, 409, 429 or 5xx.
"""
_PARAMETERS = {
    "width": "size",
    "height": "size",
    "batch_size": "n",
    "sd_model_checkpoint": "model",
    "endpoint": "model",
}
"""OpenAI's name of a parameter, by Darkroom's name."""


def error_response(error: ApiError) -> Response:
    if error.status == 409:  # The same request would get the same answer.
        error.headers.setdefault(RETRY, "false")
    return error.response_with({"error": error_object(error)})


def error_object(error: ApiError) -> dict[str, Any]:
    """Build the member `error` of an answer or an event."""
    shape = {
        "message": error.full_message(),
        "type": _type(error.status),
        "param": _parameter(error),
        "code": error.type,
    }
    request_id = error.extra_info.get("request_id")
    return shape if request_id is None else {**shape, "request_id": request_id}


def _type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def _parameter(error: ApiError) -> str | None:
    fields = error.extra_info.get("fields")
    name = fields[0]["field"] if fields else error.extra_info.get("parameter")
    return None if name is None else _PARAMETERS.get(name, str(name))
