"""The projection over the log in memory and a real database, also over what it cannot read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from actors.roles.projection import Projection
from events.errors import LogUnavailable
from events.ids import new_id
from events.log import Appended, EventReader, utc_now
from events.store.database import Database
from events.store.read_model import ReadModel
from events.types import CancelRequested, Event, EventData, Started, Unknown
from tests.support.events import image, submitted
from tests.support.failing_log import FailingLog
from tests.support.polling import eventually, running

BEGUN = (submitted(), Started(attempt=1, actor="a"))
UNKNOWN = Unknown(original_type="darkroom.job.paused.v1")


class InParts:
    """A reader that has one event at first, and the others a moment later."""

    def __init__(self, events: list[Event]) -> None:
        self._parts = [events[:1], events[1:]]

    async def next(self, timeout_s: float) -> list[Event]:
        if self._parts:
            return self._parts.pop(0)
        await asyncio.sleep(timeout_s)
        return []


class Log(FailingLog):
    """Its readers know `UNKNOWN` once a test says so."""

    is_of_later_version = False
    comes_in_parts = False

    async def read(self, job_id: str) -> list[Event]:
        events = await super().read(job_id)
        if not self.is_of_later_version:
            return events
        known = CancelRequested()
        return [replace(e, data=known) if e.data == UNKNOWN else e for e in events]

    @asynccontextmanager
    async def reader(self, *, after: int) -> AsyncGenerator[EventReader]:  # type: ignore[override]
        # Any reader will do.
        async with super().reader(after=after) as reader:
            yield InParts(await reader.next(1)) if self.comes_in_parts else reader

    async def job(self, *data: EventData) -> str:
        job_id, position = new_id(), 0
        for version, each in enumerate(data, start=1):
            event = Event(id=new_id(), job_id=job_id, version=version, time=utc_now(), data=each)
            outcome = await self.append(event, expected=position)
            assert isinstance(outcome, Appended)
            position = outcome.event.position
        return job_id


class WatchedReadModel(ReadModel):
    """Notes how many events each transaction has, and fails as often as a test says."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.batches: list[int] = []
        self.failures = 0

    async def apply(self, events: Sequence[Event], *, expected: int) -> bool:
        self._fail()
        self.batches.append(len(events))
        return await super().apply(events, expected=expected)

    async def catch_up(self, job_id: str, history: Sequence[Event]) -> bool:
        self._fail()
        return await super().catch_up(job_id, history)

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("can't start new thread")


class Bench:
    def __init__(self, model: WatchedReadModel) -> None:
        self.model = model
        self.log = Log()

    def projecting(self, *, period_s: float = 0.01) -> AbstractAsyncContextManager[None]:
        role = Projection(log=self.log, read_model=self.model, catch_up_period_s=period_s)
        return running(role.run())

    def has_read(self, times: int) -> bool:
        assert self.log.reads.total() <= times
        return self.log.reads.total() == times

    async def is_at(self, job_id: str, version: int) -> bool:
        job = await self.model.job(job_id)
        return job is not None and job.version == version

    async def is_past(self, position: int) -> bool:
        return await self.model.offset() >= position


@pytest.fixture
def bench(database: Database) -> Bench:
    return Bench(WatchedReadModel(database))


async def test_an_event_that_no_row_can_hold_stops_its_job_alone(bench: Bench) -> None:
    before, hostile, after = [
        await bench.log.job(*BEGUN, image(0, size_bytes=size)) for size in (1, 2**80, 1)
    ]
    async with bench.projecting(period_s=60):
        await eventually(lambda: bench.is_past(9))
    rows = {job_id: await bench.model.job(job_id) for job_id in (before, hostile, after)}
    images = {job_id: row and len(row.images) for job_id, row in rows.items()}
    assert images == {before: 1, hostile: 0, after: 1}
    [stop] = await bench.model.blocked.page(limit=9)
    assert stop.job_id == hostile


async def test_events_that_follow_one_another_share_a_transaction(bench: Bench) -> None:
    bench.log.comes_in_parts = True
    for _ in range(3):
        await bench.log.job(submitted())
    async with bench.projecting(period_s=60):
        await eventually(lambda: bench.is_past(3))
    assert bench.model.batches == [3]


async def test_an_event_of_a_later_version_is_not_lost(bench: Bench) -> None:
    job_id = await bench.log.job(submitted(), UNKNOWN, Started(attempt=1, actor="a"))
    other = await bench.log.job(*BEGUN)
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


async def test_a_failed_machine_stops_no_job(bench: Bench) -> None:
    job_id = await bench.log.job(submitted())
    bench.model.failures = 1
    async with bench.projecting(period_s=60):
        await eventually(lambda: bench.is_past(1))
    assert await bench.is_at(job_id, 1)
    assert await bench.model.blocked.count() == 0


async def test_a_failed_machine_makes_no_stopped_job_hopeless(bench: Bench) -> None:
    job_id = await bench.log.job(submitted(), UNKNOWN)
    async with bench.projecting():
        await eventually(lambda: bench.is_at(job_id, 1))
    bench.log.is_of_later_version, bench.model.failures = True, 1
    async with bench.projecting():
        await eventually(lambda: bench.is_at(job_id, 2), within_s=5)
