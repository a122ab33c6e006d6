"""Router: reads the log in order and puts what must happen next on its queue.

`Submitted` goes to the endpoint's queue, an end with a `callback_url` to the callback queue, each
only where its subject holds no entry yet, so an entry that waits or runs is never doubled. Both
queues are projections: everything here may be repeated, by two routers at once too.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from actors.callbacks.lost import LostCallbacks
from events.bus.connection import Bus
from events.bus.puller import Message, Puller
from events.bus.queues import CallbackQueue, JobQueue
from events.bus.streams import router_consumer
from events.errors import DatabaseUnavailable, LogFull, LogUnavailable, ReadTimeout
from events.job import Job
from events.log import JobWriter
from events.store.read_model import ReadModel
from events.types import Cancelled, Completed, Event, Failed, MalformedEvent, Submitted, decode

logger = logging.getLogger(__name__)

_BATCH = 100
_PULL_TIMEOUT_S = 10.0


class Router:
    def __init__(
        self,
        *,
        bus: Bus,
        writer: JobWriter,
        queue: JobQueue,
        callbacks: CallbackQueue,
        read_model: ReadModel,
        lost_callbacks: LostCallbacks,
        requeue_period_s: float,
    ) -> None:
        self._bus = bus
        self._writer = writer
        self._queue = queue
        self._callbacks = callbacks
        self._read_model = read_model
        self._lost_callbacks = lost_callbacks
        self._requeue_period_s = requeue_period_s

    async def run(self) -> None:
        """Route until cancelled."""
        await self._bus.wait_connected()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._route())
            group.create_task(self._requeue())

    async def _route(self) -> None:
        spec = router_consumer()
        while True:
            try:
                await self._bus.ensure_consumer(spec)
                async with self._bus.puller(spec.stream, spec.name) as puller:
                    await self._route_from(puller)
            except LogUnavailable:
                await asyncio.sleep(random.uniform(0.2, 0.5))

    async def _route_from(self, puller: Puller) -> None:
        while True:
            messages = await puller.next(batch=_BATCH, timeout_s=_PULL_TIMEOUT_S)
            await asyncio.gather(*(self._handle(message) for message in messages))

    async def _handle(self, message: Message) -> None:
        try:
            event = decode(message.data, position=message.sequence)
        except MalformedEvent:
            logger.exception("not an event", extra={"action": "route", "at": message.sequence})
        else:
            await self._follow(event)
        await self._bus.ack(message.ack_subject)

    async def _follow(self, event: Event) -> None:
        match event.data:
            case Submitted():
                step = self._queue_job
            case Completed() | Failed() | Cancelled():
                step = self._queue_callback
            case _:
                return
        try:
            await _persist(lambda: step(event.job_id))
        except MalformedEvent:  # one job that cannot be read must not stop the others
            fields = {"action": "route", "job_id": event.job_id}
            logger.exception("unreadable job", extra=fields)

    async def _queue_job(self, job_id: str) -> None:
        job = await self._writer.load(job_id)
        if job is not None and job.end is None:
            await self._add(job)

    async def _queue_callback(self, job_id: str) -> None:
        job = await self._writer.load(job_id)
        if job is not None and job.submitted.callback_url is not None:
            await self._callbacks.add(job_id)

    async def _add(self, job: Job) -> None:
        await self._queue.add(job.submitted.endpoint, job.submitted.lane, job.id)

    async def _requeue(self) -> None:
        """Puts back what lost its entry: both queues can always be built again."""
        while True:
            await asyncio.sleep(self._requeue_period_s * random.uniform(0.8, 1.2))
            try:
                queued = await self._queue.job_ids()
                for job_id in await self._read_model.open_job_ids():
                    if job_id not in queued:
                        await self._queue_job(job_id)
                if count := await self._lost_callbacks.put_back():
                    fields = {"action": "requeue", "count": count}
                    logger.warning("callbacks had lost their entries", extra=fields)
            except (DatabaseUnavailable, LogUnavailable, LogFull, ReadTimeout) as error:
                logger.warning(
                    "could not re-queue", extra={"action": "requeue", "error": str(error)}
                )


async def _persist(attempt: Callable[[], Awaitable[None]]) -> None:
    """Again until it works: the entry may come back meanwhile, and repeating it is harmless."""
    while True:
        try:
            return await attempt()
        except (LogUnavailable, LogFull, ReadTimeout) as error:
            logger.warning("could not route yet", extra={"action": "route", "error": str(error)})
            await asyncio.sleep(random.uniform(0.2, 0.5))
