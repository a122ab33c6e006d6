"""Every error of the HTTP edge, in one shape and by one table.

The shape is ComfyUI's, so that its clients can read it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from engine.errors import (
    Cancelled,
    CheckpointUnavailable,
    EngineError,
    GraphInvalid,
    InputFileUnavailable,
    NodeFailed,
    OutOfMemory,
    ParametersInvalid,
    TooLarge,
)
from events.errors import (
    AddressNotAllowed,
    DatabaseUnavailable,
    HistoryGone,
    LogFull,
    LogUnavailable,
    OutcomeUnknown,
    ReadTimeout,
    ServiceError,
)
from storage.images import ImageNotFound, ImageStoreUnavailable

logger = logging.getLogger(__name__)


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


class ApiError(Exception):
    """An answer from 400 up. `type` is stable, for programs; `message` is for people."""

    def __init__(
        self,
        status: int,
        type: str,
        message: str,
        *,
        details: str = "",
        extra_info: Mapping[str, Any] | None = None,
        node_errors: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.message = message
        self.details = details
        self.extra_info = dict(extra_info or {})
        self.node_errors = dict(node_errors or {})
        self.headers = dict(headers or {})

    def response(self) -> Response:
        error = {
            "type": self.type,
            "message": self.message,
            "details": self.details,
            "extra_info": self.extra_info,
        }
        # In ASCII: whatever text a caller sent can be repeated, a lone surrogate too.
        body = json.dumps({"error": error, "node_errors": self.node_errors}).encode()
        return Response(body, self.status, self.headers, media_type="application/json")


def retry_after(seconds: int) -> dict[str, str]:
    return {"Retry-After": str(seconds)}


def not_found(message: str) -> ApiError:
    return ApiError(404, "not_found", message)


@dataclass(frozen=True, slots=True)
class _Plain:
    """An error that is answered by its own message."""

    status: int
    type: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, error: Exception) -> ApiError:
        return ApiError(self.status, self.type, str(error), headers=self.headers)


def _refused_graph(error: GraphInvalid) -> ApiError:
    body = error.body()
    return ApiError(400, **body["error"], node_errors=body["node_errors"])


def _refused_parameters(error: ParametersInvalid) -> ApiError:
    fields = [
        {"type": each.type, "message": each.message, "field": each.field} for each in error.fields
    ]
    return _refused_fields(fields)


def _refused_query(error: RequestValidationError) -> ApiError:
    fields = [
        {"type": each["type"], "message": each["msg"], "field": str(each["loc"][-1])}
        for each in error.errors()
    ]
    return _refused_fields(fields)


def _refused_fields(fields: list[dict[str, str]]) -> ApiError:
    details = "; ".join(f"{each['field']}: {each['message']}" for each in fields)
    message = "The request has fields that are not valid."
    extra_info = {"fields": fields}
    return ApiError(400, "invalid_request", message, details=details, extra_info=extra_info)


_ROUTING = {
    404: ("not_found", "There is nothing at this path."),
    405: ("method_not_allowed", "This path does not take this method."),
}


def _routing(error: HTTPException) -> ApiError:
    type, message = _ROUTING.get(error.status_code, ("http_error", str(error.detail)))
    return ApiError(error.status_code, type, message, headers=error.headers)


def _internal(_error: Exception) -> ApiError:
    return ApiError(500, "internal", "Something went wrong in the service; its log says what.")


_UNAVAILABLE = _Plain(503, "unavailable", retry_after(2))

ANSWERS: dict[type[Exception], Callable[[Any], ApiError]] = {
    ApiError: lambda error: error,
    # what a caller can change
    AddressNotAllowed: _Plain(400, "callback_url_not_allowed"),
    GraphInvalid: _refused_graph,
    ParametersInvalid: _refused_parameters,
    RequestValidationError: _refused_query,
    CheckpointUnavailable: _Plain(400, "checkpoint_unavailable"),
    HTTPException: _routing,
    HistoryGone: lambda _error: not_found("There is no such job."),
    ImageNotFound: lambda _error: not_found("There is no such file."),
    # what passes
    LogUnavailable: _UNAVAILABLE,
    ReadTimeout: _UNAVAILABLE,
    DatabaseUnavailable: _UNAVAILABLE,
    LogFull: _Plain(503, "log_full", retry_after(60)),
    OutcomeUnknown: _Plain(503, "outcome_unknown", retry_after(2)),
    ImageStoreUnavailable: lambda _error: ApiError(
        503, "unavailable", "The image store does not answer. Try again.", headers=retry_after(2)
    ),
    # what has no business here
    Cancelled: _internal,
    InputFileUnavailable: _internal,
    NodeFailed: _internal,
    OutOfMemory: _internal,
    TooLarge: _internal,
    EngineError: _internal,
    ServiceError: _internal,
    Exception: _internal,
}


def install(app: FastAPI) -> None:
    for error_type, answer in ANSWERS.items():
        app.add_exception_handler(error_type, _handler(answer))


def _handler(
    answer: Callable[[Any], ApiError],
) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handle(_request: Request, error: Exception) -> Response:
        return answer(error).response()

    return handle


_DESCRIPTIONS = {
    400: "The request is not valid",
    401: "No key, or one that is not valid",
    403: "The key lacks the scope",
    404: "Unknown, or another owner's",
    405: "Another method is needed",
    409: "The idempotency key was used for another request",
    413: "The body is too large",
    415: "The body is of another media type",
    416: "The image ends before this range",
    429: "The queue is full",
    500: "An error of the service",
    503: "The event log, the database or the name server is away, or the log is full",
}


_HEADERS = {
    401: {"WWW-Authenticate": "How to authenticate"},
    416: {"Content-Range": "How long the image is"},
    429: {"Retry-After": "Seconds"},
    503: {"Retry-After": "Seconds"},
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that can fail with these."""
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
