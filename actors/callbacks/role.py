"""Callbacks: takes what is due from the callback queue and delivers it, at least once.

The entry on the queue says only that something is left to do; what was done is in the delivery's
own events. An entry is acknowledged last, when its successor is stored or there is none, so a death
between any two steps loses nothing:

| dies after                          | the entry comes again and finds                           |
|-------------------------------------|-----------------------------------------------------------|
| sending                             | no new event: sends again, with the same id               |
| `CallbackAttempted`, it succeeded   | no end: sends again, with the same id                     |
| `CallbackAttempted` with `retry_at` | it is early: parks it, or late: tries                     |
| `CallbackDelivered` or `…Exhausted` | the end: acknowledges                                     |
| parking                             | it is early: parks it again, which replaces the first     |

(parking before `CallbackAttempted` would lose the count of tries, acknowledging before parking the
delivery itself). Two instances that send the same callback both append under the position they
folded: one meets a conflict, folds the new events, and records its own try after them, or stops if
they end the delivery. While the log is not available, an answer that was received waits to be
recorded.

While a receiver keeps failing, its breaker withholds its callbacks (`breaker.py`). That is no try
and uses none up, so it has a limit of its own: `CallbackWithheld` records when it began, and a
delivery that is still withheld `DARKROOM_CALLBACK_WITHHELD_S` later is given up.

What the machine does is no try either: an error that says nothing about the job, or may pass, sends
the entry back, and a try during which this process stood still is made again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from actors.callbacks.allowed_hosts import AllowedHosts
from actors.callbacks.arrival import Arrival
from actors.callbacks.breaker import BreakerLimits
from actors.callbacks.hosts import Hosts
from actors.callbacks.lines import Lines
from actors.callbacks.secrets import SigningSecrets
from actors.callbacks.sender import Sender, webhook_headers
from events.callback_address import Target
from events.delivery import Delivery, EndAfterTry, GiveUpDelivery, RecordTry, Withhold
from events.delivery_policy import SendResult
from events.errors import JobDamaged, JobOfLaterVersion, LogUnavailable, ServiceError
from events.job import Job, fold
from events.log import DeliveryWriter, EventLog, utc_now
from events.persistent_log import PersistentLog
from events.queue import AT_ONCE, CallbackQueue, QueueEntry
from events.result import UrlFor, result_of
from events.retry import keep_trying
from settings.callbacks import CallbackSettings
from storage.images import ImageStoreError
from telemetry.callback_metrics import CallbackMetrics

logger = logging.getLogger(__name__)

_PULL_TIMEOUT_S = 10.0
_NOT_ALLOWED = SendResult(
    latency_s=0.0, error="the key of the job may not have this host called back", refused=True
)
_LATER_VERSION_S = 60.0
"""How long a delivery waits that a later version can read."""


class Callbacks:
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
        hold_s: float = 15.0,
    ) -> None:
        """After `hold_s` the entry of an instance that died goes to another one."""
        self._queue = queue
        self._jobs = PersistentLog(jobs)
        self._writer = DeliveryWriter(PersistentLog(deliveries), on_added=metrics.note_event)
        self._sender = sender
        self._url_for = url_for
        self._secrets = secrets
        self._allowed_hosts = allowed_hosts
        self._settings = settings
        self._metrics = metrics
        self._hold_s = hold_s
        self._hosts = Hosts(
            at_once=settings.per_host,
            most_inside=settings.in_flight // 2,
            breaker=BreakerLimits.of(settings),
        )
        self._lines = Lines(self._hosts, queue)
        self._held: dict[str, QueueEntry] = {}
        """By job. A second entry of a job that is being handled is ignored, and comes again."""
        self._room = asyncio.Event()
        self._errors: Counter[str] = Counter()
        """By job: how often an error that nobody foresaw kept its delivery from being made."""

    @property
    def open_breakers(self) -> int:
        """How many receivers are left alone now."""
        return self._hosts.open_breakers

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._renew())
            tasks.create_task(self._lines.run())
            await keep_trying(lambda: self._pull(tasks), on=LogUnavailable)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._hold_s / 3)
            for entry in list(self._held.values()):
                await entry.renew()

    async def _pull(self, tasks: asyncio.TaskGroup) -> None:
        in_flight = self._settings.in_flight
        # Entries that wait for their receiver's turn count as held, in this instance and others.
        most_held = 4 * in_flight
        async with self._queue.due(most_held=most_held, hold_s=self._hold_s) as entries:
            while True:
                while (room := in_flight - len(self._held)) <= 0:
                    self._room.clear()
                    await self._room.wait()
                for entry in await entries.next(most=room, timeout_s=_PULL_TIMEOUT_S):
                    if entry.job_id not in self._held:
                        self._held[entry.job_id] = entry
                        tasks.create_task(self._handle(entry))

    async def _handle(self, entry: QueueEntry) -> None:
        """An entry that is not acknowledged comes again after `hold_s`."""
        fields = {"action": "callback", "job_id": entry.job_id}
        try:
            await self._deliver(Arrival.of(entry))
            del self._errors[entry.job_id]
        except Exception as error:
            if _is_outage(error):
                logger.warning("callback goes back", extra={**fields, "error": str(error)})
            elif self._may_pass(entry, error):
                logger.exception("callback goes back", extra=fields)
            else:
                logger.exception("callback given up", extra=fields)
                await self._drop(entry, error)
        finally:
            del self._held[entry.job_id]
            self._room.set()

    def _may_pass(self, entry: QueueEntry, error: Exception) -> bool:
        """Whether it may be the machine's error, not one that comes of the job each time."""
        self._errors[entry.job_id] += 1
        is_last = self._errors[entry.job_id] >= self._settings.max_errors
        return not is_last and not isinstance(error, JobDamaged)

    async def _drop(self, entry: QueueEntry, error: Exception) -> None:
        """End one delivery that cannot be made, as far as its events can be read.

        An entry that came again for ever would have the same error each time.
        """
        message = (
            f"The service could not make this callback ({type(error).__name__}). Read the job's "
            "result; if it was asked for again and failed alike, tell the operator its id."
        )
        fields = {"action": "callback", "job_id": entry.job_id}
        try:
            job = fold(await self._jobs.read(entry.job_id))
            if job is not None:
                delivery = await self._writer.load(entry.job_id)
                await self._writer.execute(GiveUpDelivery(message), job, delivery)
        except Exception as unended:  # noqa: BLE001 - whatever its events hold
            fields["error"] = type(unended).__name__
            logger.warning("callback could not be ended", extra=fields)
            if _is_outage(unended):
                return  # it comes again
        del self._errors[entry.job_id]
        await entry.ack()

    async def _deliver(self, arrival: Arrival) -> None:
        """Raises LogUnavailable, LogFull if the entry could not be parked."""
        try:
            until = await self._come_to_end(arrival)
        except JobOfLaterVersion:  # whose role may meet it the next time
            until = utc_now() + timedelta(seconds=_LATER_VERSION_S)
        if until is not None:
            await self._park(arrival, until)
        await arrival.entry.ack()

    async def _park(self, arrival: Arrival, until: datetime, *, line: str | None = None) -> None:
        await self._queue.park(arrival.entry.job_id, until + arrival.ahead, line=line)

    async def _come_to_end(self, arrival: Arrival) -> datetime | None:
        """When to come again; None if it is parked already, or nothing is left to do."""
        job_id = arrival.entry.job_id
        delivery = await self._writer.load(job_id)
        job = None if delivery.ended else fold(await self._jobs.read(job_id))
        url = job.submitted.callback_url if job else None
        if job is None or job.end is None or url is None:
            return None
        if delivery.retry_at is not None and arrival.is_early(delivery.retry_at):
            return delivery.retry_at
        return await self._work(arrival, job, url, delivery)

    async def _work(
        self, arrival: Arrival, job: Job, url: str, delivery: Delivery
    ) -> datetime | None:
        """Deliver, unless it is not its turn. See `_come_to_end`."""
        target = self._sender.target(url)
        if target and not await self._allowed_hosts.allow(job.submitted.key_id, target.host):
            return await self._follow(arrival, job, delivery, _NOT_ALLOWED)
        secrets = await self._secrets.of(job.submitted.owner, job.submitted.key_id)
        receiver = _receiver(target) if target else url
        async with self._hosts.turn(receiver, job.id) as turn:
            result = None if turn.wait_s else await self._send(job, url, secrets)
            turn.answered = None if result is None else result.answered
        if result is None:
            turn_at = utc_now() + timedelta(seconds=turn.wait_s)
            until = await self._withhold(job, delivery, turn_at) if turn.is_withheld else turn_at
            if until is not None:
                await self._park(arrival, until, line=receiver)
            return None
        next_at = await self._follow(arrival, job, delivery, result)
        await self._lines.call(receiver)
        return next_at

    async def _follow(
        self, arrival: Arrival, job: Job, delivery: Delivery, result: SendResult
    ) -> datetime | None:
        """Record a try, and park the next one. See `_come_to_end`."""
        if result.stalled:
            return AT_ONCE
        self._metrics.note_try(result)
        delivery = await self._record(job, delivery, result)
        if delivery.ended:
            return None
        if delivery.retry_at is None:  # somebody asked for it again while this try was made
            return AT_ONCE
        await self._park(arrival, delivery.retry_at)
        # Whoever asked for it again parked it, too: if that was before, it has been replaced.
        asked_again = (await self._writer.load(job.id)).position != delivery.position
        return AT_ONCE if asked_again else None

    async def _send(self, job: Job, url: str, secrets: Sequence[str]) -> SendResult:
        body = result_of(job, self._url_for).body()
        headers = webhook_headers(
            job.id,
            body,
            secrets=secrets,
            now=utc_now(),
            traceparent=job.traceparent,
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

    async def _record(self, job: Job, delivery: Delivery, result: SendResult) -> Delivery:
        jitter = self._settings.jitter
        spread = random.uniform(1 - jitter, 1 + jitter)
        made = RecordTry(result, self._settings.delays_s, now=utc_now(), spread=spread)
        delivery, _ = await self._writer.execute(made, job, delivery)
        delivery, ends = await self._writer.execute(EndAfterTry(made), job, delivery)
        logger.info(
            "callback tried",
            extra={
                "action": "callback",
                "job_id": job.id,
                "attempt": delivery.tries,
                "status": result.status,
                "error": result.error,
                "latency_s": round(result.latency_s, 3),
                "end": type(ends[0]).__name__ if ends else None,
            },
        )
        return delivery


def _is_outage(error: Exception) -> bool:
    """Whether it says nothing about the job, and passes with what is out of reach."""
    is_ours = isinstance(error, ServiceError | ImageStoreError)
    return is_ours and not isinstance(error, JobDamaged)


def _receiver(target: Target) -> str:
    """One name per receiver, however its URL is spelt."""
    return f"{target.scheme}://{target.host}:{target.port}"
