"""The callbacks role: pulls due entries from the callback queue and sends their callbacks at least
once.

An entry shows only that a delivery may have a step left. The events of the delivery show which
steps were done (`actors/callbacks/deliverer.py`). The entry is acknowledged last: after the next
entry is stored, or when the delivery has ended. So no delivery is lost if a process dies between
any two steps:

| the process dies after this step         | the process that gets the entry next              |
|------------------------------------------|---------------------------------------------------|
| it sent the callback                     | sends the callback again, with the same id        |
| it appended a successful                 | sends the callback again, with the same id,       |
| `CallbackAttempted`                      | because the delivery has not ended                |
| it appended a `CallbackAttempted` with   | sends the callback if `retry_at` has passed, or   |
| `retry_at`                               | parks the entry                                   |
| it appended `CallbackDelivered` or       | acknowledges the entry, because the delivery has  |
| `CallbackExhausted`                      | ended                                             |
| it parked the next entry                 | parks the entry again, which replaces that entry  |
| it sent a callback before the end of the | continues with the next callback                  |
| job, and recorded this                   |                                                   |

Other orders of the steps are not safe. A process that parks before it appends `CallbackAttempted`
can lose the count of attempts. A process that acknowledges before it parks can lose the delivery.

If two processes send the same callback, the append of one of them conflicts. This process folds the
new events. If the delivery continues, this process then records its attempt. While the log is not
available, a process keeps a received answer in memory until the answer can be recorded.

While a receiver keeps failing, its circuit breaker (`actors/callbacks/receivers.py`) withholds the
callbacks to it. A withheld callback is not an attempt, so a separate limit applies.
`CallbackWithheld` records the time at which the delivery was first withheld. The delivery is given
up if it is still withheld `withheld_s` seconds later.

A failure of this machine is not an attempt. After an error that may be temporary, the entry is not
acknowledged, and so is delivered again. An attempt during which this process was stalled is
repeated without a record.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from actors.callbacks.api_key_data import AllowedHosts, SigningSecrets
from actors.callbacks.deliverer import Arrival, Deliverer, DeliveryLimits
from actors.callbacks.own_addresses import address_rule
from actors.callbacks.presigned_uploads import PresignedUploads
from actors.callbacks.sender import Sender
from actors.connections import connect, image_urls, open_database, open_history, open_images
from events.bus.queues import AT_ONCE, CallbackQueue, QueueEntry
from events.bus.request_reply import answer_metrics
from events.delivery import SendResult
from events.errors import JobDamaged, JobOfLaterVersion, LogUnavailable, ServiceError
from events.job import Job
from events.log import utc_now
from events.retry import keep_trying
from events.store.keys import ApiKeys
from settings.log import TelemetrySettings
from settings.settings import Settings
from storage.images import ImageStoreError
from telemetry.callback_metrics import Breakers, CallbackMetrics
from telemetry.exporter import open_exporter
from telemetry.exposition import ProcessMetrics
from telemetry.spans import callback_spans

logger = logging.getLogger(__name__)

_PULL_TIMEOUT_S = 10.0
_LATER_VERSION_S = 60.0
"""Seconds for which a delivery is parked if only a later version can read it."""


class Callbacks:
    def __init__(
        self,
        queue: CallbackQueue,
        deliverer: Deliverer,
        *,
        ack_wait_s: float = 15.0,
    ) -> None:
        """`ack_wait_s` seconds after the death of a process, its entries are delivered again."""
        self._queue = queue
        self._deliverer = deliverer
        self._limits = deliverer.limits
        self._ack_wait_s = ack_wait_s
        self._held: dict[str, QueueEntry] = {}
        """Entries that are being handled, by job id."""
        self._second: dict[str, QueueEntry] = {}
        """For a job whose entry is being handled, the entry that is handled next, by job id."""
        self._has_ended = asyncio.Event()
        self._errors: Counter[str] = Counter()
        """Number of unexpected errors of each delivery, by job id."""

    @property
    def open_breakers(self) -> int:
        return self._deliverer.receivers.open_breakers

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._renew())
            tasks.create_task(self._deliverer.receivers.run())
            tasks.create_task(keep_trying(lambda: self._pull(tasks), on=LogUnavailable))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._ack_wait_s / 3)
            for entry in list(self._held.values()):
                await entry.renew()

    async def _pull(self, tasks: asyncio.TaskGroup) -> None:
        # Failed entries are unacknowledged until they are delivered again, so they count, too.
        most = 4 * self._limits.in_flight
        due = self._queue.due(max_unacknowledged=most, ack_wait_s=self._ack_wait_s)
        async with due as entries:
            while True:
                most = await self._wait_for_capacity()
                for entry in await entries.next(most=most, timeout_s=_PULL_TIMEOUT_S):
                    # `next` may return more entries than `most`.
                    await self._wait_for_capacity()
                    if entry.job_id in self._held:
                        self._second[entry.job_id] = entry
                    else:
                        self._held[entry.job_id] = entry
                        tasks.create_task(self._handle_all(entry))

    async def _wait_for_capacity(self) -> int:
        """Wait until further deliveries may begin. Returns how many may begin now."""
        while (capacity := self._limits.in_flight - len(self._held)) <= 0:
            self._has_ended.clear()
            await self._has_ended.wait()
        return capacity

    async def _handle_all(self, first: QueueEntry) -> None:
        """Handle an entry, then each entry of the same job that arrived during the handling."""
        job_id, entry = first.job_id, first
        try:
            while True:
                self._held[job_id] = entry
                await self._handle(entry)
                if (second := self._second.pop(job_id, None)) is None:
                    break
                entry = second
        finally:
            del self._held[job_id]
            self._has_ended.set()

    async def _handle(self, entry: QueueEntry) -> None:
        """Handle an entry. After an error that may be temporary, the entry is not acknowledged."""
        fields = {"action": "callback", "job_id": entry.job_id}
        try:
            await self._deliver(entry)
            del self._errors[entry.job_id]
        except Exception as error:
            if _is_outage(error):
                logger.warning(
                    "a callback is delivered again later", extra={**fields, "error": str(error)}
                )
            elif self._may_pass(entry, error):
                logger.exception("a callback is delivered again later", extra=fields)
            else:
                logger.exception("a callback is given up", extra=fields)
                await self._drop(entry, error)

    def _may_pass(self, entry: QueueEntry, error: Exception) -> bool:
        """Count an unexpected error. Returns whether another try may succeed."""
        self._errors[entry.job_id] += 1
        is_last = self._errors[entry.job_id] >= self._limits.max_errors
        return not is_last and not isinstance(error, JobDamaged)

    async def _drop(self, entry: QueueEntry, error: Exception) -> None:
        """Give up the current step of a delivery and acknowledge the entry. If the events cannot be
        read, only acknowledge the entry.
        """
        message = (
            f"The service could not make this callback ({type(error).__name__}). Read the result "
            "of the job. If a requested redelivery failed in the same way, report the id of the "
            "job to the operator."
        )
        fields = {"action": "callback", "job_id": entry.job_id}
        try:
            if await self._deliverer.give_up(entry.job_id, message):
                await self._queue.park(entry.job_id, AT_ONCE)
        except Exception as unended:  # noqa: BLE001 - the events may be damaged in any way
            fields["error"] = type(unended).__name__
            logger.warning("the delivery of a callback could not be ended", extra=fields)
            if _is_outage(unended):
                return  # The entry is delivered again later.
        del self._errors[entry.job_id]
        await entry.ack()

    async def _deliver(self, entry: QueueEntry) -> None:
        """Send the due callbacks, park the next entry if steps are left, and acknowledge `entry`.

        Raises LogUnavailable, LogFull if the next entry could not be parked.
        """
        job_id, arrival = entry.job_id, Arrival.of(entry)
        try:
            wait = await self._deliverer.deliver_due(arrival)
            if wait is not None:
                await self._queue.park(job_id, wait.until + arrival.ahead, receiver=wait.receiver)
                if await self._deliverer.has_changed(wait):
                    await self._queue.park(job_id, AT_ONCE)
        except JobOfLaterVersion:  # A process of the later version may get the entry next.
            until = utc_now() + timedelta(seconds=_LATER_VERSION_S)
            await self._queue.park(job_id, until + arrival.ahead)
        await entry.ack()


def _is_outage(error: Exception) -> bool:
    """Return whether the error is an outage of a part of the service, and not due to the job."""
    is_ours = isinstance(error, ServiceError | ImageStoreError)
    return is_ours and not isinstance(error, JobDamaged)


Run: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class DeliveryMetrics:
    def __init__(self, settings: TelemetrySettings) -> None:
        self.process = ProcessMetrics("callbacks")
        self._exporter = open_exporter(settings, "callbacks")
        self.callbacks = CallbackMetrics(self.process.registry, on_attempt=self._trace)
        self.background: Sequence[Run] = (self._exporter.run,) if self._exporter else ()
        """Coroutines to run beside the role."""

    def _trace(self, job: Job, result: SendResult) -> None:
        if self._exporter is not None:
            self._exporter.add(callback_spans(job, result, ended=utc_now()))


async def run(settings: Settings) -> None:
    """Deliver callbacks until cancelled."""
    connections = connect(settings.log, "callbacks")
    secret = settings.stores.secret_bytes
    # Deliveries work without the database, so this does not wait until the database is prepared.
    database = open_database(settings.stores)
    keys = ApiKeys(database)
    images = open_images(settings.stores)
    # A requested redelivery may need the events of a job that have left the log.
    history = open_history(database, images, log=connections.log, deliveries=connections.deliveries)
    metrics = DeliveryMetrics(settings.telemetry)
    rule = address_rule(
        settings.callbacks, http=settings.http, log=settings.log, stores=settings.stores
    )
    sender = Sender(rule, proxy=settings.callbacks.proxy)
    deliverer = Deliverer(
        queue=connections.callback_queue,
        jobs=history.log,
        deliveries=history.delivery_log,
        sender=sender,
        url_for=image_urls(settings.http, settings.stores),
        secrets=SigningSecrets(keys, secret=secret),
        allowed_hosts=AllowedHosts(keys, default=settings.keys.callback_hosts),
        presigned_uploads=PresignedUploads(sender, images, secret=secret),
        limits=DeliveryLimits(delays_s=settings.callbacks.delays_s),
        metrics=metrics.callbacks,
    )
    callbacks = Callbacks(connections.callback_queue, deliverer)
    metrics.process.add(Breakers(lambda: callbacks.open_breakers).collect)
    await connections.bus.wait_connected()
    async with asyncio.TaskGroup() as group:
        group.create_task(callbacks.run())
        group.create_task(answer_metrics(connections.bus, metrics.process.encoded))
        for each in metrics.background:
            group.create_task(each())
