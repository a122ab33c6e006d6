"""What is done for one entry of the callback queue: the callbacks of a job, one after the other.

What is due follows from the events of the job and those of the delivery. A callback begins when the
one before it was taken or given up. Those before the end wait for their receiver until the job has
ended for `DARKROOM_CALLBACK_BEFORE_END_S`, whatever their pauses and its breaker say, so that they
hold up the end for so long at most. That they are given up then is not recorded: it follows from
the first event about the end. Directly before the end, images are put where the caller said, which
holds it up for `DARKROOM_IMAGE_PUT_LONGEST_S` at most, without the time in which no role ran; that
they are given up is recorded.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from actors.callbacks.allowed_hosts import AllowedHosts
from actors.callbacks.arrival import Arrival
from actors.callbacks.breaker import BreakerLimits
from actors.callbacks.hosts import Hosts
from actors.callbacks.image_puts import ImagePuts
from actors.callbacks.lines import Lines
from actors.callbacks.secrets import SigningSecrets
from actors.callbacks.sender import Sender, webhook_headers
from events.callback_address import Target
from events.delivery import (
    Delivery,
    EndAfterTry,
    EndWithoutCallback,
    GiveUpBeforeEnd,
    GiveUpDelivery,
    RecordTry,
    RecordTryBeforeEnd,
    Withhold,
    is_wanted,
)
from events.delivery_policy import SendResult
from events.job import Job, fold
from events.log import DeliveryWriter, EventLog, utc_now
from events.persistent_log import PersistentLog
from events.queue import AT_ONCE, CallbackQueue
from events.result import UrlFor
from events.types import CallbackAttempted, DeliveryEvent
from events.wire.due import Due, NothingLeft, WhatIsDue
from events.wire.image_puts import ImagePut
from settings.callbacks import CallbackSettings
from telemetry.callback_metrics import CallbackMetrics
from telemetry.tracing import log_fields

logger = logging.getLogger(__name__)

_NOT_ALLOWED = SendResult(
    latency_s=0.0, error="the key of the job may not have this host called back", refused=True
)
_UNREADABLE = SendResult(
    latency_s=0.0, error="the service has another secret by now, and cannot read it", refused=True
)


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
        image_puts: ImagePuts,
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
        self._image_puts = image_puts
        self._what_is_due = WhatIsDue(
            most_images=settings.max_images,
            before_end_s=settings.before_end_s,
            puts_s=image_puts.settings.longest_s,
            since=utc_now(),
        )
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
            if isinstance(due, NothingLeft):
                await self._writer.execute(EndWithoutCallback(), due.job, due.delivery)
                return None
            if isinstance(due.what, ImagePut) and due.not_after and utc_now() >= due.not_after:
                await self._give_up_put(due)
                continue
            retry_at = due.retry_at and due.no_later(due.retry_at)
            if retry_at is not None and arrival.is_early(retry_at):
                return await self._park(arrival, due, retry_at)
            with log_fields.about(due.job):
                outcome = await self._work(arrival, due)
            if not isinstance(outcome, _Told):
                return outcome

    async def give_up(self, job_id: str, why: str) -> bool:
        """End what cannot be told, as far as the events can be read; whether more may follow."""
        due = await self._due(job_id)
        if not isinstance(due, Due):
            return False
        command = GiveUpDelivery(why) if due.about is None else GiveUpBeforeEnd(due.about, why)
        await self._writer.execute(command, due.job, due.delivery)
        return due.about is not None

    async def _give_up_put(self, due: Due) -> None:
        assert due.about is not None  # an image has a name
        longest_s = self._image_puts.settings.longest_s
        why = f"it was not taken within {longest_s:g} s after the end of the job"
        await self._writer.execute(GiveUpBeforeEnd(due.about, why), due.job, due.delivery)

    async def _due(self, job_id: str) -> Due | NothingLeft | None:
        delivery = await self._writer.load(job_id)
        events = [] if delivery.ended else await self._jobs.read(job_id)
        job = fold(events)
        if job is None or not is_wanted(job.submitted):
            return None
        return self._what_is_due.of(events, job, delivery, now=utc_now())

    async def _park(
        self, arrival: Arrival, due: Due, until: datetime, *, line: str | None = None
    ) -> datetime | None:
        """See `come_to_end`. The end of the job may have been parked, and replaced by this."""
        due_at = due.no_later(until) + arrival.ahead
        await self._queue.park(arrival.entry.key, due_at, line=line)
        if due.about is None or due.job.end is not None:
            return None
        now = fold(await self._jobs.read(due.job.id))
        return AT_ONCE if now is not None and now.end is not None else None

    async def _work(self, arrival: Arrival, due: Due) -> datetime | _Told | None:
        """Tell it, unless it is not its turn. See `come_to_end`."""
        job = due.job
        url = self._url(due)
        if url is None:
            return await self._follow(arrival, due, _UNREADABLE)
        target = self._sender.target(url)
        if target and not await self._allowed_hosts.allow(job.submitted.key_id, target.host):
            return await self._follow(arrival, due, _NOT_ALLOWED)
        if not isinstance(due.what, ImagePut):
            return await self._take_turn(arrival, due, url)
        turns = self._image_puts.turns
        with turns.take(job.submitted.owner) as is_mine:
            if is_mine:
                return await self._take_turn(arrival, due, url)
        pause = timedelta(seconds=turns.come_again_s(job.submitted.owner))
        return await self._park(arrival, due, utc_now() + pause)

    async def _take_turn(self, arrival: Arrival, due: Due, url: str) -> datetime | _Told | None:
        """Tell it, once the receiver has room. See `come_to_end`."""
        job, target = due.job, self._sender.target(url)
        secrets = await self._secrets.of(job.submitted.owner, job.submitted.key_id)
        # What is not dialled needs no turn of its own, and an address may be a secret.
        receiver = _receiver(target) if target else job.id
        if isinstance(due.what, ImagePut):
            # Buckets of many owners are at one host, which may fail for one of them alone.
            receiver = f"{receiver} of {job.submitted.owner}"
        async with self.hosts.turn(receiver, arrival.entry.key) as turn:
            result = None if turn.wait_s else await self._send(due, url, secrets)
            turn.answered = None if result is None else result.answered
        if result is None:
            turn_at = utc_now() + timedelta(seconds=turn.wait_s)
            is_noted = turn.is_withheld and due.about is None
            until = await self._withhold(job, due.delivery, turn_at) if is_noted else turn_at
            return None if until is None else await self._park(arrival, due, until, line=receiver)
        outcome = await self._follow(arrival, due, result)
        await self.lines.call(receiver)
        return outcome

    def _url(self, due: Due) -> str | None:
        """None where it can be read no more."""
        if isinstance(due.what, ImagePut):
            return self._image_puts.url(due.what)
        return due.job.submitted.callback_url

    async def _follow(
        self, arrival: Arrival, due: Due, result: SendResult
    ) -> datetime | _Told | None:
        """Record a try, and park the next one. See `come_to_end`."""
        if result.stalled:
            return AT_ONCE
        if isinstance(due.what, ImagePut):
            self._metrics.note_put(result)
        else:
            self._metrics.note_try(due.job, result)
        delivery = await self._record(due, result)
        after = replace(due, delivery=delivery)
        if due.about is not None:
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

    async def _send(self, due: Due, url: str, secrets: Sequence[str]) -> SendResult:
        if isinstance(due.what, ImagePut):
            return await self._image_puts.send(url, due.what.image)
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
        """When to come again; None if it was withheld for so long that it is given up."""
        longest_s = self._settings.withheld_s
        command = Withhold(now=utc_now(), longest_s=longest_s)
        delivery, _ = await self._writer.execute(command, job, delivery)
        if delivery.ended or delivery.withheld_at is None:
            return None
        return min(until, delivery.withheld_at + timedelta(seconds=longest_s))

    async def _record(self, due: Due, result: SendResult) -> Delivery:
        jitter = self._settings.jitter
        spread = random.uniform(1 - jitter, 1 + jitter)
        is_put = isinstance(due.what, ImagePut)
        delays_s = self._image_puts.settings.delays_s if is_put else self._settings.delays_s
        made = RecordTry(result, delays_s, now=utc_now(), spread=spread)
        about, job, delivery = due.about, due.job, due.delivery
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
