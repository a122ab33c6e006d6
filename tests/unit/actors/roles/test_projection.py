"""The projection over the log in memory and a real database, also over what it cannot read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from actors.roles.projection import Projection
from events.decisions import Start, StoreImage, Submit
from events.errors import LogUnavailable
from events.ids import new_id
from events.log import Appended, EventReader, JobWriter, utc_now
from events.store.read_model import ReadModel
from events.types import CancelRequested, Event, EventData, Started, Unknown
from tests.support.database import database_in
from tests.support.events import image, submitted
from tests.support.failing_log import FailingLog
from tests.support.memory.log import MemoryLog
from tests.support.polling import eventually


@asynccontextmanager
async def projecting(
    log: MemoryLog, model: ReadModel, *, catch_up_period_s: float = 60
) -> AsyncGenerator[None]:
    role = Projection(log=log, read_model=model, catch_up_period_s=catch_up_period_s)
    task = asyncio.create_task(role.run())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_an_event_that_no_row_can_hold_stops_its_job_alone(tmp_path: Path) -> None:
    log = MemoryLog()
    writer = JobWriter(log)

    async def job(*, size_bytes: int) -> str:
        job_id = new_id()
        outcome = await writer.submit(job_id, Submit(submitted()))
        start = Start("a", max_attempts=3, max_attempts_total=5, now=utc_now())
        store = StoreImage("a", image(0, size_bytes=size_bytes))
        for command in (start, store):
            assert outcome.job is not None
            outcome = await writer.execute(command, outcome.job)
        return job_id

    before, hostile, after = [await job(size_bytes=size) for size in (1, 2**80, 1)]
    async with database_in(tmp_path) as database:
        model = ReadModel(database)
        async with projecting(log, model):
            await eventually(lambda: is_past(model, 9))
        images = {}
        for job_id in (before, hostile, after):
            row = await model.job(job_id)
            assert row is not None
            images[job_id] = len(row.images)
        assert images == {before: 1, hostile: 0, after: 1}
        [stop] = await model.blocked.page(limit=9)
        assert stop.job_id == hostile


async def is_past(model: ReadModel, position: int) -> bool:
    return await model.offset() >= position


class InParts:
    """A reader that has one event at first, and the others a moment later."""

    def __init__(self, events: list[Event]) -> None:
        self._parts = [events[:1], events[1:]]

    async def next(self, timeout_s: float) -> list[Event]:
        if self._parts:
            return self._parts.pop(0)
        await asyncio.sleep(timeout_s)
        return []


class LogInParts(MemoryLog):
    @asynccontextmanager
    async def reader(self, *, after: int) -> AsyncGenerator[EventReader]:  # type: ignore[override]
        # Any reader will do.
        async with super().reader(after=after) as reader:
            yield InParts(await reader.next(1))


class CountingReadModel(ReadModel):
    """Notes how many events each transaction has."""

    batches: list[int]

    async def apply(self, events: Sequence[Event], *, expected: int) -> bool:
        self.batches.append(len(events))
        return await super().apply(events, expected=expected)


async def test_events_that_follow_one_another_share_a_transaction(tmp_path: Path) -> None:
    log = LogInParts()
    for _ in range(3):
        await JobWriter(log).submit(new_id(), Submit(submitted()))
    async with database_in(tmp_path) as database:
        model = CountingReadModel(database)
        model.batches = []
        async with projecting(log, model):
            await eventually(lambda: is_past(model, 3))
    assert model.batches == [3]


# What it cannot read, and once a version runs that can.

UNKNOWN = Unknown(original_type="darkroom.job.paused.v1")


class Log(FailingLog):
    """Its readers know `UNKNOWN` once a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_of_later_version = False

    async def read(self, job_id: str) -> list[Event]:
        events = await super().read(job_id)
        if not self.is_of_later_version:
            return events
        known = CancelRequested()
        return [replace(e, data=known) if e.data == UNKNOWN else e for e in events]

    async def job(self, *data: EventData) -> str:
        job_id, position = new_id(), 0
        for version, each in enumerate(data, start=1):
            event = Event(id=new_id(), job_id=job_id, version=version, time=utc_now(), data=each)
            outcome = await self.append(event, expected=position)
            assert isinstance(outcome, Appended)
            position = outcome.event.position
        return job_id


class Bench:
    def __init__(self, model: ReadModel) -> None:
        self.model = model
        self.log = Log()

    def projecting(self) -> AbstractAsyncContextManager[None]:
        return projecting(self.log, self.model, catch_up_period_s=0.01)

    def has_read(self, times: int) -> bool:
        assert self.log.reads.total() <= times
        return self.log.reads.total() == times

    async def is_at(self, job_id: str, version: int) -> bool:
        job = await self.model.job(job_id)
        return job is not None and job.version == version


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with database_in(tmp_path) as database:
        yield Bench(ReadModel(database))


async def test_an_event_of_a_later_version_is_not_lost(bench: Bench) -> None:
    job_id = await bench.log.job(submitted(), UNKNOWN, Started(attempt=1, actor="a"))
    other = await bench.log.job(submitted(), Started(attempt=1, actor="a"))
    async with bench.projecting():
        await eventually(lambda: bench.is_at(other, 2))
    assert await bench.is_at(job_id, 1)
    assert await bench.model.offset() == 5
    bench.log.is_of_later_version = True
    async with bench.projecting():
        await eventually(lambda: bench.is_at(job_id, 3))
    assert await bench.model.blocked.count() == 0


async def test_what_cannot_be_read_is_read_once_by_one_process(bench: Bench) -> None:
    async with bench.projecting():
        for jobs in range(1, 5):
            await bench.log.job(submitted(), UNKNOWN)
            await eventually(partial(bench.has_read, jobs))


async def test_a_log_that_is_away_is_asked_again(bench: Bench) -> None:
    job_id = await bench.log.job(submitted(), UNKNOWN)
    async with bench.projecting():
        await eventually(lambda: bench.is_at(job_id, 1))
    bench.log.is_of_later_version, bench.log.read_error = True, LogUnavailable()
    async with bench.projecting():
        await eventually(lambda: bench.log.reads.total() > 2)
        bench.log.recover()
        await eventually(lambda: bench.is_at(job_id, 2))


class ModelOnFullMachine(ReadModel):
    """The machine has no free thread for the first so many calls."""

    failures = 1

    async def apply(self, events: Sequence[Event], *, expected: int) -> bool:
        self._fail()
        return await super().apply(events, expected=expected)

    async def catch_up(self, job_id: str, history: Sequence[Event]) -> bool:
        self._fail()
        return await super().catch_up(job_id, history)

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("can't start new thread")


async def test_a_failed_machine_stops_no_job(tmp_path: Path) -> None:
    async with database_in(tmp_path) as database:
        bench = Bench(ModelOnFullMachine(database))
        job_id = await bench.log.job(submitted())
        async with projecting(bench.log, bench.model):
            await eventually(lambda: is_past(bench.model, 1))
        assert await bench.is_at(job_id, 1)
        assert await bench.model.blocked.count() == 0


async def test_a_failed_machine_makes_no_stopped_job_hopeless(tmp_path: Path) -> None:
    async with database_in(tmp_path) as database:
        bench = Bench(ReadModel(database))
        job_id = await bench.log.job(submitted(), UNKNOWN)
        async with bench.projecting():
            await eventually(lambda: bench.is_at(job_id, 1))
        bench.log.is_of_later_version, bench.model = True, ModelOnFullMachine(database)
        async with bench.projecting():
            await eventually(lambda: bench.is_at(job_id, 2), within_s=5)
