"""The projection over events that it cannot read, and once a version runs that can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from actors.upkeep.results import Results
from events.errors import LogUnavailable
from events.ids import new_id
from events.log import Appended, utc_now
from events.store.read_model import ReadModel
from events.types import CancelRequested, Event, EventData, Started, Unknown
from tests.support.database import database_in
from tests.support.events import submitted
from tests.support.failing_log import FailingLog
from tests.support.polling import eventually

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

    @asynccontextmanager
    async def projecting(self) -> AsyncGenerator[None]:
        role = Results(log=self.log, read_model=self.model, catch_up_period_s=0.01)
        task = asyncio.create_task(role.run())
        try:
            yield
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.wait({task})

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
    assert await bench.model.checkpoint() == 5
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
