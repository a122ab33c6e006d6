"""Routes of callbacks: the tries of one job, another delivery, a sample."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import takewhile
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from events.delivery import RequestRedelivery, fold_delivery
from events.job import Job, is_readable
from events.log import DeliveryWriter, utc_now
from events.queue import AT_ONCE
from events.types import CallbackAttempted, CallbackExhausted, Event
from events.wire.callback_keys import callback_key
from serve_app.access.permissions import require_callback_host
from serve_app.api_error import ApiError, retry_after
from serve_app.auth import GenerateKey, ReadKey
from serve_app.job_state import owned_job
from serve_app.openapi.error_responses import documented
from serve_app.replica import ReplicaDep

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

    at: datetime = Field(description="When its outcome was known")
    status: int | None = Field(default=None, description="HTTP status of the answer, if any")
    latency_s: float = Field(description="Until the answer, or until it was given up")
    error: str | None = Field(default=None, description="Why there is no status")
    about: str | None = Field(
        default=None,
        description="What it told of before the end: `started`, or `image-` and its index; or "
        "`put-` and the index of an image that was put where `image_put_urls` says",
    )


class CallbackReport(BaseModel):
    """What became of a job's callback. Every try of it has the same `webhook-id`."""

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
        description="none: the job has no callback address; pending: it will be tried, or tried "
        "again; delivered; exhausted: given up"
    )
    callback_url: str | None = None
    tries: list[CallbackTry] = Field(description="Oldest first")
    next_try_at: datetime | None = Field(default=None, description="Not before then")
    withheld_since: datetime | None = Field(
        default=None, description="Since when it is kept back, for its host fails time after time"
    )
    message: str | None = Field(default=None, description="Why it was given up")


def _conflict(description: str) -> dict[int | str, dict[str, Any]]:
    return {409: documented(409)[409] | {"description": description}}


def _too_many(description: str) -> dict[int | str, dict[str, Any]]:
    return {429: documented(429)[429] | {"description": description}}


@router.get("/jobs/{id}/callbacks", response_model_exclude_none=True, responses=documented(404))
async def show_callbacks(id: str, key: ReadKey, replica: ReplicaDep) -> CallbackReport:
    """Every try to deliver a job's callback."""
    job = await owned_job(replica.services, id, key)
    return _report(job, await replica.services.deliveries.read(job.id))


@router.post(
    "/jobs/{id}/callbacks/redeliver",
    status_code=202,
    response_model_exclude_none=True,
    responses=documented(404)
    | _conflict("The job has no callback address, or has not ended")
    | _too_many("The key's rate, or more redeliveries of the job than are allowed"),
)
async def redeliver(id: str, key: GenerateKey, replica: ReplicaDep) -> CallbackReport:
    """Deliver a job's callback once more, at once and with all its tries.

    Under the same `webhook-id`. Asked for again before a try was made, it changes nothing.
    """
    services = replica.services
    job = await owned_job(services, id, key)
    if job.end is None or job.submitted.callback_url is None:
        reason = "has not ended yet" if job.end is None else "has no callback address"
        raise ApiError(409, "nothing_to_deliver", f"The job {reason}.")
    require_callback_host(key, services.address_rule.check_url(job.submitted.callback_url).host)
    writer = DeliveryWriter(services.deliveries)
    delivery = await writer.load(job.id)
    most = services.callback_settings.max_redeliveries
    if most and delivery.redeliveries >= most and delivery.was_tried:
        message = f"The callback of a job may be asked for {most} times; its result can be read."
        raise ApiError(429, "too_many_redeliveries", message)
    # Before, so that a death after the request leaves what the repair of the queue will find.
    await services.read_model.unsettled.reopen(job.id)
    await services.hot_jobs.heat(job.id, utc_now())  # what is stored now must stay in the log
    await writer.execute(RequestRedelivery(), job, delivery)
    # Parked, not added: an entry that is being delivered now will be acknowledged.
    await services.callback_queue.park(callback_key(job.id, job.submitted), AT_ONCE)
    return _report(job, await services.deliveries.read(job.id))


@router.post(
    "/callbacks/test",
    response_model_exclude_none=True,
    responses=_too_many("The key's rate, or more tests in a minute than are allowed"),
)
async def send_sample(
    key: GenerateKey,
    replica: ReplicaDep,
    callback_url: Annotated[
        str,
        Query(
            description="Public http or https address",
            examples=["https://example.com/task_completed"],
        ),
    ],
) -> CallbackTry:
    """Send a sample result to an address, signed as a job's would be, and tell what came of it.

    It is tried once. The job that it names does not exist.
    """
    services = replica.services
    most = replica.callback_tests_per_minute
    if wait_s := replica.callback_tests.take(key.owner, rate_per_s=most / 60, burst=max(1.0, most)):
        message = "Too many test callbacks in a minute."
        raise ApiError(429, "too_many_tests", message, headers=retry_after(wait_s))
    require_callback_host(key, services.address_rule.check_url(callback_url).host)
    outcome = await services.send_sample(callback_url, key)
    return _callback_try(utc_now(), outcome)


def _report(job: Job, events: Sequence[Event]) -> CallbackReport:
    """Of what this version can read."""
    events = list(takewhile(is_readable, events))
    delivery = fold_delivery(events)
    before_end = None if delivery.is_at_end else delivery.before_end
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
