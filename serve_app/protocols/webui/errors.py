"""Errors in the WebUI's format, and the prefixes of the WebUI's routes."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from events.job import Job
from events.result import failure_code
from events.types import Cancelled, Failed
from serve_app.error_responses import ApiError
from serve_app.protocols.waiting import failure_status
from settings.constant import constant

PREFIX = "/sdapi"
V1 = f"{PREFIX}/v1"
MAX_BODY_BYTES = constant("ADAPTER_MAX_BODY_BYTES", 32 * 1024**2)
"""The largest size of a request body with images in base64, in bytes."""


def error_response(error: ApiError) -> Response:
    """Build the response. Its `detail` is a text, or FastAPI's list if members are invalid."""
    if fields := error.extra_info.get("fields"):
        detail: Any = [
            {"loc": ["body", *str(each["field"]).split(".")], "msg": each["message"], "type": kind}
            for each in fields
            for kind in [each.get("type", error.type)]
        ]
        told = ApiError(422, error.type, error.message, headers=error.headers)
        return told.response_with({"error": told.type, "detail": detail, "errors": error.details})
    return error.response_with({"error": error.type, "detail": error.full_message(), "errors": ""})


def refused(message: str, *, status: int = 400) -> ApiError:
    return ApiError(status, "invalid_request", message)


def failure(job: Job) -> ApiError:
    """Build the error for a job that has failed, was cancelled or has not ended yet."""
    end = job.end
    if not isinstance(end, Failed | Cancelled):
        message = (
            f"The job {job.id} has not ended yet and is still running. Its result will be at "
            f"/v1/jobs/{job.id}/result."
        )
        return ApiError(504, "not_ended", message)
    code = failure_code(end)
    return ApiError(failure_status(code), code, end.message)
