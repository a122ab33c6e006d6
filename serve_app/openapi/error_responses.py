"""The answers from 400 up, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class ErrorDetail(BaseModel):
    type: str = Field(description="Which error it is: stable, for programs")
    message: str = Field(description="What is wrong, for people")
    details: str = ""
    extra_info: dict[str, Any] = Field(default_factory=dict)


class ErrorBody(BaseModel):
    """The body of every answer from 400 up."""

    error: ErrorDetail
    node_errors: dict[str, Any] = Field(
        default_factory=dict, description="By node id, where a workflow is refused"
    )


_DESCRIPTIONS = {
    400: "The request is not valid",
    401: "No key, or one that is not valid",
    403: "The key lacks the scope, or may not use this endpoint or callback host",
    404: "Unknown, or another owner's",
    405: "Another method is needed",
    408: "The body comes too slowly",
    409: "The idempotency key was used for another request, or the key cannot be rotated, "
    "or the job has not failed, or the endpoint exists, was changed, or cannot be deleted",
    410: "The URL has expired, or what follows the cursor is not at hand",
    413: "The body is too large, or the uploads of the owner take too many bytes",
    415: "The body is of another media type",
    416: "The image ends before this range",
    429: "A limit of the key or its owner is reached (requests, open jobs, streams, bytes, "
    "endpoints), or the queue is full",
    500: "An error of the service, or a job that is damaged in the event log",
    503: "The event log, the database, the image store, the models folder or the name server is "
    "away, the log is full, the endpoint is drained, the job has an event of a later version, or "
    "too many large bodies wait",
}

_HEADERS = {
    401: {"WWW-Authenticate": "How to authenticate"},
    416: {"Content-Range": "How long the image is"},
    429: {"Retry-After": "Seconds"},
    503: {"Retry-After": "Seconds"},
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that can fail with these. Where a key is needed, it has its rate."""
    if 401 in statuses:
        statuses = (*statuses, 429)
    return {
        status: {
            "model": ErrorBody,
            "description": _DESCRIPTIONS[status],
            "headers": {
                name: {"description": text, "schema": {"type": "string"}}
                for name, text in _HEADERS.get(status, {}).items()
            },
        }
        for status in statuses
    }
