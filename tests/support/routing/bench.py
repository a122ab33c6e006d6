"""A router over the log and the queues in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from actors.roles.router import Router
from events.bus.jetstream_log import EventConsumer
from events.decisions import Cancel, Command, Start, Submit
from events.ids import new_id
from events.log import JobWriter, utc_now
from events.store.database import Database
from events.store.read_model import ReadModel
from tests.support.database import projected
from tests.support.events import job_in, submitted
from tests.support.failing_log import FailingLog
from tests.support.memory.log import MemoryConsumer
from tests.support.memory.queues import MemoryCallbackQueue, MemoryJobQueue
from tests.support.polling import eventually, running

LANE = 3
NEVER_S = 3600.0
"""A period so long that the reaper never runs in a test."""
A_WHILE = timedelta(minutes=1)
"""The age of the jobs. The router does not read the log for jobs that were just submitted."""


def start() -> Start:
    return Start("a", max_attempts=3, max_attempts_total=9, now=utc_now())


class FailingJobQueue(MemoryJobQueue):
    """A job queue that raises the errors in its lists, one per call, before it works."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, list[Exception]] = {}
        """The errors that adding a job raises, by job."""
        self.errors_of_listing: list[Exception] = []
        self.calls: Counter[str] = Counter()

    async def add(
        self, endpoint: str, lane: int, job_id: str, *, deadline: datetime | None = None
    ) -> None:
        self.calls[job_id] += 1
        if errors := self.errors.get(job_id):
            raise errors.pop(0)
        await super().add(endpoint, lane, job_id, deadline=deadline)

    async def job_ids(self) -> set[str]:
        if self.errors_of_listing:
            raise self.errors_of_listing.pop(0)
        return await super().job_ids()


class Bench:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.read_model = ReadModel(database)
        self.log = FailingLog()
        self.writer = JobWriter(self.log, now=lambda: utc_now() - A_WHILE)
        self.queue = FailingJobQueue()
        self.callbacks = MemoryCallbackQueue()

    @asynccontextmanager
    async def routing(
        self, events: EventConsumer | None = None, *, requeue_period_s: float = NEVER_S
    ) -> AsyncGenerator[None]:
        router = Router(
            events=events or MemoryConsumer(self.log),
            writer=self.writer,
            queue=self.queue,
            callbacks=self.callbacks,
            read_model=self.read_model,
            requeue_period_s=requeue_period_s,
            most_notified_images=8,
        )
        async with running(router.run()):
            yield

    async def job(self, *commands: Command, **changes: Any) -> str:
        """Submit a job and apply `commands` to it; returns its id."""
        job_id = new_id()
        job = (await self.writer.submit(job_id, Submit(submitted(**{"lane": LANE} | changes)))).job
        for command in commands:
            assert job is not None
            job = (await self.writer.execute(command, job)).job
        return job_id

    async def routed(self) -> None:
        """Wait until every stored event has been routed."""
        last = await self.job()
        await eventually(lambda: self.queue.calls[last])
        await self.cancel(last)
        await self.queue.remove("default", LANE, last)

    async def cancel(self, job_id: str) -> None:
        await self.writer.execute(Cancel(), await job_in(self.log, job_id))

    async def waits(self, *job_ids: str) -> bool:
        """Whether exactly these jobs have an entry on the job queue."""
        return await MemoryJobQueue.job_ids(self.queue) == set(job_ids)

    async def callbacks_of(self, *job_ids: str) -> bool:
        """Whether exactly these jobs have an entry on the callback queue."""
        return await self.callbacks.job_ids() == set(job_ids)

    async def project(self) -> None:
        await projected(self.log, self.read_model)

    async def lose_callback(self, job_id: str) -> None:
        """Remove the only entry of a job from the callback queue."""
        async with self.callbacks.due(max_unacknowledged=10, ack_wait_s=60) as due:
            [entry] = await due.next(most=10, timeout_s=5)
            assert entry.job_id == job_id
            await entry.ack()
