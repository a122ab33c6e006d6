"""A job with an event of a later version is left to that version: nothing is said for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from actors.dispatch.router import Router
from events.decisions import Submit
from events.ids import new_id
from events.log import JobWriter, utc_now
from events.memory.log import MemoryConsumer
from events.memory.queues import MemoryCallbackQueue, MemoryJobQueue
from events.store.read_model import ReadModel
from tests.support.database import database_in
from tests.support.dispatch import Bench
from tests.support.events import submitted
from tests.support.failing_log import FailingLog
from tests.support.polling import eventually

LANE = 3


@pytest.fixture
def log() -> FailingLog:
    return FailingLog()


@pytest.fixture
def bench(log: FailingLog) -> Bench:
    bench = Bench()
    bench.log, bench.writer = log, JobWriter(log)
    return bench


async def test_its_entry_stays_until_it_can_be_read(bench: Bench, log: FailingLog) -> None:
    later = await bench.submit()
    log.of_later_version.add(later)
    async with bench.dispatching():
        for comes in (1, 2):
            other = await bench.submit()
            await bench.running(other)
            await bench.finish(other)
            await eventually(partial(has_come, log, later, comes))
        assert await bench.is_queued(later)
        assert len(await log.read(later)) == 2  # what is stored, and what cannot be read
        log.of_later_version.clear()
        await bench.running(later)
        await bench.finish(later)


def has_come(log: FailingLog, job_id: str, times: int) -> bool:
    return log.reads[job_id] >= times


async def test_its_entry_stays_where_it_cannot_be_read_any_more(
    bench: Bench, log: FailingLog
) -> None:
    later = await bench.submit()
    async with bench.dispatching():
        actor = await bench.running(later)
        log.of_later_version.add(later)
        actor.die()
        other = await bench.submit()
        await bench.running(other)
        await bench.finish(other)
        assert await bench.is_queued(later)


@asynccontextmanager
async def routing(log: FailingLog, queue: MemoryJobQueue, model: ReadModel) -> AsyncGenerator[None]:
    router = Router(
        events=MemoryConsumer(log),
        writer=JobWriter(log),
        queue=queue,
        callbacks=MemoryCallbackQueue(),
        read_model=model,
        requeue_period_s=0.01,
        most_images_told=8,
    )
    task = asyncio.create_task(router.run())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_it_is_queued_once_it_can_be_read(log: FailingLog, tmp_path: Path) -> None:
    some_time_ago = utc_now() - timedelta(minutes=1)
    queue, writer = MemoryJobQueue(), JobWriter(log, now=lambda: some_time_ago)
    later, other = new_id(), new_id()
    for job_id in (later, other):
        await writer.submit(job_id, Submit(submitted(lane=LANE)))
    log.of_later_version.add(later)
    async with database_in(tmp_path) as database:
        model = ReadModel(database)
        async with routing(log, queue, model):
            await eventually(lambda: is_queued(queue, other))
            assert await queue.job_ids() == {other}
            async with log.reader(after=0) as reader:
                await model.apply(await reader.next(1), expected=0)
            log.of_later_version.clear()
            await eventually(lambda: is_queued(queue, later, other))
    assert len(await log.read(later)) == 1


async def is_queued(queue: MemoryJobQueue, *job_ids: str) -> bool:
    return await queue.job_ids() == set(job_ids)
