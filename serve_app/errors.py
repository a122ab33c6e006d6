"""How errors are answered over HTTP: one shape, and one table from errors to answers.

The shape is ComfyUI's, so that its clients can read it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from engine.errors import (
    SHOWN_FIELDS,
    Cancelled,
    CheckpointUnavailable,
    DeviceFailed,
    EngineError,
    GraphInvalid,
    InputFileUnavailable,
    MachineFailed,
    ModelsUnavailable,
    NodeFailed,
    OutOfMemory,
    ParametersInvalid,
    TooLarge,
)
from events.errors import (
    AddressNotAllowed,
    ArchiveBusy,
    DatabaseUnavailable,
    FetchFailed,
    HistoryGone,
    JobDamaged,
    JobOfLaterVersion,
    LogDiffers,
    LogFull,
    LogUnavailable,
    OutcomeUnknown,
    ReadTimeout,
    RowRefused,
    SegmentBroken,
    ServiceError,
    TextNotStorable,
)
from serve_app.api_error import ApiError, not_found, retry_after
from serve_app.refusals import (
    BodyTooLarge,
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
    NoTurn,
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
    TryLater,
)
from storage.images import ImageNotFound, ImageStoreUnavailable

_Handler = Callable[[Request, Exception], Awaitable[Response]]

_TOLD_FIELDS = 10
"""The most fields in the text of an error; `extra_info` has more."""
_MAX_TEXT_CHARS = 500
_LIST = re.compile("; (?:known|there are): .*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Plain:
    """Answers an error by its own message."""

    status: int
    type: str
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_info: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, error: Exception) -> ApiError:
        """One that passes says when to try again."""
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
        for each in errors[:SHOWN_FIELDS]
    ]
    return _refused_fields(fields, len(errors))


def _refused_fields(fields: list[dict[str, str]], count: int) -> ApiError:
    """`count`: how many there are in all."""
    shown = [{name: _cut(text) for name, text in each.items()} for each in fields]
    told = [f"{each['field']}: {each['message']}" for each in shown[:_TOLD_FIELDS]]
    for each in shown[:_TOLD_FIELDS]:  # a list of what there is stands in `details` alone
        each["message"] = _LIST.sub("", each["message"])
    if count > len(told):
        told.append(f"and {count - len(told)} more")
    return ApiError(
        400,
        "invalid_request",
        "The request has fields that are not valid.",
        details="; ".join(told),
        extra_info={"fields": shown, "errors": count},
    )


def _cut(text: str) -> str:
    text = text.removeprefix("Value error, ")  # pydantic's, before words of ours
    return text if len(text) <= _MAX_TEXT_CHARS else f"{text[:_MAX_TEXT_CHARS]}…"


ROUTING = {
    404: ("not_found", "There is nothing at this path."),
    405: ("method_not_allowed", "This path does not take this method."),
}


def _routing(error: HTTPException) -> ApiError:
    type, message = ROUTING.get(error.status_code, ("http_error", str(error.detail)))
    return ApiError(error.status_code, type, message, headers=error.headers)


def _internal(_error: Exception) -> ApiError:
    return ApiError(500, "internal", "Something went wrong in the service; its log says what.")


_NOT_FOUND = _Plain(404, "not_found")
_UNAVAILABLE = _Plain(503, "unavailable", retry_after(2))

ANSWERS: dict[type[Exception], Callable[[Any], ApiError]] = {
    ApiError: lambda error: error,
    # who calls, and may they
    KeyMissing: _Plain(401, "unauthorized", {"WWW-Authenticate": "Bearer"}),
    KeyInvalid: _Plain(401, "unauthorized", {"WWW-Authenticate": 'Bearer error="invalid_token"'}),
    ScopeMissing: lambda error: ApiError(
        403, "forbidden", str(error), extra_info={"scope": error.scope}
    ),
    EndpointForbidden: _Plain(403, "forbidden", extra_info={"parameter": "endpoint"}),
    CallbackHostForbidden: _Plain(403, "forbidden", extra_info={"parameter": "callback_url"}),
    # what a caller can change
    TextNotStorable: _Plain(400, "invalid_request"),
    AddressNotAllowed: _Plain(400, "callback_url_not_allowed"),
    CallbackUrlMissing: _Plain(400, "invalid_request", extra_info={"parameter": "callback_url"}),
    QualityOfPng: _Plain(400, "invalid_request", extra_info={"parameter": "image_quality"}),
    GraphInvalid: _refused_graph,
    ParametersInvalid: _refused_parameters,
    RequestValidationError: _refused_query,
    CheckpointUnavailable: _Plain(400, "checkpoint_unavailable"),
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
    # what is not there
    CursorGone: _Plain(410, "cursor_gone"),
    HTTPException: _routing,
    **dict.fromkeys((EndpointNotFound, JobNotFound, KeyNotFound, OtherFlavour), _NOT_FOUND),
    HistoryGone: lambda _error: not_found("There is no such job."),
    ImageNotFound: lambda _error: not_found("There is no such file."),
    # what passes
    RateExceeded: _Plain(429, "rate_exceeded"),
    TooManyOpenJobs: _Plain(429, "too_many_open_jobs"),
    TooManyWaits: _Plain(429, "too_many_waits"),
    TooManyStreams: _Plain(429, "too_many_streams"),
    TooManyLogBytes: _too_much_kept("too_many_log_bytes"),
    TooManyResultBytes: _too_much_kept("too_many_result_bytes"),
    QueueFull: _Plain(429, "queue_full"),
    TooManyEndpoints: _Plain(429, "too_many_endpoints"),
    EndpointDraining: _Plain(503, "endpoint_draining"),
    NoTurn: _Plain(503, "busy"),
    NameServerUnavailable: _Plain(503, "unavailable"),
    **dict.fromkeys((ArchiveBusy, DatabaseUnavailable, LogDiffers, LogUnavailable), _UNAVAILABLE),
    **dict.fromkeys((ModelsUnavailable, ReadTimeout), _UNAVAILABLE),
    JobOfLaterVersion: _Plain(503, "unavailable", retry_after(10)),
    LogFull: _Plain(503, "log_full", retry_after(60)),
    OutcomeUnknown: _Plain(503, "outcome_unknown", retry_after(2)),
    ImageStoreUnavailable: lambda _error: ApiError(
        503, "unavailable", "The image store does not answer. Try again.", headers=retry_after(2)
    ),
    # what no request causes
    JobDamaged: _Plain(500, "job_damaged"),
    **dict.fromkeys((Cancelled, DeviceFailed, InputFileUnavailable, MachineFailed), _internal),
    FetchFailed: _internal,  # why an image is refused that a request names by its URL
    **dict.fromkeys((NodeFailed, OutOfMemory, RowRefused, SegmentBroken, TooLarge), _internal),
    **dict.fromkeys((EngineError, ServiceError, Exception), _internal),
}


def install(
    app: FastAPI,
    *,
    note: Callable[[str], None],
    form_of: Callable[[Request], Callable[[ApiError], Response]],
) -> None:
    """`note` is told the type of each error that is answered; `form_of` says in which form."""

    def handler(answer: Callable[[Any], ApiError]) -> _Handler:
        async def handle(request: Request, error: Exception) -> Response:
            told = answer(error)
            note(told.type)
            return form_of(request)(told)

        return handle

    for error_type, answer in ANSWERS.items():
        app.add_exception_handler(error_type, handler(answer))
