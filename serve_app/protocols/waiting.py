"""Runs jobs whose callers wait for the images in the same request."""

from __future__ import annotations

import hashlib

from fastapi import Request

from events.job import Job
from events.log import utc_now
from events.result import FailureCode
from events.store.records import ApiKey
from serve_app.acceptance.acceptance import GenerateRequest
from serve_app.protocols.credentials import protocol_caller
from serve_app.replica import JobAccess, Submission
from serve_app.routes.jobs import job_at_end
from settings.constant import constant

MAX_WAIT_S = constant("ADAPTER_MAX_WAIT_S", 600.0)
"""Seconds that a request waits for its images. The answer then has the job's id instead."""
JOB_ID_HEADER = "Darkroom-Job-Id"
"""The header of a stream of a new job. An answer that is no stream has the id in its body."""
_OF_CALLER = {
    FailureCode.INVALID_INPUT,
    FailureCode.OUT_OF_MEMORY,
    FailureCode.MODEL_UNAVAILABLE,
    FailureCode.CANCELLED,
}


def failure_status(code: str) -> int:
    """Return the HTTP status of the answer for a job that failed with this code."""
    return 400 if code in _OF_CALLER else 500


def digest_of_sent(request: Request, body: bytes) -> bytes:
    """Return a hash of the path and of the body that the caller sent, for `GenerateRequest.sent`.

    A form has another boundary in each request, so `body` has its members in a fixed order.
    """
    digest = hashlib.sha256(request.scope["path"].encode() + b"\0")
    digest.update(body)
    return digest.digest()


async def ended_job(
    submission: Submission,
    access: JobAccess,
    request: Request,
    key: ApiKey,
    *,
    wanted: GenerateRequest,
) -> Job:
    """Submit a job and wait for its end. Returns the open job if MAX_WAIT_S have passed.

    If the caller disconnects and has sent no idempotency key, the job is cancelled, because the
    caller cannot find the job. Raises TooManyWaits, KeyRefused, and the errors of
    `Acceptance.accept`.
    """
    began = utc_now()
    with access.waits.hold(key.owner):
        job = await submission.acceptance.accept(wanted, began=began)
        is_gone = True
        try:
            job = await job_at_end(access, request, key, job, wait_s=MAX_WAIT_S)
            is_gone = job.end is None and await request.is_disconnected()
        finally:
            if is_gone and wanted.idempotency_key is None:
                submission.acceptance.cancel_abandoned(job.id)
    # The key is checked again, because it may have been revoked during the wait.
    await protocol_caller(request)
    return job
