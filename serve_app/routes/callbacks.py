"""Routes that show and repeat the callbacks of a job, and that send a sample callback."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import takewhile
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from events.bus.queues import AT_ONCE
from events.delivery import RequestRedelivery, fold_delivery
from events.job import Job, is_readable
from events.log import DeliveryWriter, utc_now
from events.types import CallbackAttempted, CallbackExhausted, Event
from serve_app.access.api_keys import require_callback_host
from serve_app.auth import GenerateKey, ReadKey
from serve_app.error_responses import ApiError, retry_after
from serve_app.openapi.document import documented
from serve_app.replica import CallbackAccessDep

router = APIRouter(prefix="/v1", tags=["callbacks"], responses=documented(400, 401, 403, 500, 503))


class CallbackState(StrEnum):
    NONE = "none"
    PENDING = "pending"
    DELIVERED = "delivered"
    EXHAUSTED = "exhausted"


class CallbackTry(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"at": "2026-03-01T08:30:00Z", "status": 200, "latency_s": 0.12}]
        }
    )

    at: datetime = Field(description="The time at which the outcome was known")
    status: int | None = Field(default=None, description="HTTP status of the answer, if any")
    latency_s: float = Field(
        description="Seconds until the answer, or until the attempt ended without one"
    )
    error: str | None = Field(default=None, description="Why the attempt got no answer")
    about: str | None = Field(
        default=None,
        description="What was sent before the end of the job: `started`, or `image-` and the index "
        "of an image, or `put-` and the index of an image that was sent to its presigned URL. "
        "Absent: the callback of the end",
    )


class CallbackReport(BaseModel):
    """The state of a job's callback. All its attempts have the same `webhook-id`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "state": "pending",
                    "callback_url": "https://example.com/task_completed",
                    "tries": [
                        {"at": "2026-03-01T08:30:00Z", "status": 503, "latency_s": 0.12},
                        {
                            "at": "2026-03-01T08:30:20Z",
                            "latency_s": 15.0,
                            "error": "no answer within 15 s",
                        },
                    ],
                    "next_try_at": "2026-03-01T08:30:50Z",
                }
            ]
        }
    )

    state: CallbackState = Field(
        description="none: the job has no callback URL; pending: an attempt will follow; "
        "delivered: the receiver accepted the callback; exhausted: the callback was given up"
    )
    callback_url: str | None = None
    tries: list[CallbackTry] = Field(description="Oldest first")
    next_try_at: datetime | None = Field(
        default=None, description="The earliest time of the next attempt"
    )
    withheld_since: datetime | None = Field(
        default=None,
        description="The time since which the callback is withheld, because its receiver keeps "
        "failing",
    )
    message: str | None = Field(default=None, description="Why the callback was given up")


def _conflict(description: str) -> dict[int | str, dict[str, Any]]:
    return {409: documented(409)[409] | {"description": description}}


def _too_many(description: str) -> dict[int | str, dict[str, Any]]:
    return {429: documented(429)[429] | {"description": description}}


@router.get("/jobs/{id}/callbacks", response_model_exclude_none=True, responses=documented(404))
async def show_callbacks(id: str, key: ReadKey, callbacks: CallbackAccessDep) -> CallbackReport:
    """Show every attempt to send the callbacks of a job."""
    job = await callbacks.jobs.owned(id, key)
    return _report(job, await callbacks.deliveries.read(job.id))


@router.post(
    "/jobs/{id}/callbacks/redeliver",
    status_code=202,
    response_model_exclude_none=True,
    responses=documented(404)
    | _conflict("The job has no callback URL, or has not ended")
    | _too_many(
        "The rate of the key is exceeded, or the callback of the job was redelivered too often"
    ),
)
async def redeliver(id: str, key: GenerateKey, callbacks: CallbackAccessDep) -> CallbackReport:
    """Deliver a job's callback again, with the same `webhook-id`. The first attempt begins at once,
    and all attempts are available again. A repeated request before the first attempt changes
    nothing.
    """
    job = await callbacks.jobs.owned(id, key)
    if job.end is None or job.submitted.callback_url is None:
        reason = "has not ended yet" if job.end is None else "has no callback address"
        raise ApiError(409, "nothing_to_deliver", f"The job {reason}.")
    require_callback_host(key, callbacks.address_rule.check_url(job.submitted.callback_url).host)
    writer = DeliveryWriter(callbacks.deliveries)
    delivery = await writer.load(job.id)
    most = callbacks.max_redeliveries
    if most and delivery.redeliveries >= most and delivery.was_tried:
        message = (
            f"The callback of a job can be redelivered at most {most} times. The result of the job "
            "can still be read."
        )
        raise ApiError(429, "too_many_redeliveries", message)
    # Reopen the job first, so that the reaper finds the request after a crash.
    await callbacks.read_model.unsettled.reopen(job.id)
    # The events of this job must stay in the log during the delivery.
    await callbacks.ended_jobs.restart_hot_time(job.id, utc_now())
    await writer.execute(RequestRedelivery(), job, delivery)
    # Park a new entry, because a running delivery may acknowledge an existing entry.
    await callbacks.queue.park(job.id, AT_ONCE)
    return _report(job, await callbacks.deliveries.read(job.id))


@router.post(
    "/callbacks/test",
    response_model_exclude_none=True,
    responses=_too_many(
        "The rate of the key is exceeded, or too many test callbacks were sent in a minute"
    ),
)
async def send_sample(
    key: GenerateKey,
    callbacks: CallbackAccessDep,
    callback_url: Annotated[
        str,
        Query(
            description="A public http or https address",
            examples=["https://example.com/task_completed"],
        ),
    ],
) -> CallbackTry:
    """Send a sample callback to an address once, and return the outcome. The callback is signed
    like the callback of a job. The job in the callback does not exist.
    """
    most = callbacks.samples_per_minute
    if wait_s := callbacks.samples.take(key.owner, rate_per_s=most / 60, burst=max(1.0, most)):
        message = "Too many test callbacks in a minute."
        raise ApiError(429, "too_many_tests", message, headers=retry_after(wait_s))
    require_callback_host(key, callbacks.address_rule.check_url(callback_url).host)
    outcome = await callbacks.send_sample(callback_url, key)
    return _callback_try(utc_now(), outcome)


def _report(job: Job, events: Sequence[Event]) -> CallbackReport:
    """Build the report. Events after the first event that this version cannot read are ignored."""
    events = list(takewhile(is_readable, events))
    delivery = fold_delivery(events)
    before_end = None if delivery.end_was_attempted else delivery.before_end
    if job.submitted.callback_url is None:
        state = CallbackState.NONE
    elif delivery.delivered:
        state = CallbackState.DELIVERED
    else:
        state = CallbackState.EXHAUSTED if delivery.exhausted else CallbackState.PENDING
    return CallbackReport(
        state=state,
        callback_url=job.submitted.callback_url,
        tries=[
            _callback_try(event.time, event.data)
            for event in events
            if isinstance(event.data, CallbackAttempted)
        ],
        next_try_at=delivery.retry_at if before_end is None else before_end.retry_at,
        withheld_since=None if delivery.ended else delivery.withheld_at,
        message=_last_message(events) if delivery.exhausted else None,
    )


def _callback_try(at: datetime, data: CallbackAttempted) -> CallbackTry:
    return CallbackTry(
        at=at,
        status=data.status,
        latency_s=data.latency_s,
        error=data.error,
        about=data.about,
    )


def _last_message(events: Iterable[Event]) -> str:
    return [each.data.message for each in events if isinstance(each.data, CallbackExhausted)][-1]
