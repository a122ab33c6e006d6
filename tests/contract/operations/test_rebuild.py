"""Rebuilds of the read model beside the one in use, on both databases: SQLite and Postgres."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from events.cloud_events import decode, encode
from events.errors import DatabaseUnavailable
from events.history import StoredHistory, read_history
from events.ids import new_id
from events.log import StoredEvent
from events.store import database_contents
from events.store.database import Database
from events.store.ended_jobs import EndedJobs
from events.store.table_rebuild import Rebuild
from events.store.tables import ERASURES, IMAGES, JOBS, OFFSETS, PROJECTION_OFFSET
from events.types import (
    CallbackDelivered,
    Cancelled,
    Completed,
    Event,
    RedeliveryRequested,
    Started,
)
from storage.file_names import HistoryName
from tests.support.database import stored_job
from tests.support.events import appended, erased
from tests.support.memory.log import MemoryLog
from tests.support.operations.installation import NOW, Installation
from tests.support.operations.rebuild import rebuild

IS_PROJECTION = OFFSETS.c.name == PROJECTION_OFFSET


async def rows(database: Database) -> list[list[Mapping[str, Any]]]:
    tables = (OFFSETS, JOBS, IMAGES, ERASURES)
    found = [await database.fetch(sa.select(each).order_by(*each.primary_key)) for each in tables]
    return [[dict(row._mapping) for row in some] for some in found]


async def table_names(database: Database) -> set[str]:
    async with database.write() as connection:
        return set(await connection.run_sync(lambda sync: sa.inspect(sync).get_table_names()))


async def test_jobs_of_every_kind_are_as_they_were_projected(installation: Installation) -> None:
    for kind in ("completed", "cancelled", "erased"):
        await installation.move(installation.ids[kind])
    before = await rows(installation.database)
    rebuilt = (await rebuild(installation)).rebuilt
    assert await rows(installation.database) == before
    assert (rebuilt.from_log, rebuilt.from_histories, rebuilt.unreadable) == (3, 3, 0)


async def test_it_stops_at_what_cannot_be_read_as_the_projection_does(
    installation: Installation,
) -> None:
    job_id = installation.ids["completed"]
    stored = await installation.log_contents.of(job_id)
    instead = (*stored[:2], StoredEvent(stored[2].sequence, b"no event"), *stored[3:])
    installation.log_contents.instead[job_id] = instead
    await rebuild(installation)
    job = await stored_job(installation.read_model, job_id)
    assert job.version == 2
    [stop] = await installation.read_model.blocked.page(limit=9)
    assert (stop.job_id, stop.position) == (job_id, stored[2].sequence)
    installation.log_contents.instead.clear()
    await rebuild(installation)
    assert await installation.read_model.blocked.count() == 0


async def test_it_may_be_built_again_and_again(installation: Installation) -> None:
    before = await rows(installation.database)
    names = await table_names(installation.database)
    for _ in range(3):
        await rebuild(installation)
        await installation.database.prepare()
        assert await rows(installation.database) == before
        assert await table_names(installation.database) == names
        async with installation.database.write() as connection:
            indexes = await connection.run_sync(lambda sync: sa.inspect(sync).get_indexes("jobs"))
        assert len(indexes) == len(JOBS.indexes)


async def test_wrong_missing_and_surplus_rows_are_mended(installation: Installation) -> None:
    database, ids = installation.database, installation.ids
    await installation.move(ids["cancelled"])
    before = await rows(database)
    await database.execute(sa.update(JOBS).values(owner="mallory", status=7))
    await database.execute(sa.delete(JOBS).where(JOBS.c.id.in_([ids["failed"], ids["cancelled"]])))
    await database.execute(sa.delete(IMAGES))
    await database.execute(sa.delete(ERASURES))
    await rebuild(installation)
    assert await rows(database) == before


async def test_a_database_that_is_new_gets_everything(installation: Installation) -> None:
    """Also the names of the history objects."""
    database, job_id = installation.database, installation.ids["completed"]
    key = await installation.move(job_id)
    before = await rows(database)
    async with database.write() as connection:
        for table in ("jobs", "images", "erasures"):
            await connection.execute(sa.text(f"DELETE FROM {table}"))
        await connection.execute(sa.update(OFFSETS).where(IS_PROJECTION).values(seq=0))
    await rebuild(installation)
    assert await rows(database) == before
    assert await EndedJobs(database).find_history(job_id) == key


async def test_a_job_that_left_the_log_and_has_new_deliveries_is_found_by_the_historian(
    installation: Installation,
) -> None:
    database, job_id = installation.database, installation.ids["completed"]
    await installation.move(job_id)
    await installation.deliver(job_id, RedeliveryRequested())
    await database.execute(sa.delete(JOBS))
    await rebuild(installation)
    [row] = await database.fetch(sa.select(JOBS).where(JOBS.c.id == job_id))
    assert (row.history is None, row.hot_since) == (False, NOW)
    assert await installation.read_model.unsettled.has(job_id)


async def test_what_happens_meanwhile_is_in_it(installation: Installation) -> None:
    """Jobs come, end, leave the log, are erased and removed; the projection runs on."""
    ids, calls = installation.ids, 0

    async def meanwhile() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await installation.append(ids["running"], Completed(images=1))
            ids["new"] = await installation.job(Cancelled())
            await installation.project()
            await installation.move(ids["new"])
            await installation.move(ids["cancelled"])
            await installation.append(ids["completed"], erased(NOW))
            job = await installation.load(ids["completed"])
            await installation.read_model.erase(job)
            await installation.log.purge(ids["completed"], keep=1)
        if calls == 2:
            await installation.log.purge(ids["failed"])
            failed = await stored_job(installation.read_model, ids["failed"])
            await installation.read_model.remove({failed.id: failed.position})
            await installation.project()

    await rebuild(installation, meanwhile)
    assert calls > 1
    await installation.project()
    assert await installation.read_model.job(ids["failed"]) is None
    for name in ("running", "waiting", "completed"):
        expected = await installation.load(ids[name])
        assert await installation.read_model.job(ids[name]) == expected
    for name in ("new", "cancelled"):
        assert await installation.read_model.job(ids[name]) is not None
        assert await EndedJobs(installation.database).find_history(ids[name]) is not None


class Overtaken(Rebuild):
    """Tables before whose swap something happens."""

    def __init__(self, database: Database, happen: Callable[[], Awaitable[object]]) -> None:
        super().__init__(database)
        self._happen = happen

    async def swap(self, offset: int, *, since: int, log_end: int) -> bool:
        await self._happen()
        return await super().swap(offset, since=since, log_end=log_end)


async def test_a_job_that_leaves_the_log_right_before_the_swap_is_known_there(
    installation: Installation,
) -> None:
    job_id = installation.ids["cancelled"]
    tables = Overtaken(installation.database, lambda: installation.move(job_id))
    await rebuild(installation, tables=tables)
    assert await EndedJobs(installation.database).find_history(job_id) is not None


async def test_an_erasure_right_before_the_swap_stays(installation: Installation) -> None:
    job_id = installation.ids["completed"]

    async def erase() -> None:
        if not (await installation.load(job_id)).erased:
            await installation.append(job_id, erased(NOW))
            await installation.read_model.erase(await installation.load(job_id))

    await rebuild(installation, tables=Overtaken(installation.database, erase))
    job = await stored_job(installation.read_model, job_id)
    assert job.erased
    assert await installation.read_model.image_keys([job_id]) == set()


async def test_tables_that_are_behind_are_not_swapped_in(installation: Installation) -> None:
    tables = Rebuild(installation.database)
    before = await rows(installation.database)
    await tables.begin()
    at = await installation.read_model.offset()
    assert not await tables.swap(at - 1, since=at, log_end=at)
    assert await rows(installation.database) == before
    assert await tables.swap(at, since=at, log_end=at)


async def test_a_read_model_that_is_ahead_of_the_log_is_taken_back(
    installation: Installation,
) -> None:
    """A restored log may be older than the database."""
    at = await installation.read_model.offset()
    await installation.database.execute(
        sa.update(OFFSETS).where(IS_PROJECTION).values(seq=at + 100)
    )
    await rebuild(installation)
    assert await installation.read_model.offset() == at


async def test_one_that_dies_leaves_the_old_one_and_nothing_in_the_way(
    installation: Installation,
) -> None:
    before = await rows(installation.database)

    async def die() -> None:
        raise DatabaseUnavailable

    with pytest.raises(DatabaseUnavailable):
        await rebuild(installation, tables=Overtaken(installation.database, die))
    assert await rows(installation.database) == before
    assert "jobs_rebuilt" in await table_names(installation.database)
    await rebuild(installation)
    assert await rows(installation.database) == before
    assert {"jobs_rebuilt", "jobs_replaced"}.isdisjoint(await table_names(installation.database))


async def test_a_damaged_history_is_counted_and_stops_nothing(installation: Installation) -> None:
    ids = installation.ids
    key = await installation.move(ids["completed"])
    await installation.move(ids["cancelled"])
    await installation.images.put(key, b"damaged")
    rebuilt = (await rebuild(installation)).rebuilt
    assert (rebuilt.from_histories, rebuilt.unreadable) == (1, 1)
    assert await installation.read_model.job(ids["completed"]) is None
    assert await installation.read_model.job(ids["cancelled"]) is not None


async def test_the_longest_of_several_histories_counts(installation: Installation) -> None:
    """A historian died before it removed the former ones."""
    job_id = installation.ids["completed"]
    key = await installation.move(job_id)
    before = await rows(installation.database)
    history = await read_history(installation.images, key)
    for deliveries in (0, 1):
        part = replace(history, deliveries=history.deliveries[:deliveries])
        version = decode(history.events[-1].payload).version
        await installation.put_history(HistoryName(job_id, version, deliveries).key, part)
    await installation.database.execute(sa.delete(JOBS))
    await rebuild(installation)
    assert await rows(installation.database) == before


async def test_a_history_that_is_replaced_after_it_was_listed_is_found(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A historian replaces the history of a job after another delivery."""
    job_id, images = installation.ids["completed"], installation.images
    key = await installation.move(job_id)
    before = await rows(installation.database)
    history = await read_history(images, key)
    version = decode(history.events[-1].payload).version
    name = HistoryName(job_id, version, len(history.deliveries))
    former = HistoryName(job_id, version, len(history.deliveries) - 1)
    await images.delete(key)
    await installation.put_history(former.key, replace(history, deliveries=history.deliveries[:-1]))
    get = images.get

    async def get_late(key: str, part: range | None = None) -> bytes:
        if key == former.key:
            await installation.put_history(name.key, history)
            await images.delete(former.key)
        return await get(key, part)

    monkeypatch.setattr(images, "get", get_late)
    await installation.database.execute(sa.delete(JOBS))
    assert (await rebuild(installation)).rebuilt.from_histories == 1
    assert await rows(installation.database) == before


async def test_an_erased_job_does_not_come_back_from_a_history_that_is_left(
    installation: Installation,
) -> None:
    """A historian died before it removed an object that it had stored while the job was erased."""
    job_id = installation.ids["cancelled"]
    key = await installation.move(job_id)
    whole = await read_history(installation.images, key)
    await installation.database.execute(sa.update(JOBS).values(history=None))
    last = whole.events[-1]
    event = replace(decode(last.payload), id=new_id(), version=3, data=erased(NOW))
    only = StoredHistory(job_id, (StoredEvent(last.sequence + 50, encode(event)),))
    await installation.put_history(HistoryName(job_id, 3, 0).key, only)
    await installation.database.execute(sa.delete(JOBS).where(JOBS.c.id == job_id))
    await rebuild(installation)
    job = await stored_job(installation.read_model, job_id)
    assert job.erased
    found = await EndedJobs(installation.database).find_history(job_id)
    assert found == HistoryName(job_id, 3, 0).key


async def test_a_young_job_that_left_the_log_before_it_was_read_is_taken_over(
    installation: Installation,
) -> None:
    """It came, ended and left the log while the rebuild read histories."""
    tables, young = Rebuild(installation.database), ""
    follow = installation.log_contents.following

    async def after_it_left(offset: int) -> list[StoredEvent]:
        nonlocal young
        if not young:
            young = await installation.job(
                Started(attempt=1, actor="a"), installation.stored_image(0), Completed(images=1)
            )
            await installation.project()
            await installation.move(young)
        return await follow(offset)

    installation.log_contents.following = after_it_left  # type: ignore[method-assign]
    await rebuild(installation, tables=tables)
    job = await stored_job(installation.read_model, young)
    assert await installation.read_model.image_keys([young]) == {job.images[0].key}
    assert await installation.disagreements() == []


# A log that is older than the histories, as after it was restored from a copy.


async def put_back(log: MemoryLog, events: Sequence[Event]) -> None:
    """Store the events as in a restored log."""
    last = 0
    for event in events:
        last = (await appended(log, replace(event, position=0), last)).position


@pytest.mark.parametrize("count", [1, 2])
async def test_a_job_whose_history_has_ended_does_not_run_again(
    installation: Installation, count: int
) -> None:
    job_id = installation.ids["completed"]
    events = await installation.log.read(job_id)
    deliveries = await installation.deliveries.read(job_id)
    before = await installation.read_model.job(job_id)
    await installation.move(job_id)
    await put_back(installation.log, events[:count])
    await put_back(installation.deliveries, deliveries[:1])
    await rebuild(installation)
    assert await installation.log.read(job_id) == []
    assert await installation.deliveries.read(job_id) == []
    assert await installation.read_model.job(job_id) == before
    assert job_id not in [each for _, each in await installation.disagreements()]


async def test_an_erased_job_does_not_come_back_from_an_older_log(
    installation: Installation,
) -> None:
    """The history has the event that says so alone."""
    job_id = installation.ids["cancelled"]
    events = await installation.log.read(job_id)
    await installation.append(job_id, erased(NOW))
    await installation.log.purge(job_id, keep=1)
    await installation.project()
    await installation.move(job_id)
    await put_back(installation.log, events[:1])
    await rebuild(installation)
    assert await installation.log.read(job_id) == []
    job = await stored_job(installation.read_model, job_id)
    assert job.erased


async def test_what_no_history_has_stays_in_the_log(installation: Installation) -> None:
    """A callback that was asked for again, and a job that ran again before the rebuild."""
    called, ran = installation.ids["completed"], installation.ids["failed"]
    events = await installation.log.read(ran)
    for job_id in (called, ran):
        await installation.move(job_id)
    await installation.deliver(called, RedeliveryRequested(), CallbackDelivered(attempt=1))
    await put_back(installation.log, events[:2])
    again = replace(events[2], id=new_id(), version=3, position=0)
    last = await installation.log.last(ran)
    assert last is not None
    await appended(installation.log, again, last.position)
    await rebuild(installation)
    assert len(await installation.deliveries.read(called)) == 2
    assert len(await installation.log.read(ran)) == 3


# Reads of the tables.


async def all_of(pages: AsyncGenerator[list[str]]) -> list[str]:
    return [each async for page in pages for each in page]


async def test_every_row_is_seen_once_page_by_page(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_contents, "_PAGE", 2)
    rows = installation.stores.rows
    assert sorted(await all_of(rows.job_ids())) == sorted(installation.ids.values())
    keys = [await installation.upload() for _ in range(4)]
    assert set(keys) < set(await all_of(rows.upload_keys()))
    assert (await rows.uploads_of(keys)).keys() == set(keys)


async def test_the_histories_that_rows_name(installation: Installation) -> None:
    key = await installation.move(installation.ids["completed"])
    named = await installation.stores.rows.histories([*installation.ids.values()])
    assert named == {installation.ids["completed"]: key}


async def test_everything_agrees_on_this_database(installation: Installation) -> None:
    await installation.move(installation.ids["completed"])
    assert await installation.disagreements() == []
