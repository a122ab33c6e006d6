"""Errors as the WebUI's clients read them, and what becomes of jobs that made no picture."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from events.job import Job
from events.result import failure_code
from events.types import Cancelled, Failed
from serve_app.adapters.waiting import failure_status
from serve_app.api_error import ApiError

_MAX_TOLD = 5


def error_response(error: ApiError) -> Response:
    """`detail` is what FastAPI has there: a list for members that are wrong, else a text."""
    if fields := error.extra_info.get("fields"):
        detail: Any = [
            {"loc": ["body", *str(each["field"]).split(".")], "msg": each["message"], "type": kind}
            for each in fields
            for kind in [each.get("type", error.type)]
        ]
        told = ApiError(422, error.type, error.message, headers=error.headers)
        return told.response_with({"error": told.type, "detail": detail, "errors": error.details})
    return error.response_with({"error": error.type, "detail": _detail(error), "errors": ""})


def refused(message: str, *, status: int = 400) -> ApiError:
    return ApiError(status, "invalid_request", message)


def failure(job: Job) -> ApiError:
    """Of a job that has failed, or has not ended by now."""
    end = job.end
    if not isinstance(end, Failed | Cancelled):
        message = f"The job {job.id} has not ended yet, and goes on: /v1/jobs/{job.id}/result."
        return ApiError(504, "not_ended", message)
    code = failure_code(end)
    return ApiError(failure_status(code), code, end.message)


def _detail(error: ApiError) -> str:
    nodes = [
        f"{node['class_type']}: {each['message']} ({each['details']})"
        for node in error.node_errors.values()
        for each in node["errors"]
    ]
    return " ".join(filter(None, (error.message, error.details, *nodes[:_MAX_TOLD])))
