"""The projection, over the log in memory and a real database."""

from __future__ import annotations

import asyncio
from pathlib import Path

from actors.upkeep.results import Results
from events.decisions import Start, StoreImage, Submit
from events.ids import new_id
from events.log import JobWriter, utc_now
from events.memory.log import MemoryLog
from events.store.read_model import ReadModel
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
