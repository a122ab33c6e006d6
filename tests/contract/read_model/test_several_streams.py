"""The read model of a log that is several streams, each of which moves a checkpoint of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from actors.upkeep.results import Results
from events.decisions import Start, Submit
from events.ids import new_id
from events.log import JobWriter, utc_now
from events.store.database import Database
from events.store.maintenance.rebuild import Rebuild
from events.store.read_model import ReadModel
from events.streams.log_streams import LogStreams, Place
from events.types import Event
from tests.support.events import submitted
from tests.support.live.memory_streams import memory_streams
from tests.support.polling import eventually

FOUR = LogStreams(4)


def model_of(database: Database) -> ReadModel:
    return ReadModel(database, streams=FOUR)


async def place_of(model: ReadModel) -> Place:
    place = await model.checkpoint()
    assert isinstance(place, Place)
    return place


def one(index: int, sequence: int) -> Event:
    """The first event of a job, as this message of this stream."""
    while FOUR.of_job(job_id := new_id()) != index:
        pass
    position = FOUR.all()[index].position(sequence)
    return Event(
        id=new_id(), job_id=job_id, version=1, time=utc_now(), data=submitted(), position=position
    )


async def test_each_stream_moves_its_own_checkpoint(database: Database) -> None:
    model = model_of(database)
    await model.begin()
    assert await model.checkpoint() == Place((0, 1, 2, 3))
    first, second = one(2, 1), one(2, 2)
    assert await model.apply([first, second], expected=2)
    assert await model.checkpoint() == Place((0, 1, 10, 3))
    other = one(0, 1)
    assert not await model.apply([one(2, 3)], expected=first.position)
    assert await model.apply([other], expected=0)
    assert await model.checkpoint() == Place((4, 1, 10, 3))
    assert {job.id for job in await model.jobs("alice")} == {
        each.job_id for each in (first, second, other)
    }


@pytest.mark.parametrize("last", [1, 4, 6])
async def test_the_streams_go_on_where_one_stream_was(database: Database, last: int) -> None:
    before = Event(
        id=new_id(), job_id=new_id(), version=1, time=utc_now(), data=submitted(), position=last
    )
    await ReadModel(database).apply([before], expected=0)
    model = model_of(database)
    begin = await place_of(model)
    assert [part % 4 for part in begin.parts] == [0, 1, 2, 3]
    assert min(begin.parts) >= last
    assert max(begin.parts) < last + 8
    await model.begin()
    await model.begin()
    assert await model.checkpoint() == begin
    new = one(1, begin.parts[1] // 4 + 1)
    assert await model.apply([new], expected=begin.parts[1])
    assert (await place_of(model)).parts[1] == new.position


async def test_what_a_caller_uses_is_told_with_all_checkpoints(database: Database) -> None:
    model = model_of(database)
    assert await model.usage.open_jobs_by_caller() == (Place((0, 1, 2, 3)), {})
    await model.begin()
    events = [one(index, 1) for index in range(4)]
    for index, event in enumerate(events[:3]):
        await model.apply([event], expected=index)
    place = Place((4, 5, 6, 3))
    assert await model.usage.open_jobs_by_caller() == (place, {("alice", "k1"): 3})
    assert (await model.usage.kept_bytes("alice"))[0] == place
    assert (await model.usage.kept_bytes("bob"))[0] == place


async def test_an_event_is_left_out_in_its_stream_alone(database: Database) -> None:
    model = model_of(database)
    await model.begin()
    assert await model.stop_at(one(3, 1), "not an event", expected=3)
    assert not await model.stop_at(one(3, 2), "not an event", expected=3)
    assert await model.checkpoint() == Place((0, 1, 2, 7))


async def test_all_streams_are_projected_beside_each_other(
    database: Database, other_database: Database
) -> None:
    """By two instances, as during a deploy."""
    log, contents = memory_streams(4)
    writer = JobWriter(log)
    roles = [
        asyncio.create_task(Results(log=log, read_model=model_of(each), catch_up_period_s=60).run())
        for each in (database, other_database)
    ]
    ids = await add_jobs(writer, 60)

    async def is_projected() -> bool:
        return await model_of(database).checkpoint() == await contents.last_sequence()

    try:
        await eventually(is_projected)
        ids += await add_jobs(writer, 20)
        await eventually(is_projected)
    finally:
        for role in roles:
            role.cancel()
        await asyncio.wait(roles)
    found = await model_of(database).jobs("alice", limit=200)
    assert {job.id for job in found} == set(ids)
    assert {job.version for job in found} == {2}


async def add_jobs(writer: JobWriter, count: int) -> Sequence[str]:
    ids = [new_id() for _ in range(count)]
    for job_id in ids:
        job = (await writer.submit(job_id, Submit(submitted()))).job
        assert job is not None
        start = Start("a", max_attempts=3, max_attempts_total=5, now=utc_now())
        await writer.execute(start, job)
    return ids


async def test_rebuilt_rows_take_the_place_of_those_that_are_nowhere_further(
    database: Database, tmp_path: Path
) -> None:
    model, tables = model_of(database), Rebuild(database, streams=FOUR)
    await model.begin()
    event = one(1, 1)
    await model.apply([event], expected=1)
    end = Place((0, 5, 2, 3))
    await tables.begin()
    assert not await tables.swap(Place((0, 1, 2, 3)), log_end=end)
    assert await model.checkpoint() == Place((0, 5, 2, 3))
    await tables.put([event])
    assert await tables.swap(end, log_end=end)
    await tables.finish()
    assert await model.checkpoint() == end
    assert [job.id for job in await model.jobs("alice")] == [event.job_id]
