"""Deliverer: handles an entry of the callback queue, and makes the callbacks of the job in order.

The next step follows from the events of the job and of the delivery. A step begins after the
previous step was delivered or given up.

Callbacks before the end are given up `before_end_s` seconds after the end of the job, even during a
pause between attempts or while a breaker is open. So they delay the callback of the end by at most
`before_end_s` seconds. No event records such a callback as given up. An event records a callback
before the end that is given up because of errors of the service.

Directly before the callback of the end, images are sent to their presigned URLs. These uploads are
given up ten minutes (`UPLOADS_S`) after the end of the job or the start of this process, whichever
is later. An event records each upload that is given up.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from actors.callbacks.api_key_data import AllowedHosts, SigningSecrets
from actors.callbacks.presigned_uploads import PresignedUploads
from actors.callbacks.receivers import PER_HOST, BreakerLimits, Receivers, SendPermit
from actors.callbacks.sender import Sender, webhook_headers
from events.bus.queues import AT_ONCE, CallbackQueue, QueueEntry
from events.callback_address import Target
from events.delivery import (
    JITTER,
    WITHHELD_S,
    Delivery,
    EndAfterAttempt,
    EndWithoutCallback,
    GiveUpBeforeEnd,
    GiveUpDelivery,
    RecordAttempt,
    RecordAttemptBeforeEnd,
    SendResult,
    Withhold,
    has_delivery,
)
from events.delivery_steps import (
    BEFORE_END_S,
    MOST_IMAGES,
    DeliveryStep,
    NothingLeft,
    PresignedUpload,
    next_delivery_step,
)
from events.job import Job, fold
from events.log import DeliveryWriter, EventLog, RetryingLog, utc_now
from events.result import UrlFor
from events.types import CallbackAttempted, DeliveryEvent
from settings.constant import constant
from telemetry.callback_metrics import CallbackMetrics
from telemetry.logs import job_log_fields


@dataclass(frozen=True, slots=True)
class Arrival:
    """An entry that has arrived, with the difference between the clocks of NATS and this machine.

    A parked entry becomes due by the clock of NATS.
    """

    entry: QueueEntry
    ahead: timedelta
    """Lower bound of the time by which the clock of NATS is ahead, at least 0. The bound is known
    because the entry was stored before it arrived.
    """

    @classmethod
    def of(cls, entry: QueueEntry) -> Arrival:
        return cls(entry, max(entry.stored_at - utc_now(), timedelta()))

    def is_early(self, time: datetime) -> bool:
        """Return whether `time` is in the future by the clock of this machine, and later than the
        time on the clock of NATS at which the entry was stored.
        """
        return time > max(utc_now(), self.entry.stored_at)


logger = logging.getLogger(__name__)

_NOT_ALLOWED = SendResult(
    latency_s=0.0, error="the key of the job may not use this callback host", refused=True
)
_UNREADABLE = SendResult(
    latency_s=0.0,
    error="the secret of the service has changed, so the URL cannot be decrypted",
    refused=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryLimits:
    delays_s: Sequence[float]
    """Pauses in seconds before the first attempt and before each further attempt."""
    jitter: float = JITTER
    in_flight: int = constant("CALLBACK_IN_FLIGHT", 256)
    """Largest number of deliveries that are made at the same time."""
    per_host: int = PER_HOST
    breaker: BreakerLimits = field(default_factory=BreakerLimits)
    withheld_s: float = WITHHELD_S
    most_images: int = MOST_IMAGES
    before_end_s: float = BEFORE_END_S
    max_errors: int = constant("CALLBACK_MAX_ERRORS", 10)
    """Number of unexpected errors of a delivery after which its current step is given up."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait before the next step of a delivery. The next step is not allowed before `until`."""

    step: DeliveryStep
    until: datetime
    receiver: str | None = None
    """The receiver whose waiting list contains the callback, or None."""


class Deliverer:
    def __init__(
        self,
        *,
        queue: CallbackQueue,
        jobs: EventLog,
        deliveries: EventLog,
        sender: Sender,
        url_for: UrlFor,
        secrets: SigningSecrets,
        allowed_hosts: AllowedHosts,
        presigned_uploads: PresignedUploads,
        limits: DeliveryLimits,
        metrics: CallbackMetrics,
    ) -> None:
        self._jobs = RetryingLog(jobs)
        self._writer = DeliveryWriter(RetryingLog(deliveries), on_added=metrics.note_event)
        self._sender = sender
        self._url_for = url_for
        self._secrets = secrets
        self._allowed_hosts = allowed_hosts
        self._presigned_uploads = presigned_uploads
        self._since = utc_now()
        self.limits = limits
        self._metrics = metrics
        self.receivers = Receivers(
            queue,
            at_once=limits.per_host,
            most_active=limits.in_flight // 2,
            breaker=limits.breaker,
        )

    async def deliver_due(self, arrival: Arrival) -> Wait | None:
        """Make the callbacks and uploads that are due.

        Returns the wait before the next step, or None if nothing is left to do now.
        """
        job_id = arrival.entry.job_id
        while True:
            step = await self._next_step(job_id)
            if isinstance(step, NothingLeft):
                await self._writer.execute(EndWithoutCallback(), step.job, step.delivery)
                step = None
            if step is None:
                await self.receivers.remove(job_id)
                return None
            if isinstance(step.what, PresignedUpload) and step.is_late(utc_now()):
                await self._give_up_upload(step)
                continue
            retry_at = step.retry_at and step.no_later(step.retry_at)
            if retry_at is not None and arrival.is_early(retry_at):
                return Wait(step, retry_at)
            with job_log_fields(step.job):
                wait = await self._attempt(step)
            if wait is not None or step.about is None:  # The callback of the end is the last step.
                return wait

    async def has_changed(self, wait: Wait) -> bool:
        """Return whether a new event requires that the delivery continues at once. Call this after
        the entry was parked.

        The end of a job, or a request for another delivery, makes the entry due. If this happened
        just before the entry was parked, the due time was overwritten.
        """
        job, delivery = wait.step.job, wait.step.delivery
        if wait.step.about is None:
            waits_for_receiver = wait.receiver is not None
            return (
                not waits_for_receiver
                and (await self._writer.load(job.id)).position != delivery.position
            )
        if job.end is not None:
            return False
        now = fold(await self._jobs.read(job.id))
        return now is not None and now.end is not None

    async def give_up(self, job_id: str, why: str) -> bool:
        """Give up the current step. Returns whether further steps may follow.

        Raises an error if the events cannot be read.
        """
        step = await self._next_step(job_id)
        if not isinstance(step, DeliveryStep):
            return False
        command = GiveUpDelivery(why) if step.about is None else GiveUpBeforeEnd(step.about, why)
        await self._writer.execute(command, step.job, step.delivery)
        return step.about is not None

    async def _give_up_upload(self, step: DeliveryStep) -> None:
        assert step.about is not None
        longest_s = self._presigned_uploads.longest_s
        why = f"the receiver did not accept it within {longest_s:g} s after the end of the job"
        await self._writer.execute(GiveUpBeforeEnd(step.about, why), step.job, step.delivery)

    async def _next_step(self, job_id: str) -> DeliveryStep | NothingLeft | None:
        delivery = await self._writer.load(job_id)
        events = [] if delivery.ended else await self._jobs.read(job_id)
        job = fold(events)
        if job is None or not has_delivery(job.submitted):
            return None
        return next_delivery_step(
            events,
            job,
            delivery,
            now=utc_now(),
            most_images=self.limits.most_images,
            before_end_s=self.limits.before_end_s,
            uploads_s=self._presigned_uploads.longest_s,
            since=self._since,
        )

    async def _attempt(self, step: DeliveryStep) -> Wait | None:
        """Make one attempt at the step. Returns None if the step was delivered or given up."""
        owner, key_id = step.job.submitted.owner, step.job.submitted.key_id
        url = self._url(step)
        if url is None:
            return await self._record(step, _UNREADABLE)
        target = self._sender.target(url)
        if target and not await self._allowed_hosts.allow(key_id, target.host):
            return await self._record(step, _NOT_ALLOWED)
        # No connection is made to a refused URL. The job's id is then the name of the receiver,
        # because the URL may contain a secret.
        receiver = _receiver(target) if target else step.job.id
        if not isinstance(step.what, PresignedUpload):
            return await self._send_with_permit(step, url, receiver)
        permits = self._presigned_uploads.permits
        with permits.take(owner) as is_taken:
            if is_taken:
                # A host can serve the buckets of many owners and fail for one of them only. So each
                # owner has a breaker of its own.
                return await self._send_with_permit(step, url, f"{receiver} of {owner}")
        pause = timedelta(seconds=permits.retry_after_s(owner))
        return Wait(step, step.no_later(utc_now() + pause))

    async def _send_with_permit(self, step: DeliveryStep, url: str, receiver: str) -> Wait | None:
        job = step.job
        secrets = await self._secrets.of(job.submitted.owner, job.submitted.key_id)
        async with self.receivers.permit(receiver, job.id) as permit:
            result = None if permit.wait_s else await self._send(step, url, secrets)
            permit.answered = None if result is None else result.answered
        if result is None:
            return await self._wait_for_receiver(step, permit, receiver)
        wait = await self._record(step, result)
        await self.receivers.make_due(receiver)
        return wait

    def _url(self, step: DeliveryStep) -> str | None:
        """Return the URL, or None if it was encrypted with another secret of the service."""
        if isinstance(step.what, PresignedUpload):
            return self._presigned_uploads.url(step.what)
        return step.job.submitted.callback_url

    async def _send(self, step: DeliveryStep, url: str, secrets: Sequence[str]) -> SendResult:
        if isinstance(step.what, PresignedUpload):
            return await self._presigned_uploads.send(url, step.what.image)
        body = step.what.body(self._url_for, step.delivery)
        headers = webhook_headers(
            step.job.id,
            body,
            secrets=secrets,
            now=utc_now(),
            traceparent=step.job.traceparent,
            about=step.about,
        )
        return await self._sender.send(url, body, headers)

    async def _wait_for_receiver(
        self, step: DeliveryStep, permit: SendPermit, receiver: str
    ) -> Wait | None:
        """Return the wait for the receiver, or None if the delivery has waited too long for an open
        breaker and is given up.
        """
        until = utc_now() + timedelta(seconds=permit.wait_s)
        if permit.is_withheld and step.about is None:
            longest_s = self.limits.withheld_s
            command = Withhold(now=utc_now(), longest_s=longest_s)
            delivery, _ = await self._writer.execute(command, step.job, step.delivery)
            if delivery.ended or delivery.withheld_at is None:
                return None
            until = min(until, delivery.withheld_at + timedelta(seconds=longest_s))
        return Wait(step, step.no_later(until), receiver)

    async def _record(self, step: DeliveryStep, result: SendResult) -> Wait | None:
        """Record an attempt. Returns the wait for the next attempt at the step, or None."""
        if result.stalled:
            return Wait(step, AT_ONCE)
        if isinstance(step.what, PresignedUpload):
            self._metrics.note_upload_attempt(result)
        else:
            self._metrics.note_attempt(step.job, result)
        after = replace(step, delivery=await self._append_attempt(step, result))
        if after.retry_at is not None:
            return Wait(after, after.no_later(after.retry_at))
        if after.about is not None or after.delivery.ended:
            return None
        # Another delivery was requested during this attempt, and begins at once.
        return Wait(after, AT_ONCE)

    async def _append_attempt(self, step: DeliveryStep, result: SendResult) -> Delivery:
        jitter = self.limits.jitter
        spread = random.uniform(1 - jitter, 1 + jitter)
        is_upload = isinstance(step.what, PresignedUpload)
        delays_s = self._presigned_uploads.delays_s if is_upload else self.limits.delays_s
        made = RecordAttempt(result, delays_s, now=utc_now(), spread=spread)
        job, delivery = step.job, step.delivery
        if step.about is None:
            delivery, tries = await self._writer.execute(made, job, delivery)
            delivery, ends = await self._writer.execute(EndAfterAttempt(made), job, delivery)
            _log_attempt(job, delivery.attempts, result, [*tries, *ends])
        else:
            attempt = delivery.attempts_of(step.about) + 1
            command = RecordAttemptBeforeEnd(step.about, made)
            delivery, tries = await self._writer.execute(command, job, delivery)
            _log_attempt(job, attempt, result, tries, about=step.about)
        return delivery


def _log_attempt(
    job: Job,
    attempt: int,
    result: SendResult,
    events: Sequence[DeliveryEvent],
    *,
    about: str | None = None,
) -> None:
    end = next((each for each in events if not isinstance(each, CallbackAttempted)), None)
    logger.info(
        "callback attempted",
        extra={
            "action": "callback",
            "job_id": job.id,
            "about": about,
            "attempt": attempt,
            "status": result.status,
            "error": result.error,
            "latency_s": round(result.latency_s, 3),
            "end": None if end is None else type(end).__name__,
        },
    )


def _receiver(target: Target) -> str:
    """Return the name of a receiver, which is the same for all spellings of its URL."""
    return f"{target.scheme}://{target.host}:{target.port}"
