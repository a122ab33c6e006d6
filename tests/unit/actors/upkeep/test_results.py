"""The projection, over the log in memory and a real database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from actors.upkeep.results import Results
from events.decisions import Start, StoreImage, Submit
from events.ids import new_id
from events.log import EventReader, JobWriter, utc_now
from events.memory.log import MemoryLog
from events.store.read_model import ReadModel
from events.types import Event
from tests.support.database import database_in
from tests.support.events import image, submitted
from tests.support.polling import eventually


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
        role = asyncio.create_task(Results(log=log, read_model=model, catch_up_period_s=60).run())
        try:
            await eventually(lambda: is_past(model, 9))
        finally:
            role.cancel()
            await asyncio.wait({role})
        images = {}
        for job_id in (before, hostile, after):
            row = await model.job(job_id)
            assert row is not None
            images[job_id] = len(row.images)
        assert images == {before: 1, hostile: 0, after: 1}
        [stop] = await model.blocked.stops(limit=9)
        assert stop.job_id == hostile


async def is_past(model: ReadModel, position: int) -> bool:
    return await model.checkpoint() >= position


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
        role = asyncio.create_task(Results(log=log, read_model=model, catch_up_period_s=60).run())
        try:
            await eventually(lambda: is_past(model, 3))
        finally:
            role.cancel()
            await asyncio.wait({role})
    assert model.batches == [3]
