"""The router: copies events from the log to the queues.

For each `Submitted` the router adds an entry to the queue of the endpoint. For the end of a job
with a delivery it adds an entry to the callback queue. An entry is added only if its subject is
empty, so a repeated step adds no second entry.

A job with `callback_events` is different: its caller requested callbacks for `Started` or for each
stored image. For each of these events and for the end, a new entry replaces the present entry and
is due at once, because the holder of the present entry may have read the job before the event.

Both queues are projections of the log. So every step may be repeated, also by two routers at the
same time.

A new job is routed from the events that the router receives. The log is read only if these events
lack data that the step needs, and for the end of each job with a delivery.

While two routers run during a deploy, NATS sends each event to one of them. Each router then
receives only some of the events of a job, possibly not in the order of the log. So the routers read
the log more often, and an ended job may get an entry. The first reader of such an entry
acknowledges it.

The router skips a job with an event that this version cannot read. The projection records these
jobs (`projection.py`). After a later version has projected such a job, its missing entry is added
like any lost entry.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial

from actors.callbacks.reaper import CallbackReaper
from actors.connections import connect, open_history, open_images, open_prepared_database
from actors.job_error import give_up_after_error
from events.bus.jetstream_log import EventConsumer
from events.bus.queues import AT_ONCE, REQUEUE_PERIOD_S, CallbackQueue, JobQueue
from events.bus.request_reply import answer_metrics
from events.bus.streams import ROUTER_CONSUMER
from events.delivery import has_delivery
from events.delivery_steps import MOST_IMAGES, CallbackEvent, callback_events_of
from events.errors import (
    DatabaseUnavailable,
    JobDamaged,
    LogFull,
    LogUnavailable,
    OutcomeUnknown,
    ReadTimeout,
)
from events.job import Job, fold
from events.log import JobWriter, utc_now
from events.retry import keep_trying
from events.store.read_model import ReadModel
from events.types import Cancelled, Completed, Event, Failed, ImageStored, Started, Submitted
from settings.settings import Settings
from telemetry.exposition import ProcessMetrics

logger = logging.getLogger(__name__)

_PASSING = (LogUnavailable, LogFull, OutcomeUnknown, ReadTimeout)
"""Errors that say nothing about a job. After such an error the step is repeated."""
_RECENT = timedelta(seconds=10)
"""Largest age of a `Submitted` whose job is queued without reading the log. An older event may have
been delivered before, so later events of its job may be in the log.
"""
_MOST_REMEMBERED = 20_000
"""Largest number of open jobs whose callback events are kept in memory."""


class SeenJobs:
    """Data from recent events, in memory, so that the log need not be read for their jobs.

    `note` must be called first for each event, in log order. Then the other methods answer from:

    | data of a job                      | added by                  | removed by               |
    |------------------------------------|---------------------------|--------------------------|
    | `_first`: its `Submitted`          | a recent `Submitted`      | `take_first`, or a later |
    |                                    |                           | event of the job         |
    | `_asked`: the events for which it  | `Submitted`, or           | `forget_ended`, or too   |
    | has callbacks                      | `note_callback_events`    | many other jobs          |
    """

    def __init__(self, *, now: Callable[[], datetime] = utc_now) -> None:
        self._now = now
        self._first: dict[str, Event] = {}
        self._asked: dict[str, frozenset[str]] = {}

    def note(self, event: Event) -> None:
        self._first.pop(event.job_id, None)
        if not isinstance(event.data, Submitted):
            return
        if self._now() - event.time < _RECENT:
            self._first[event.job_id] = event
        self.note_callback_events(event.job_id, event.data)

    def note_callback_events(self, job_id: str, submitted: Submitted) -> frozenset[str]:
        self._asked.pop(job_id, None)
        asked = callback_events_of(submitted)
        self._asked[job_id] = asked
        if len(self._asked) > _MOST_REMEMBERED:
            del self._asked[next(iter(self._asked))]
        return asked

    def take_first(self, job_id: str) -> Event | None:
        """Return and forget the first event of a job, if it is recent and no other event of the job
        has been noted.
        """
        return self._first.pop(job_id, None)

    def forget_ended(self, job_id: str) -> bool:
        """Forget an ended job. Returns whether the job is known to have no callbacks."""
        asked = self._asked.pop(job_id, None)
        return asked is not None and not asked

    def asked(self, job_id: str) -> frozenset[str] | None:
        """Return the requested callback events of an open job, or None if they are unknown."""
        return self._asked.get(job_id)


class Router:
    def __init__(
        self,
        *,
        events: EventConsumer,
        writer: JobWriter,
        queue: JobQueue,
        callbacks: CallbackQueue,
        read_model: ReadModel,
        most_notified_images: int = MOST_IMAGES,
        requeue_period_s: float = REQUEUE_PERIOD_S,
    ) -> None:
        """Only images with an index below `most_notified_images` have callbacks.

        Missing entries are added about every `requeue_period_s` seconds.
        """
        self._events = events
        self._writer = writer
        self._queue = queue
        self._callbacks = callbacks
        self._read_model = read_model
        self._requeue_period_s = requeue_period_s
        self._most_notified_images = most_notified_images
        self._seen = SeenJobs()
        self._damaged: set[str] = set()
        """Ids of the damaged jobs that have been logged."""

    async def run(self) -> None:
        """Route until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run(self._route))
            group.create_task(self._requeue())

    async def _route(self, event: Event) -> None:
        self._seen.note(event)
        match event.data:
            case Submitted():
                step = self._queue_new
            case Completed() | Failed() | Cancelled():
                if self._seen.forget_ended(event.job_id):
                    return
                step = self._queue_callback
            case Started():
                step = partial(self._queue_before_end, CallbackEvent.STARTED)
            case ImageStored(index=index):
                if index >= self._most_notified_images:
                    return
                step = partial(self._queue_before_end, CallbackEvent.IMAGE)
            case _:
                return
        # If the step takes long, NATS delivers the event again, and the step is repeated.
        await keep_trying(
            lambda: self._do(step, event.job_id),
            on=_PASSING,
            fields={"action": "route", "job_id": event.job_id},
        )

    async def _do(self, step: Callable[[str], Awaitable[None]], job_id: str) -> None:
        """Do one step for one job. An error about the job ends this job only."""
        if job_id in self._damaged:
            return
        try:
            await step(job_id)
        except _PASSING:
            raise
        except Exception as error:  # noqa: BLE001 - `give_up_after_error` logs it
            if isinstance(error, JobDamaged):
                self._damaged.add(job_id)
            await give_up_after_error(job_id, error, writer=self._writer, action="route")

    async def _queue_new(self, job_id: str) -> None:
        """Queue a job from its first event, if possible without reading the log.

        The job may have ended since. The reader of the entry then finds its later events.
        """
        await asyncio.sleep(0)  # The other events of the same batch are noted first.
        if (event := self._seen.take_first(job_id)) and (job := fold([event])):
            await self._add(job)
        else:
            await self._queue_job(job_id)

    async def _queue_job(self, job_id: str) -> None:
        job = await self._writer.load(job_id)
        if job is not None and job.end is None:
            await self._add(job)

    async def _queue_callback(self, job_id: str) -> None:
        job = await self._writer.load(job_id)
        if job is None or not has_delivery(job.submitted):
            return
        if job.submitted.callback_events:
            await self._callbacks.park(job_id, AT_ONCE)
        else:
            await self._callbacks.add(job_id)

    async def _queue_before_end(self, event: CallbackEvent, job_id: str) -> None:
        """Queue a callback before the end, if the caller requested it."""
        asked = self._seen.asked(job_id)
        if asked is None:
            job = await self._writer.load(job_id)
            if job is None:
                return
            asked = self._seen.note_callback_events(job_id, job.submitted)
        if event in asked:
            await self._callbacks.park(job_id, AT_ONCE)

    async def _add(self, job: Job) -> None:
        submitted = job.submitted
        await self._queue.add(submitted.endpoint, submitted.lane, job.id, deadline=job.due_at)

    async def _requeue(self) -> None:
        """Periodically add an entry for each open job without an entry."""
        while True:
            await asyncio.sleep(self._requeue_period_s * random.uniform(0.8, 1.2))
            try:
                queued = await self._queue.job_ids()
                for job_id in await self._read_model.open_job_ids():
                    if job_id not in queued:
                        await self._do(self._queue_job, job_id)
            except (DatabaseUnavailable, *_PASSING) as error:
                logger.warning(
                    "jobs without an entry could not be re-queued",
                    extra={"action": "requeue", "error": str(error)},
                )
            except Exception:
                logger.exception(
                    "jobs without an entry could not be re-queued", extra={"action": "requeue"}
                )


async def run(settings: Settings) -> None:
    """Run the router and the repair of both queues, until cancelled."""
    connections = connect(settings.log, "router")
    database = await open_prepared_database(settings.stores)
    history = open_history(
        database,
        open_images(settings.stores),
        log=connections.log,
        deliveries=connections.deliveries,
    )
    read_model = ReadModel(database)
    router = Router(
        events=EventConsumer(connections.bus, ROUTER_CONSUMER),
        writer=JobWriter(connections.log),
        queue=connections.queue,
        callbacks=connections.callback_queue,
        read_model=read_model,
    )
    callback_reaper = CallbackReaper(
        queue=connections.callback_queue,
        unsettled=read_model.unsettled,
        deliveries=history.delivery_log,
    )
    await connections.bus.wait_connected()
    async with asyncio.TaskGroup() as group:
        group.create_task(router.run())
        group.create_task(answer_metrics(connections.bus, ProcessMetrics("router").encoded))
        group.create_task(callback_reaper.run())
