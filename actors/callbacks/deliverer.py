"""Deliverer: handles an entry of the callback queue, and makes the callbacks of the job in order.

The next step follows from the events of the job and of the delivery. A step begins after the
previous step was delivered or given up.

Callbacks before the end are given up `before_end_s` seconds after the end of the job. Neither a
pause between attempts nor an open breaker extends this time. So callbacks before the end delay the
callback of the end by at most `before_end_s` seconds. No event records that this time has passed:
the first event about the callback of the end shows it. An event records a callback before the end
that is given up because of errors of the service.

Directly before the callback of the end, images are sent to their presigned URLs. These uploads
delay the callback of the end until at most ten minutes (`UPLOADS_S`) after the end of the job or
after the start of this process, whichever is later. An event records each image that is given up.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from actors.callbacks.hosts import PER_HOST, BreakerLimits, Hosts, Lines
from actors.callbacks.keys import AllowedHosts, SigningSecrets
from actors.callbacks.presigned_uploads import PresignedUploads
from actors.callbacks.sender import Sender, webhook_headers
from events.callback_address import Target
from events.delivery import (
    JITTER,
    WITHHELD_S,
    Delivery,
    EndAfterTry,
    EndWithoutCallback,
    GiveUpBeforeEnd,
    GiveUpDelivery,
    RecordTry,
    RecordTryBeforeEnd,
    SendResult,
    Withhold,
    has_delivery,
)
from events.delivery_steps import (
    BEFORE_END_S,
    MOST_IMAGES,
    DeliveryPlan,
    DeliveryStep,
    NothingLeft,
    PresignedUpload,
)
from events.job import Job, fold
from events.log import DeliveryWriter, EventLog, RetryingLog, utc_now
from events.queue import AT_ONCE, CallbackQueue, QueueEntry
from events.result import UrlFor
from events.types import CallbackAttempted, DeliveryEvent
from settings.constant import constant
from telemetry.callback_metrics import CallbackMetrics
from telemetry.logs import about


@dataclass(frozen=True, slots=True)
class Arrival:
    """An entry, and the time by which the clock of the queue's server is ahead of this machine's
    clock.

    The server decides by its own clock when a parked entry becomes due.
    """

    entry: QueueEntry
    ahead: timedelta
    """A lower bound of this time, because the entry was stored before it arrived. The value is
    never negative.
    """

    @classmethod
    def of(cls, entry: QueueEntry) -> Arrival:
        return cls(entry, max(entry.stored_at - utc_now(), timedelta()))

    def is_early(self, time: datetime) -> bool:
        """Whether `time` is in the future: later than now by this machine's clock, and later than
        `entry.stored_at`, which is by the server's clock.
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


class _StepOver:
    """The step was delivered or given up, and the next step may follow at once."""


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
        self._queue = queue
        self._jobs = RetryingLog(jobs)
        self._writer = DeliveryWriter(RetryingLog(deliveries), on_added=metrics.note_event)
        self._sender = sender
        self._url_for = url_for
        self._secrets = secrets
        self._allowed_hosts = allowed_hosts
        self._presigned_uploads = presigned_uploads
        self._delivery_plan = DeliveryPlan(
            most_images=limits.most_images,
            before_end_s=limits.before_end_s,
            uploads_s=presigned_uploads.longest_s,
            since=utc_now(),
        )
        self.limits = limits
        self._metrics = metrics
        self.hosts = Hosts(
            at_once=limits.per_host,
            most_inside=limits.in_flight // 2,
            breaker=limits.breaker,
        )
        self.lines = Lines(self.hosts, queue)

    async def deliver_due(self, arrival: Arrival) -> datetime | None:
        """Make the callbacks that are due. Returns the time at which the entry must be handled
        again.

        Returns None if the delivery is already parked, or if nothing is left to do now.
        """
        while True:
            due = await self._due(arrival.entry.job_id)
            if isinstance(due, NothingLeft):
                await self._writer.execute(EndWithoutCallback(), due.job, due.delivery)
                due = None
            if due is None:
                await self.lines.leave(arrival.entry.job_id)
                return None
            if (
                isinstance(due.what, PresignedUpload)
                and due.not_after
                and utc_now() >= due.not_after
            ):
                await self._give_up_put(due)
                continue
            retry_at = due.retry_at and due.no_later(due.retry_at)
            if retry_at is not None and arrival.is_early(retry_at):
                return await self._park(arrival, due, retry_at)
            with about(due.job):
                outcome = await self._work(arrival, due)
            if not isinstance(outcome, _StepOver):
                return outcome

    async def give_up(self, job_id: str, why: str) -> bool:
        """Give up the current step. Returns whether further steps may follow. Raises the errors of
        reading the events.
        """
        due = await self._due(job_id)
        if not isinstance(due, DeliveryStep):
            return False
        command = GiveUpDelivery(why) if due.about is None else GiveUpBeforeEnd(due.about, why)
        await self._writer.execute(command, due.job, due.delivery)
        return due.about is not None

    async def _give_up_put(self, due: DeliveryStep) -> None:
        # Only a step with `not_after` comes here. The callback of the end has no `not_after`, and
        # every other step has `about`.
        assert due.about is not None
        longest_s = self._presigned_uploads.longest_s
        why = f"the receiver did not accept it within {longest_s:g} s after the end of the job"
        await self._writer.execute(GiveUpBeforeEnd(due.about, why), due.job, due.delivery)

    async def _due(self, job_id: str) -> DeliveryStep | NothingLeft | None:
        delivery = await self._writer.load(job_id)
        events = [] if delivery.ended else await self._jobs.read(job_id)
        job = fold(events)
        if job is None or not has_delivery(job.submitted):
            return None
        return self._delivery_plan.of(events, job, delivery, now=utc_now())

    async def _park(
        self, arrival: Arrival, due: DeliveryStep, until: datetime, *, line: str | None = None
    ) -> datetime | None:
        """Park the entry until `until`. Returns what `deliver_due` returns.

        If the job has ended in the meantime, the router may have made the entry due at once, and
        this call has replaced that time. The result is then `AT_ONCE`, so that the callback of the
        end is not late.
        """
        due_at = due.no_later(until) + arrival.ahead
        await self._queue.park(arrival.entry.job_id, due_at, line=line)
        if due.about is None or due.job.end is not None:
            return None
        now = fold(await self._jobs.read(due.job.id))
        return AT_ONCE if now is not None and now.end is not None else None

    async def _work(self, arrival: Arrival, due: DeliveryStep) -> datetime | _StepOver | None:
        """Make the callback or upload if it is allowed now. See `deliver_due` for the result."""
        job = due.job
        url = self._url(due)
        if url is None:
            return await self._record_and_park(arrival, due, _UNREADABLE)
        target = self._sender.target(url)
        if target and not await self._allowed_hosts.allow(job.submitted.key_id, target.host):
            return await self._record_and_park(arrival, due, _NOT_ALLOWED)
        if not isinstance(due.what, PresignedUpload):
            return await self._send_when_free(arrival, due, url)
        turns = self._presigned_uploads.turns
        with turns.take(job.submitted.owner) as is_mine:
            if is_mine:
                return await self._send_when_free(arrival, due, url)
        pause = timedelta(seconds=turns.come_again_s(job.submitted.owner))
        return await self._park(arrival, due, utc_now() + pause)

    async def _send_when_free(
        self, arrival: Arrival, due: DeliveryStep, url: str
    ) -> datetime | _StepOver | None:
        """Make the callback or upload when the receiver has room. See `deliver_due` for the
        result.
        """
        job, target = due.job, self._sender.target(url)
        secrets = await self._secrets.of(job.submitted.owner, job.submitted.key_id)
        # For a refused URL, to which no connection is made, the job's id is used as the name of the
        # receiver. The URL itself may contain a secret.
        receiver = _receiver(target) if target else job.id
        if isinstance(due.what, PresignedUpload):
            # A host serves the buckets of many owners. If the host fails for one of these owners
            # only, the breaker must not stop the uploads of the other owners.
            receiver = f"{receiver} of {job.submitted.owner}"
        async with self.hosts.turn(receiver, arrival.entry.job_id) as turn:
            result = None if turn.wait_s else await self._send(due, url, secrets)
            turn.answered = None if result is None else result.answered
        if result is None:
            turn_at = utc_now() + timedelta(seconds=turn.wait_s)
            is_noted = turn.is_withheld and due.about is None
            until = await self._withhold(job, due.delivery, turn_at) if is_noted else turn_at
            return None if until is None else await self._park(arrival, due, until, line=receiver)
        outcome = await self._record_and_park(arrival, due, result)
        await self.lines.call(receiver)
        return outcome

    def _url(self, due: DeliveryStep) -> str | None:
        """The URL, or None if the secret of the service has changed since the URL was encrypted."""
        if isinstance(due.what, PresignedUpload):
            return self._presigned_uploads.url(due.what)
        return due.job.submitted.callback_url

    async def _record_and_park(
        self, arrival: Arrival, due: DeliveryStep, result: SendResult
    ) -> datetime | _StepOver | None:
        """Record an attempt and park the entry for the next attempt. See `deliver_due` for the
        result.
        """
        if result.stalled:
            return AT_ONCE
        if isinstance(due.what, PresignedUpload):
            self._metrics.note_put(result)
        else:
            self._metrics.note_try(due.job, result)
        delivery = await self._record(due, result)
        after = replace(due, delivery=delivery)
        if due.about is not None:
            if after.retry_at is None:
                return _StepOver()
            return await self._park(arrival, after, after.retry_at)
        if delivery.ended:
            return None
        # If `retry_at` is None, another delivery was requested during this attempt, and begins at
        # once.
        if delivery.retry_at is None:
            return AT_ONCE
        await self._park(arrival, after, delivery.retry_at)
        # A request for another delivery also parks the entry. If the request came before `_park`,
        # `_park` has replaced the time of the request. So the log is read again: after a new event,
        # the delivery continues at once.
        asked_again = (await self._writer.load(due.job.id)).position != delivery.position
        return AT_ONCE if asked_again else None

    async def _send(self, due: DeliveryStep, url: str, secrets: Sequence[str]) -> SendResult:
        if isinstance(due.what, PresignedUpload):
            return await self._presigned_uploads.send(url, due.what.image)
        body = due.what.body(self._url_for, due.delivery)
        headers = webhook_headers(
            due.job.id,
            body,
            secrets=secrets,
            now=utc_now(),
            traceparent=due.job.traceparent,
            about=due.about,
        )
        return await self._sender.send(url, body, headers)

    async def _withhold(self, job: Job, delivery: Delivery, until: datetime) -> datetime | None:
        """Record that the breaker withholds the delivery. Returns the time at which the entry must
        be handled again.

        Returns None if the delivery was withheld for too long and is given up.
        """
        longest_s = self.limits.withheld_s
        command = Withhold(now=utc_now(), longest_s=longest_s)
        delivery, _ = await self._writer.execute(command, job, delivery)
        if delivery.ended or delivery.withheld_at is None:
            return None
        return min(until, delivery.withheld_at + timedelta(seconds=longest_s))

    async def _record(self, due: DeliveryStep, result: SendResult) -> Delivery:
        jitter = self.limits.jitter
        spread = random.uniform(1 - jitter, 1 + jitter)
        is_upload = isinstance(due.what, PresignedUpload)
        delays_s = self._presigned_uploads.delays_s if is_upload else self.limits.delays_s
        made = RecordTry(result, delays_s, now=utc_now(), spread=spread)
        about, job, delivery = due.about, due.job, due.delivery
        if about is None:
            delivery, tries = await self._writer.execute(made, job, delivery)
            delivery, ends = await self._writer.execute(EndAfterTry(made), job, delivery)
            _note(job, delivery.tries, result, [*tries, *ends])
        else:
            attempt = delivery.attempts_of(about) + 1
            command = RecordTryBeforeEnd(about, made)
            delivery, tries = await self._writer.execute(command, job, delivery)
            _note(job, attempt, result, tries, about=about)
        return delivery


def _note(
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
    """The name of a receiver, which is the same for all spellings of its URL."""
    return f"{target.scheme}://{target.host}:{target.port}"
