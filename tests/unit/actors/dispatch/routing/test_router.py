"""What the router puts on which queue, over the log and the queues in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from actors.dispatch.router import Router
from events.decisions import Cancel, Command, Complete, Erase, FailAttempt, Start, Submit
from events.errors import DatabaseUnavailable, LogFull, LogUnavailable, ReadTimeout
from events.ids import new_id
from events.log import JobWriter, utc_now
from events.memory.log import MemoryConsumer
from events.memory.queues import MemoryCallbackQueue, MemoryJobQueue
from events.store.database import Database
from events.store.read_model import ReadModel
from events.types import Failed
from tests.support.database import database_in
from tests.support.events import submitted
from tests.support.failing_log import FailingLog
from tests.support.polling import eventually

ADDRESS = "http://example.com/done"
LANE = 3
NEVER_S = 3600.0
"""A period in which no test puts anything back."""


class FailingJobQueue(MemoryJobQueue):
    """Raises what a test has put into its lists, one error at each call, before it works."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, list[Exception]] = {}
        """By job: what adding it raises."""
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
        self.writer = JobWriter(self.log)
        self.queue = FailingJobQueue()
        self.callbacks = MemoryCallbackQueue()

    @asynccontextmanager
    async def routing(self, *, requeue_period_s: float = NEVER_S) -> AsyncGenerator[None]:
        router = Router(
            events=MemoryConsumer(self.log),
            writer=self.writer,
            queue=self.queue,
            callbacks=self.callbacks,
            read_model=self.read_model,
            requeue_period_s=requeue_period_s,
        )
        task = asyncio.create_task(router.run())
        try:
            yield
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def job(self, *commands: Command, **changes: Any) -> str:
        """A job that was submitted, and then what `commands` made of it."""
        job_id = new_id()
        job = (await self.writer.submit(job_id, Submit(submitted(**{"lane": LANE} | changes)))).job
        for command in commands:
            assert job is not None
            job = (await self.writer.execute(command, job)).job
        return job_id

    async def routed(self) -> None:
        """Returns when every event that is stored now has been routed."""
        last = await self.job()
        await eventually(lambda: self.queue.calls[last])
        await self.cancel(last)
        await self.queue.remove("default", LANE, last)

    async def cancel(self, job_id: str) -> None:
        job = await self.writer.load(job_id)
        assert job is not None
        await self.writer.execute(Cancel(), job)

    async def waits(self, *job_ids: str) -> bool:
        """Whether these jobs and no others have an entry on the job queue."""
        return await MemoryJobQueue.job_ids(self.queue) == set(job_ids)

    async def project(self) -> None:
        at = await self.read_model.checkpoint()
        async with self.log.reader(after=at) as reader:
            assert await self.read_model.apply(await reader.next(1), expected=at)

    async def lose_callback(self, job_id: str) -> None:
        """Take its only entry off the callback queue."""
        async with self.callbacks.due(most_held=10, hold_s=60) as due:
            [entry] = await due.next(most=10, timeout_s=5)
            assert entry.job_id == job_id
            await entry.ack()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with database_in(tmp_path) as database:
        yield Bench(database)


def start() -> Start:
    return Start("a", max_attempts=3, max_attempts_total=9, now=utc_now())


COMPLETED: list[Command] = [start(), Complete("a", images=0)]
FAILED: list[Command] = [start(), FailAttempt("a", message="No.", final=True)]
CANCELLED: list[Command] = [Cancel()]


async def test_a_submitted_job_is_queued_once_on_its_endpoint_and_lane(bench: Bench) -> None:
    job_id = await bench.job(endpoint="fast", lane=9)
    for _ in range(2):  # a router that starts again is handed the same events
        async with bench.routing():
            await bench.routed()
    assert await bench.waits(job_id)
    assert await bench.queue.depth("fast") == 1
    async with bench.queue.lane("fast", 9) as lane:
        [entry] = await lane.next(most=9, timeout_s=1)
    assert entry.job_id == job_id
    [queued] = await bench.queue.queued("fast", after=0, most=9)
    assert queued.deadline is not None


async def test_a_job_is_queued_when_it_is_submitted(bench: Bench) -> None:
    async with bench.routing():
        job_id = await bench.job()
        await eventually(lambda: bench.waits(job_id))


async def test_a_job_that_runs_keeps_its_entry(bench: Bench) -> None:
    job_id = await bench.job(start())
    async with bench.routing():
        await bench.routed()
    assert await bench.waits(job_id)


@pytest.mark.parametrize(
    "commands",
    [COMPLETED, FAILED, CANCELLED, [Erase()]],
    ids=["completed", "failed", "cancelled", "erased"],
)
async def test_a_job_that_has_ended_is_not_queued(bench: Bench, commands: list[Command]) -> None:
    await bench.job(*commands)
    async with bench.routing():
        await bench.routed()
    assert await bench.waits()


async def test_a_job_of_which_only_the_erasure_is_left_is_not_queued(bench: Bench) -> None:
    job_id = await bench.job(Erase(), callback_url=ADDRESS)
    await bench.log.purge(job_id, keep=1)
    async with bench.routing():
        await bench.routed()
    assert await bench.waits()
    assert await bench.callbacks.job_ids() == set()


@pytest.mark.parametrize(
    "commands", [COMPLETED, FAILED, CANCELLED], ids=["completed", "failed", "cancelled"]
)
async def test_an_end_with_an_address_is_called_back_once(
    bench: Bench, commands: list[Command]
) -> None:
    job_id = await bench.job(*commands, callback_url=ADDRESS)
    await bench.job(*commands)
    for _ in range(2):
        async with bench.routing():
            await bench.routed()
    assert await bench.callbacks.job_ids() == {job_id}
    await bench.lose_callback(job_id)
    assert await bench.callbacks.job_ids() == set()


async def test_a_job_that_has_not_ended_is_not_called_back(bench: Bench) -> None:
    await bench.job(start(), callback_url=ADDRESS)
    async with bench.routing():
        await bench.routed()
    assert await bench.callbacks.job_ids() == set()


async def test_a_queue_that_is_away_or_full_is_waited_for(bench: Bench) -> None:
    errors = (LogUnavailable(), LogFull(), ReadTimeout())
    jobs = {await bench.job(): error for error in errors}
    bench.queue.errors = {job_id: [error] for job_id, error in jobs.items()}
    async with bench.routing():
        await eventually(lambda: bench.waits(*jobs))
    assert bench.queue.calls == dict.fromkeys(jobs, 2)


async def test_a_job_that_cannot_be_routed_stops_no_other(bench: Bench) -> None:
    unreadable = await bench.job(*COMPLETED, callback_url=ADDRESS)
    bench.log.unreadable.add(unreadable)
    hostile, job_id = await bench.job(), await bench.job()
    bench.queue.errors[hostile] = [TypeError("nobody foresaw this")]
    async with bench.routing():
        await eventually(lambda: bench.waits(job_id))
        later = await bench.job()
        await eventually(lambda: bench.waits(job_id, later))
    assert await bench.callbacks.job_ids() == set()
    assert isinstance((await bench.log.read(hostile))[-1].data, Failed)


# What is put back.


async def test_an_open_job_without_an_entry_gets_it_back(bench: Bench) -> None:
    job_id, ended_meanwhile = await bench.job(), await bench.job()
    await bench.project()
    await bench.cancel(ended_meanwhile)  # its row lags behind
    async with bench.routing(requeue_period_s=0.01):
        await bench.routed()
        for _ in range(3):
            await bench.queue.remove("default", LANE, job_id)
            await eventually(lambda: bench.waits(job_id))


async def test_what_cannot_be_put_back_now_is_put_back_later(bench: Bench) -> None:
    job_id = await bench.job()
    await bench.project()
    errors: list[Exception] = [LogUnavailable(), LogFull(), ReadTimeout(), DatabaseUnavailable()]
    async with bench.routing(requeue_period_s=0.01):
        await bench.routed()
        bench.queue.errors_of_listing = errors
        await bench.queue.remove("default", LANE, job_id)
        await eventually(lambda: bench.waits(job_id))
    assert errors == []


async def test_what_cannot_be_read_keeps_nothing_else_from_being_put_back(bench: Bench) -> None:
    unreadable, lost = await bench.job(), await bench.job()
    await bench.project()
    bench.log.unreadable.add(unreadable)
    async with bench.routing(requeue_period_s=0.01):
        await bench.routed()
        for _ in range(3):
            await bench.queue.remove("default", LANE, lost)
            await eventually(lambda: bench.waits(lost))
