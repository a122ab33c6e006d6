"""Both databases: prepared, away, late and shared by many writers."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from events.errors import DatabaseUnavailable, TextNotStorable
from events.ids import new_id
from events.store.database import Database
from events.store.leases import Leases
from events.store.read_model import ReadModel
from events.store.tables import JOBS
from tests.support.events import History, submitted
from tests.support.patience import FACTOR


async def test_preparing_again_keeps_what_is_there(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id = new_id()
    await model.apply(history.add(job_id, submitted()), expected=0)
    await database.prepare()
    assert await model.offset() == 1
    assert await model.job(job_id) is not None


async def test_many_processes_prepare_one_new_database(database_url: str) -> None:
    databases = [Database(database_url) for _ in range(12)]
    try:
        await asyncio.gather(*(database.prepare() for database in databases))
        assert [await ReadModel(database).offset() for database in databases] == [0] * 12
    finally:
        for database in databases:
            await database.close()


async def test_a_database_that_is_away_is_unavailable(tmp_path: Path) -> None:
    for url in (
        f"sqlite+aiosqlite:///{tmp_path}/missing/darkroom.sqlite3",
        f"postgresql+asyncpg://postgres@/darkroom?host={tmp_path}",
        "postgresql+asyncpg://postgres@127.0.0.1:1/darkroom",
    ):
        database = Database(url, busy_timeout_s=0.1)
        with pytest.raises(DatabaseUnavailable):
            await database.prepare()
        with pytest.raises(DatabaseUnavailable):
            await ReadModel(database).offset()
        await database.close()
    await threads_of_failed_connections()


async def threads_of_failed_connections() -> None:
    """Wait for their end: aiosqlite does not, and they need the test's event loop."""
    for thread in threading.enumerate():
        if "_connection_worker_thread" in thread.name:
            await asyncio.to_thread(thread.join, 10)


async def test_a_database_that_comes_late_is_prepared(tmp_path: Path) -> None:
    folder = tmp_path / "late"
    database = Database(f"sqlite+aiosqlite:///{folder}/darkroom.sqlite3")
    preparing = asyncio.create_task(database.prepare_with_retries())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(preparing), 0.1)
    folder.mkdir()
    await asyncio.wait_for(preparing, 10 * FACTOR)
    assert await ReadModel(database).offset() == 0
    await database.close()


async def test_a_value_is_read_by_its_key(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id = new_id()
    read = database.point_read(JOBS.c.owner, by=JOBS.c.id)
    assert await read(job_id) is None
    await model.apply(history.add(job_id, submitted()), expected=0)
    assert await read(job_id) == submitted().owner
    with pytest.raises(TextNotStorable):
        await read("\ud800")


async def test_reads_by_key_wait_for_no_writer(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id = new_id()
    await model.apply(history.add(job_id, submitted()), expected=0)
    async with database.write() as connection:
        await connection.execute(sa.update(JOBS).values(owner="nobody"))
        async with asyncio.timeout(5 * FACTOR):
            read = [model.job(job_id) for _ in range(8)]
            assert {job and job.submitted.owner for job in await asyncio.gather(*read)} == {
                submitted().owner
            }


async def test_a_process_has_so_many_connections(database_url: str) -> None:
    """More questions than that wait for one, as long as a statement may wait."""
    database = Database(database_url, connections=3, busy_timeout_s=0.3)
    await database.prepare()
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(database._engine.connect())
        with pytest.raises(DatabaseUnavailable):
            await database.fetch(sa.select(JOBS.c.id))
    assert await database.fetch(sa.select(JOBS.c.id)) == []
    await database.close()


async def test_a_database_without_tables_is_unavailable(database_url: str) -> None:
    database = Database(database_url)
    read = database.point_read(JOBS.c.owner, by=JOBS.c.id)
    with pytest.raises(DatabaseUnavailable):
        await read(new_id())
    with pytest.raises(DatabaseUnavailable):
        await ReadModel(database).offset()
    await database.prepare()
    assert await read(new_id()) is None
    await database.close()


async def test_a_value_of_a_file_that_was_closed_is_unavailable(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/darkroom.sqlite3")
    read = database.point_read(JOBS.c.owner, by=JOBS.c.id)
    await database.prepare()
    assert await read(new_id()) is None
    await database.close()
    with pytest.raises(DatabaseUnavailable):
        await read(new_id())


async def test_many_reads_by_key_of_a_locked_file_give_up_together(tmp_path: Path) -> None:
    path = tmp_path / "darkroom.sqlite3"
    database = Database(f"sqlite+aiosqlite:///{path}", busy_timeout_s=0.2)
    read = database.point_read(JOBS.c.owner, by=JOBS.c.id)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        async with asyncio.timeout(5 * FACTOR):
            reads = await asyncio.gather(
                *(read(new_id()) for _ in range(200)), return_exceptions=True
            )
    assert {type(each) for each in reads} == {DatabaseUnavailable}
    await database.close()


async def test_writers_that_wait_for_another_process_leave_connections_to_readers(
    tmp_path: Path,
) -> None:
    path = tmp_path / "darkroom.sqlite3"
    database = Database(f"sqlite+aiosqlite:///{path}", connections=2, busy_timeout_s=10 * FACTOR)
    await database.prepare()
    leases = Leases(database)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        writers = [
            asyncio.create_task(leases.acquire(name, "me", ttl_s=60)) for name in ("a", "b", "c")
        ]
        async with asyncio.timeout(5 * FACTOR):
            for _ in range(20):
                assert await database.fetch(sa.select(JOBS.c.id)) == []
        assert not any(writer.done() for writer in writers)
        other.execute("ROLLBACK")
    assert await asyncio.gather(*writers) == [True] * 3
    await database.close()


async def test_a_writer_that_waits_too_long_gives_up(
    database: Database, database_url: str, history: History
) -> None:
    impatient = Database(database_url, busy_timeout_s=0.2)
    batch = history.add(new_id(), submitted())
    async with database.write() as connection:
        await connection.exec_driver_sql("UPDATE checkpoints SET seq = seq")
        with pytest.raises(DatabaseUnavailable):
            await ReadModel(impatient).apply(batch, expected=0)
    assert await ReadModel(impatient).apply(batch, expected=0)
    await impatient.close()


async def test_writers_wait_for_each_other(
    database: Database, other_database: Database, history: History
) -> None:
    models = [ReadModel(database), ReadModel(other_database)]
    leases = [Leases(database), Leases(other_database)]
    batch = history.add(new_id(), submitted())
    await asyncio.gather(
        *(model.apply(batch, expected=0) for model in models for _ in range(5)),
        *(lease.acquire(f"{n}", "a", ttl_s=1) for lease in leases for n in range(10)),
    )
    assert await models[0].offset() == 1
