"""Router: reads the log in order and puts what must happen next on its queue.

`Submitted` goes to the endpoint's queue, the end of a job with a delivery to the callback queue,
each only if its subject holds no entry yet, so an entry that waits or runs is never doubled. Where
the caller is called back for more than the end, each event of which it is told is parked there
instead: an entry that is being delivered now may have been looked at before. Both queues are
projections: everything here may be repeated, by two routers at once too.

Most jobs are routed by the events that come by, in one round trip for all that came together; the
log is read only where those do not say enough.

Several routers divide the streams of the log (`actors/upkeep/shares.py`), so that one sees all
events of a job. Where two follow one stream for a while, each event comes to one of them, so either
sees some events of a job only, and may see a later one first. Then the log is read more often, and
a job that has ended may get an entry, which whoever takes it takes off the queue.

An event that this version cannot read, and a job that has one, are passed over: the projection has
kept the job's place (`results.py`), and once a version that can read it has projected it, what is
missing on the queues is put back as anything that was lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from actors.job_error import end_job
from actors.upkeep.shares import Shares
from events.delivery import is_wanted
from events.errors import (
    DatabaseUnavailable,
    JobDamaged,
    LogFull,
    LogUnavailable,
    OutcomeUnknown,
    ReadTimeout,
)
from events.job import Job, fold
from events.log import JobWriter, WholeConsumer, utc_now
from events.queue import AT_ONCE, CallbackQueue, JobQueue
from events.retry import keep_trying
from events.store.read_model import ReadModel
from events.types import Cancelled, Completed, Event, Failed, ImageStored, Started, Submitted
from events.wire.callback_keys import callback_key
from events.wire.callbacks import CallbackEvent, told_of

logger = logging.getLogger(__name__)

_PASSING = (LogUnavailable, LogFull, OutcomeUnknown, ReadTimeout)
"""Errors that say nothing about a job: the same step is tried again."""
_RECENT = timedelta(seconds=10)
"""A first event that is older may be replayed: nobody knows what has come after it."""
_MOST_TOLD = 20_000
"""Of so many open jobs it is remembered what they are called back for."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a job is called back for, and the key of its delivery."""

    told: frozenset[str]
    key: str


class SeenJobs:
    """What the events that came by say of their jobs, so that the log is not asked again.

    It remembers little, and only what follows from an event for good or for a moment.
    """

    def __init__(self, *, now: Callable[[], datetime] = utc_now) -> None:
        self._now = now
        self._first: dict[str, Event] = {}
        self._asked: dict[str, _Asked] = {}

    def note(self, event: Event) -> None:
        """Call it for each event as it comes, in log order."""
        self._first.pop(event.job_id, None)
        if not isinstance(event.data, Submitted):
            return
        if self._now() - event.time < _RECENT:
            self._first[event.job_id] = event
        self.note_asked(event.job_id, event.data)

    def note_asked(self, job_id: str, submitted: Submitted) -> _Asked:
        self._asked.pop(job_id, None)
        asked = _Asked(told_of(submitted), callback_key(job_id, submitted))
        self._asked[job_id] = asked
        if len(self._asked) > _MOST_TOLD:
            del self._asked[next(iter(self._asked))]
        return asked

    def take_first(self, job_id: str) -> Event | None:
        """The first event of a job, once, if it is recent and none has come after it."""
        return self._first.pop(job_id, None)

    def take_uncalled(self, job_id: str) -> bool:
        """Whether it is known that a job, which has ended, wants no callback."""
        asked = self._asked.pop(job_id, None)
        return asked is not None and not asked.told

    def asked(self, job_id: str) -> _Asked | None:
        """What the caller of an open job is called back for, as far as it is known."""
        return self._asked.get(job_id)


class Router:
    def __init__(
        self,
        *,
        events: WholeConsumer,
        writer: JobWriter,
        queue: JobQueue,
        callbacks: CallbackQueue,
        read_model: ReadModel,
        requeue_period_s: float | None,
        most_images_told: int,
        shares: Shares | None = None,
    ) -> None:
        """Of images with an index of `most_images_told` or more nobody is told.

        `requeue_period_s`: how often lost entries are put back; None where another process does it.
        `shares`: of the streams of `events`; None where no other process follows any.
        """
        self._events = events
        self._writer = writer
        self._queue = queue
        self._callbacks = callbacks
        self._read_model = read_model
        self._requeue_period_s = requeue_period_s
        self._most_images_told = most_images_told
        self._shares = shares
        self._seen = SeenJobs()
        self._damaged: set[str] = set()
        """Jobs with what is no event: each is told of once."""

    async def run(self) -> None:
        """Route until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._route())
            if self._requeue_period_s is not None:
                group.create_task(self._requeue(self._requeue_period_s))

    async def _route(self) -> None:
        if self._shares is None:
            await self._events.run(self._follow)
        else:
            parts = self._events.parts
            await self._shares.run(
                [*map(str, range(len(parts)))], lambda part: parts[int(part)].run(self._follow)
            )

    async def _follow(self, event: Event) -> None:
        self._seen.note(event)
        match event.data:
            case Submitted():
                step = self._queue_new
            case Completed() | Failed() | Cancelled():
                if self._seen.take_uncalled(event.job_id):
                    return
                step = self._queue_callback
            case Started():
                step = partial(self._queue_before_end, CallbackEvent.STARTED)
            case ImageStored(index=index):
                if index >= self._most_images_told:
                    return
                step = partial(self._queue_before_end, CallbackEvent.IMAGE)
            case _:
                return
        # The entry may come back meanwhile: to repeat the step is harmless.
        await keep_trying(
            lambda: self._do(step, event.job_id),
            on=_PASSING,
            fields={"action": "route", "job_id": event.job_id},
        )

    async def _do(self, step: Callable[[str], Awaitable[None]], job_id: str) -> None:
        """One step for one job. An error about that job ends it; it must not stop the others."""
        if job_id in self._damaged:
            return
        try:
            await step(job_id)
        except _PASSING:
            raise
        except Exception as error:  # noqa: BLE001 - `end_job` logs it
            if isinstance(error, JobDamaged):
                self._damaged.add(job_id)
            await end_job(job_id, error, writer=self._writer, action="route")

    async def _queue_new(self, job_id: str) -> None:
        """A job whose first event has just come is not read.

        Nothing stands behind it yet, or whoever takes its entry finds it.
        """
        await asyncio.sleep(0)  # what came together with the event is seen, too
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
        if job is None or not is_wanted(job.submitted):
            return
        key = callback_key(job_id, job.submitted)
        if job.submitted.callback_events:
            await self._callbacks.park(key, AT_ONCE)
        else:
            await self._callbacks.add(key)

    async def _queue_before_end(self, event: CallbackEvent, job_id: str) -> None:
        """Most jobs are not read: what was submitted has just come by."""
        asked = self._seen.asked(job_id)
        if asked is None:
            job = await self._writer.load(job_id)
            if job is None:
                return
            asked = self._seen.note_asked(job_id, job.submitted)
        if event in asked.told:
            await self._callbacks.park(asked.key, AT_ONCE)

    async def _add(self, job: Job) -> None:
        submitted = job.submitted
        await self._queue.add(submitted.endpoint, submitted.lane, job.id, deadline=job.due_at)

    async def _requeue(self, period_s: float) -> None:
        """Puts back jobs that lost their entry: the queue can always be built again."""
        while True:
            await asyncio.sleep(period_s * random.uniform(0.8, 1.2))
            try:
                queued = await self._queue.job_ids()
                for job_id in await self._read_model.open_job_ids():
                    if job_id not in queued:
                        await self._do(self._queue_job, job_id)
            except (DatabaseUnavailable, *_PASSING) as error:
                logger.warning(
                    "could not re-queue", extra={"action": "requeue", "error": str(error)}
                )
            except Exception:
                logger.exception("could not re-queue", extra={"action": "requeue"})
