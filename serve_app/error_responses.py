"""The HTTP responses to errors. The table ANSWERS maps each class of errors to its response.

The responses have ComfyUI's format, so that clients of ComfyUI can read them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from engine.interface import (
    EngineError,
    GraphInvalid,
    ModelsUnavailable,
    ParametersInvalid,
)
from events.errors import (
    AddressNotAllowed,
    DatabaseUnavailable,
    FetchFailed,
    HistoryBroken,
    HistoryGone,
    JobDamaged,
    JobOfLaterVersion,
    LogFull,
    LogUnavailable,
    OlderData,
    OutcomeUnknown,
    ReadTimeout,
    RowRefused,
    ServiceError,
    TextNotStorable,
)
from serve_app.refusals import (
    BodyTooLarge,
    Busy,
    CallbackHostForbidden,
    CallbackUrlMissing,
    CursorGone,
    EndpointChanged,
    EndpointDraining,
    EndpointExists,
    EndpointForbidden,
    EndpointNotDeletable,
    EndpointNotFound,
    IdempotencyConflict,
    ImageNotFetched,
    InvalidImage,
    InvalidLatent,
    InvalidUploadName,
    JobNotFound,
    JobNotResubmittable,
    KeyInvalid,
    KeyMissing,
    KeyNotFound,
    KeyNotRotatable,
    NameServerUnavailable,
    OtherFlavour,
    QualityOfPng,
    QueueFull,
    RateExceeded,
    ScopeMissing,
    TooManyBytes,
    TooManyEndpoints,
    TooManyLogBytes,
    TooManyOpenJobs,
    TooManyResultBytes,
    TooManyStreams,
    TooManyUploadBytes,
    TooManyWaits,
    TooManyWorkflows,
    TryLater,
    WorkflowChanged,
    WorkflowExists,
    WorkflowNotFound,
)
from storage.images import ImageNotFound, ImageStoreUnavailable

_SHOWN_FIELDS = 50
"""The largest number of fields whose errors are in `extra_info` of an answer."""
_TOLD_FIELDS = 10
"""The largest number of fields in the text of an error. More fields are in `extra_info`."""
_MAX_TEXT_CHARS = 500
_SHOWN_NODES = 5
_LIST = re.compile("; (?:known|there are): .*", re.DOTALL)
ROUTING = {
    404: ("not_found", "There is nothing at this path."),
    405: ("method_not_allowed", "This path does not allow this method."),
}


class ApiError(Exception):
    """An error response. Programs can rely on `type`. `message` is for people and may change."""

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
        return self.response_with({"error": error, "node_errors": self.node_errors})

    def full_message(self) -> str:
        """Return the message with the details and the first errors of nodes."""
        nodes = [
            f"{node['class_type']}: {each['message']} ({each['details']})"
            for node in self.node_errors.values()
            for each in node["errors"]
        ]
        return " ".join(filter(None, (self.message, self.details, *nodes[:_SHOWN_NODES])))

    def response_with(self, body: Mapping[str, Any]) -> Response:
        """Build the response with `body` instead of a body in ComfyUI's format."""
        text = json.dumps(body, ensure_ascii=False)
        # UTF-8 cannot encode half of a surrogate pair, so such a character is written as an escape.
        data = text.encode("utf-8", "backslashreplace")
        return Response(data, self.status, self.headers, media_type="application/json")


def retry_after(seconds: int) -> dict[str, str]:
    return {"Retry-After": str(seconds)}


def not_found(message: str) -> ApiError:
    return ApiError(404, "not_found", message)


_Handler = Callable[[Request, Exception], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class _Plain:
    """Builds a response whose message is the text of the error."""

    status: int
    type: str
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_info: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, error: Exception) -> ApiError:
        headers = retry_after(error.retry_after_s) if isinstance(error, TryLater) else self.headers
        message, more = str(error), self.extra_info
        return ApiError(self.status, self.type, message, extra_info=more, headers=headers)


def _too_much_uploaded(error: TooManyUploadBytes) -> ApiError:
    return ApiError(413, "too_many_upload_bytes", str(error), extra_info=_bytes(error))


def _too_much_kept(type: str) -> Callable[[TooManyBytes], ApiError]:
    return lambda error: ApiError(
        429,
        type,
        str(error),
        extra_info=_bytes(error),
        headers=retry_after(error.retry_after_s),
    )


def _bytes(error: TooManyBytes | TooManyUploadBytes) -> dict[str, int]:
    return {"used_bytes": error.used_bytes, "max_bytes": error.max_bytes}


def _refused_graph(error: GraphInvalid) -> ApiError:
    body = error.body()
    return ApiError(400, **body["error"], node_errors=body["node_errors"])


def _refused_parameters(error: ParametersInvalid) -> ApiError:
    fields = [
        {"type": each.type, "message": each.message, "field": each.field} for each in error.fields
    ]
    return _refused_fields(fields, error.count)


def _refused_query(error: RequestValidationError) -> ApiError:
    errors = error.errors()
    fields = [
        {"type": each["type"], "message": each["msg"], "field": str(each["loc"][-1])}
        for each in errors[:_SHOWN_FIELDS]
    ]
    return _refused_fields(fields, len(errors))


def _refused_fields(fields: list[dict[str, str]], count: int) -> ApiError:
    """Build the response for invalid fields. There are `count` errors, of which some are shown."""
    shown = [{name: _cut(text) for name, text in each.items()} for each in fields]
    parts = [f"{each['field']}: {each['message']}" for each in shown[:_TOLD_FIELDS]]
    # The lists of known values are removed here, because `details` has them.
    for each in shown[:_TOLD_FIELDS]:
        each["message"] = _LIST.sub("", each["message"])
    if count > len(parts):
        parts.append(f"and {count - len(parts)} more")
    return ApiError(
        400,
        "invalid_request",
        "The request has fields that are not valid.",
        details="; ".join(parts),
        extra_info={"fields": shown, "errors": count},
    )


def _cut(text: str) -> str:
    # pydantic adds this prefix to messages of validators.
    text = text.removeprefix("Value error, ")
    return text if len(text) <= _MAX_TEXT_CHARS else f"{text[:_MAX_TEXT_CHARS]}…"


def _routing(error: HTTPException) -> ApiError:
    type, message = ROUTING.get(error.status_code, ("http_error", str(error.detail)))
    return ApiError(error.status_code, type, message, headers=error.headers)


def _internal(_error: Exception) -> ApiError:
    return ApiError(
        500, "internal", "An internal error occurred. The log of the service has the details."
    )


def _engine_failed(error: EngineError) -> ApiError:
    """Build the response to an error of the engine whose own class is not in ANSWERS."""
    if error.code == "model_unavailable":
        return ApiError(400, "checkpoint_unavailable", str(error))
    return _internal(error)


_NOT_FOUND = _Plain(404, "not_found")
_UNAVAILABLE = _Plain(503, "unavailable", retry_after(2))

ANSWERS: dict[type[Exception], Callable[[Any], ApiError]] = {
    ApiError: lambda error: error,
    # These errors concern authentication and permissions.
    KeyMissing: _Plain(401, "unauthorized", {"WWW-Authenticate": "Bearer"}),
    KeyInvalid: _Plain(401, "unauthorized", {"WWW-Authenticate": 'Bearer error="invalid_token"'}),
    ScopeMissing: lambda error: ApiError(
        403, "forbidden", str(error), extra_info={"scope": error.scope}
    ),
    EndpointForbidden: _Plain(403, "forbidden", extra_info={"parameter": "endpoint"}),
    CallbackHostForbidden: _Plain(403, "forbidden", extra_info={"parameter": "callback_url"}),
    # The caller can correct these errors.
    TextNotStorable: _Plain(400, "invalid_request"),
    AddressNotAllowed: _Plain(400, "callback_url_not_allowed"),
    CallbackUrlMissing: _Plain(400, "invalid_request", extra_info={"parameter": "callback_url"}),
    QualityOfPng: _Plain(400, "invalid_request", extra_info={"parameter": "image_quality"}),
    GraphInvalid: _refused_graph,
    ParametersInvalid: _refused_parameters,
    RequestValidationError: _refused_query,
    InvalidUploadName: _Plain(400, "invalid_upload"),
    InvalidImage: _Plain(400, "invalid_image"),
    InvalidLatent: _Plain(400, "invalid_latent"),
    ImageNotFetched: _Plain(400, "invalid_image"),
    BodyTooLarge: _Plain(413, "too_large"),
    TooManyUploadBytes: _too_much_uploaded,
    IdempotencyConflict: _Plain(409, "idempotency_conflict"),
    JobNotResubmittable: _Plain(409, "job_not_resubmittable"),
    KeyNotRotatable: _Plain(409, "key_not_rotatable"),
    EndpointExists: _Plain(409, "endpoint_exists"),
    EndpointChanged: _Plain(409, "endpoint_changed"),
    EndpointNotDeletable: _Plain(409, "endpoint_not_deletable"),
    WorkflowExists: _Plain(409, "workflow_exists"),
    WorkflowChanged: _Plain(409, "workflow_changed"),
    TooManyWorkflows: _Plain(409, "too_many_workflows"),
    # The requested object, route or method does not exist.
    CursorGone: _Plain(410, "cursor_gone"),
    HTTPException: _routing,
    **dict.fromkeys((EndpointNotFound, JobNotFound, KeyNotFound, OtherFlavour), _NOT_FOUND),
    WorkflowNotFound: _NOT_FOUND,
    HistoryGone: lambda _error: not_found("There is no such job."),
    ImageNotFound: lambda _error: not_found("There is no such file."),
    # These errors are temporary.
    RateExceeded: _Plain(429, "rate_exceeded"),
    TooManyOpenJobs: _Plain(429, "too_many_open_jobs"),
    TooManyWaits: _Plain(429, "too_many_waits"),
    TooManyStreams: _Plain(429, "too_many_streams"),
    TooManyLogBytes: _too_much_kept("too_many_log_bytes"),
    TooManyResultBytes: _too_much_kept("too_many_result_bytes"),
    QueueFull: _Plain(429, "queue_full"),
    TooManyEndpoints: _Plain(429, "too_many_endpoints"),
    EndpointDraining: _Plain(503, "endpoint_draining"),
    Busy: _Plain(503, "busy"),
    NameServerUnavailable: _Plain(503, "unavailable"),
    **dict.fromkeys((DatabaseUnavailable, LogUnavailable), _UNAVAILABLE),
    **dict.fromkeys((ModelsUnavailable, ReadTimeout), _UNAVAILABLE),
    JobOfLaterVersion: _Plain(503, "unavailable", retry_after(10)),
    LogFull: _Plain(503, "log_full", retry_after(60)),
    OutcomeUnknown: _Plain(503, "outcome_unknown", retry_after(2)),
    ImageStoreUnavailable: lambda _error: ApiError(
        503, "unavailable", "The image store does not answer. Try again.", headers=retry_after(2)
    ),
    # These are errors of the service itself.
    JobDamaged: _Plain(500, "job_damaged"),
    FetchFailed: _internal,  # Acceptance turns this error into ImageNotFetched.
    **dict.fromkeys((HistoryBroken, OlderData, RowRefused, ServiceError, Exception), _internal),
    EngineError: _engine_failed,
}


def error_of(error: Exception) -> ApiError:
    """Return the error response to an exception, by the nearest of its classes in ANSWERS."""
    kinds = (kind for kind in type(error).__mro__ if kind in ANSWERS)
    return ANSWERS[next(kinds)](error)


def install(
    app: FastAPI,
    *,
    note: Callable[[str], None],
    form_of: Callable[[Request], Callable[[ApiError], Response]],
) -> None:
    """Add the handlers of all errors. They call `note` with the type of each error.

    For a request, `form_of` returns the function that builds responses in the request's protocol.
    """

    def handler(answer: Callable[[Any], ApiError]) -> _Handler:
        async def handle(request: Request, error: Exception) -> Response:
            api_error = answer(error)
            note(api_error.type)
            return form_of(request)(api_error)

        return handle

    for error_type, answer in ANSWERS.items():
        app.add_exception_handler(error_type, handler(answer))
