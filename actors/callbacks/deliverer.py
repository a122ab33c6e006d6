"""What is done for one entry of the callback queue: the callbacks of a job, one after the other.

What is due follows from the events of the job and those of the delivery. A callback begins when the
one before it was taken or given up. Those before the end wait for their receiver until the job has
ended for `DARKROOM_CALLBACK_BEFORE_END_S`, whatever their pauses and its breaker say, so that they
hold up the end for so long at most. That they are given up then is not recorded: it follows from
the first event about the end.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from actors.callbacks.allowed_hosts import AllowedHosts
from actors.callbacks.arrival import Arrival
from actors.callbacks.breaker import BreakerLimits
from actors.callbacks.hosts import Hosts
from actors.callbacks.lines import Lines
from actors.callbacks.secrets import SigningSecrets
from actors.callbacks.sender import Sender, webhook_headers
from events.callback_address import Target
from events.delivery import (
    Delivery,
    EndAfterTry,
    GiveUpBeforeEnd,
    GiveUpDelivery,
    RecordTry,
    RecordTryBeforeEnd,
    Withhold,
)
from events.delivery_policy import SendResult
from events.job import Job, fold
from events.log import DeliveryWriter, EventLog, utc_now
from events.persistent_log import PersistentLog
from events.queue import AT_ONCE, CallbackQueue
from events.result import UrlFor
from events.types import CallbackAttempted, DeliveryEvent, Event
from events.wire.callbacks import CallbackEvent, CallbackMessage, next_before_end
from settings.callbacks import CallbackSettings
from telemetry.callback_metrics import CallbackMetrics
from telemetry.tracing import log_fields

logger = logging.getLogger(__name__)

_NOT_ALLOWED = SendResult(
    latency_s=0.0, error="the key of the job may not have this host called back", refused=True
)


@dataclass(frozen=True, slots=True)
class _Due:
    """What is to be told next."""

    message: CallbackMessage
    url: str
    job: Job
    """As it is now."""
    delivery: Delivery

    @property
    def retry_at(self) -> datetime | None:
        """Not before then, if it was tried."""
        if self.message.about is None:
            return self.delivery.retry_at
        before = self.delivery.before_end
        return before.retry_at if before and before.about == self.message.about else None


class _Told:
    """One was told, or given up: the next may follow at once."""


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
        settings: CallbackSettings,
        metrics: CallbackMetrics,
    ) -> None:
        self._queue = queue
        self._jobs = PersistentLog(jobs)
        self._writer = DeliveryWriter(PersistentLog(deliveries), on_added=metrics.note_event)
        self._sender = sender
        self._url_for = url_for
        self._secrets = secrets
        self._allowed_hosts = allowed_hosts
        self._settings = settings
        self._metrics = metrics
        self.hosts = Hosts(
            at_once=settings.per_host,
            most_inside=settings.in_flight // 2,
            breaker=BreakerLimits.of(settings),
        )
        self.lines = Lines(self.hosts, queue)

    async def come_to_end(self, arrival: Arrival) -> datetime | None:
        """When to come again; None if it is parked already, or nothing is left to do now."""
        while True:
            due = await self._due(arrival.entry.job_id)
            if due is None:
                return None
            retry_at = due.retry_at and self._no_later(due, due.retry_at)
            if retry_at is not None and arrival.is_early(retry_at):
                return await self._park(arrival, due, retry_at)
            with log_fields.about(due.job):
                outcome = await self._work(arrival, due)
            if not isinstance(outcome, _Told):
                return outcome

    async def give_up(self, job_id: str, why: str) -> bool:
        """End what cannot be told, as far as the events can be read; whether more may follow."""
        due = await self._due(job_id)
        if due is None:
            return False
        about = due.message.about
        command = GiveUpDelivery(why) if about is None else GiveUpBeforeEnd(about, why)
        await self._writer.execute(command, due.job, due.delivery)
        return about is not None

    async def _due(self, job_id: str) -> _Due | None:
        delivery = await self._writer.load(job_id)
        events = [] if delivery.ended else await self._jobs.read(job_id)
        job = fold(events)
        url = job.submitted.callback_url if job else None
        if job is None or url is None:
            return None
        message = self._message(events, job, delivery)
        return None if message is None else _Due(message, url, job, delivery)

    def _message(
        self, events: Sequence[Event], job: Job, delivery: Delivery
    ) -> CallbackMessage | None:
        is_late = job.ended_at is not None and utc_now() >= self._given_up_at(job.ended_at)
        if not is_late and (
            message := next_before_end(events, delivery, most_images=self._settings.max_images)
        ):
            return message
        return None if job.end is None else CallbackMessage(CallbackEvent.COMPLETED, job)

    def _given_up_at(self, ended_at: datetime) -> datetime:
        """When what was not told before the end is given up."""
        return ended_at + timedelta(seconds=self._settings.before_end_s)

    def _no_later(self, due: _Due, until: datetime) -> datetime:
        """What is told before the end does not wait beyond the time at which it is given up."""
        if due.message.about is None or due.job.ended_at is None:
            return until
        return min(until, self._given_up_at(due.job.ended_at))

    async def _park(
        self, arrival: Arrival, due: _Due, until: datetime, *, line: str | None = None
    ) -> datetime | None:
        """See `come_to_end`. The end of the job may have been parked, and replaced by this."""
        due_at = self._no_later(due, until) + arrival.ahead
        await self._queue.park(arrival.entry.job_id, due_at, line=line)
        if due.message.about is None or due.job.end is not None:
            return None
        now = fold(await self._jobs.read(due.job.id))
        return AT_ONCE if now is not None and now.end is not None else None

    async def _work(self, arrival: Arrival, due: _Due) -> datetime | _Told | None:
        """Tell it, unless it is not its turn. See `come_to_end`."""
        job, submitted = due.job, due.job.submitted
        target = self._sender.target(due.url)
        if target and not await self._allowed_hosts.allow(submitted.key_id, target.host):
            return await self._follow(arrival, due, _NOT_ALLOWED)
        secrets = await self._secrets.of(submitted.owner, submitted.key_id)
        receiver = _receiver(target) if target else due.url
        async with self.hosts.turn(receiver, job.id) as turn:
            result = None if turn.wait_s else await self._send(due, secrets)
            turn.answered = None if result is None else result.answered
        if result is None:
            turn_at = utc_now() + timedelta(seconds=turn.wait_s)
            is_noted = turn.is_withheld and due.message.about is None
            until = await self._withhold(job, due.delivery, turn_at) if is_noted else turn_at
            return None if until is None else await self._park(arrival, due, until, line=receiver)
        outcome = await self._follow(arrival, due, result)
        await self.lines.call(receiver)
        return outcome

    async def _follow(
        self, arrival: Arrival, due: _Due, result: SendResult
    ) -> datetime | _Told | None:
        """Record a try, and park the next one. See `come_to_end`."""
        if result.stalled:
            return AT_ONCE
        self._metrics.note_try(due.job, result)
        delivery = await self._record(due, result)
        after = _Due(due.message, due.url, due.job, delivery)
        if due.message.about is not None:
            if after.retry_at is None:
                return _Told()
            return await self._park(arrival, after, after.retry_at)
        if delivery.ended:
            return None
        if delivery.retry_at is None:  # somebody asked for it again while this try was made
            return AT_ONCE
        await self._park(arrival, after, delivery.retry_at)
        # Whoever asked for it again parked it, too: if that was before, it has been replaced.
        asked_again = (await self._writer.load(due.job.id)).position != delivery.position
        return AT_ONCE if asked_again else None

    async def _send(self, due: _Due, secrets: Sequence[str]) -> SendResult:
        body = due.message.body(self._url_for)
        headers = webhook_headers(
            due.job.id,
            body,
            secrets=secrets,
            now=utc_now(),
            traceparent=due.job.traceparent,
            about=due.message.about,
        )
        return await self._sender.send(due.url, body, headers)

    async def _withhold(self, job: Job, delivery: Delivery, until: datetime) -> datetime | None:
        """When to come again; None if it was withheld for so long that it is given up."""
        longest_s = self._settings.withheld_s
        command = Withhold(now=utc_now(), longest_s=longest_s)
        delivery, _ = await self._writer.execute(command, job, delivery)
        if delivery.ended or delivery.withheld_at is None:
            return None
        return min(until, delivery.withheld_at + timedelta(seconds=longest_s))

    async def _record(self, due: _Due, result: SendResult) -> Delivery:
        jitter = self._settings.jitter
        spread = random.uniform(1 - jitter, 1 + jitter)
        made = RecordTry(result, self._settings.delays_s, now=utc_now(), spread=spread)
        about, job, delivery = due.message.about, due.job, due.delivery
        if about is None:
            delivery, tries = await self._writer.execute(made, job, delivery)
            delivery, ends = await self._writer.execute(EndAfterTry(made), job, delivery)
            _note(job, delivery.tries, result, [*tries, *ends])
        else:
            attempt = delivery.tries_to_tell(about) + 1
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
        "callback tried",
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
    """One name per receiver, however its URL is spelt."""
    return f"{target.scheme}://{target.host}:{target.port}"
