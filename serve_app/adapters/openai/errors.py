"""Errors as OpenAI's clients read them."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from serve_app.api_error import ApiError

RETRY = "x-should-retry"
"""Its clients repeat a request after 408, 409, 429 and 5xx unless this header says otherwise."""
_PARAMETERS = {
    "width": "size",
    "height": "size",
    "batch_size": "n",
    "sd_model_checkpoint": "model",
    "endpoint": "model",
}
"""Their name of what our checks name."""
_MAX_TOLD = 5


def error_response(error: ApiError) -> Response:
    return error.response_with({"error": error_object(error)})


def error_object(error: ApiError) -> dict[str, Any]:
    """The member `error`, of an answer and of an event."""
    told = {
        "message": _message(error),
        "type": _type(error.status),
        "param": _parameter(error),
        "code": error.type,
    }
    request_id = error.extra_info.get("request_id")
    return told if request_id is None else {**told, "request_id": request_id}


def _message(error: ApiError) -> str:
    """With all that our own form has in members beside the message."""
    nodes = [
        f"{node['class_type']}: {each['message']} ({each['details']})"
        for node in error.node_errors.values()
        for each in node["errors"]
    ]
    return " ".join(filter(None, (error.message, error.details, *nodes[:_MAX_TOLD])))


def _type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def _parameter(error: ApiError) -> str | None:
    fields = error.extra_info.get("fields")
    name = fields[0]["field"] if fields else error.extra_info.get("parameter")
    return None if name is None else _PARAMETERS.get(name, str(name))
