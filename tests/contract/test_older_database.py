"""A database that an older version made is brought up to date, and keeps what it has."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from events.ids import new_id
from events.job import fold
from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.keys import ApiKeys
from events.store.read_model import ReadModel
from events.store.records import Endpoint, KeyLimits, StoredEndpoint
from events.types import Started
from tests.support.events import History, submitted

TIMES = {"sqlite": "DATETIME", "postgresql": "TIMESTAMP WITH TIME ZONE"}
DOUBLES = {"sqlite": "DOUBLE", "postgresql": "DOUBLE PRECISION"}
BACK_TO_THE_FIRST_VERSION = """
ALTER TABLE jobs RENAME TO new_jobs;
CREATE TABLE jobs (
    id VARCHAR NOT NULL, owner VARCHAR NOT NULL, flavour VARCHAR NOT NULL,
    endpoint VARCHAR NOT NULL, status SMALLINT NOT NULL, created_at {time} NOT NULL,
    ended_at {time}, version BIGINT NOT NULL, position BIGINT NOT NULL, state TEXT NOT NULL,
    PRIMARY KEY (id));
INSERT INTO jobs SELECT id, owner, flavour, endpoint, status, created_at, ended_at, version,
    position, state FROM new_jobs;
DROP TABLE new_jobs;
CREATE INDEX jobs_by_owner ON jobs (owner, created_at, id);
CREATE INDEX jobs_by_status ON jobs (status, created_at, id);
DROP TABLE api_keys;
CREATE TABLE api_keys (
    id VARCHAR NOT NULL, owner VARCHAR NOT NULL, name VARCHAR NOT NULL,
    secret_sha256 VARCHAR NOT NULL, scopes VARCHAR NOT NULL, created_at {time} NOT NULL,
    expires_at {time}, revoked_at {time}, PRIMARY KEY (id));
DROP TABLE endpoints;
CREATE TABLE endpoints (
    id VARCHAR NOT NULL, checkpoint VARCHAR, gpus {double}, cpus {double} NOT NULL,
    min_workers INTEGER NOT NULL, max_workers INTEGER NOT NULL, jobs_per_worker INTEGER NOT NULL,
    max_queued BIGINT NOT NULL, max_pixels BIGINT NOT NULL, max_steps INTEGER NOT NULL,
    PRIMARY KEY (id));
INSERT INTO endpoints VALUES ('fast', NULL, 0.5, 2, 0, 3, 4, 10, 1024, 50);
INSERT INTO api_keys VALUES
    ('old', 'alice', 'laptop', 'ab', 'generate read', '2026-03-01 08:30:00', NULL, NULL)
"""
JOB_ID = new_id()
EVENTS = History().add(JOB_ID, submitted(key_id="old"), Started(attempt=1, actor="a"))


@pytest.fixture
async def old_database_url(database_url: str) -> str:
    """The URL of a database of the first version, with a key and an open job."""
    newest = Database(database_url)
    await newest.prepare()
    await ReadModel(newest).apply(EVENTS[:1], expected=0)
    async with newest.write() as connection:
        name = connection.dialect.name
        script = BACK_TO_THE_FIRST_VERSION.format(time=TIMES[name], double=DOUBLES[name])
        for statement in script.split(";"):
            await connection.exec_driver_sql(statement)
    await newest.close()
    return database_url


@pytest.fixture
async def old_database(old_database_url: str) -> Database:
    return Database(old_database_url)


async def test_its_keys_work_on_without_limits(old_database: Database) -> None:
    await old_database.prepare()
    keys = ApiKeys(old_database)
    old = await keys.get("old")
    assert old is not None
    assert (old.owner, old.limits, old.replaced_by) == ("alice", KeyLimits(), None)
    changed = await keys.change("old", max_open_jobs=3)
    assert changed is not None
    assert changed.limits == KeyLimits(max_open_jobs=3)
    await old_database.close()


async def test_its_endpoints_are_at_their_first_revision(old_database: Database) -> None:
    await old_database.prepare()
    endpoints = Endpoints(old_database)
    old = await endpoints.stored_one("fast")
    row = {"gpus": 0.5, "cpus": 2.0, "min_workers": 0, "max_workers": 3, "jobs_per_worker": 4}
    limits = {"max_queued": 10, "max_pixels": 1024, "max_steps": 50}
    assert old == StoredEndpoint(endpoint=Endpoint("fast", **row, **limits))
    changed = await endpoints.change(replace(old, endpoint=replace(old.endpoint, max_steps=9)))
    assert changed is not None
    assert (changed.revision, changed.endpoint.max_steps) == (2, 9)
    await old_database.close()


async def test_its_jobs_are_counted_by_key_from_their_next_event_on(old_database: Database) -> None:
    await old_database.prepare()
    model = ReadModel(old_database)
    assert await model.job(JOB_ID) == fold(EVENTS[:1])
    assert await model.usage.open_jobs_by_caller() == (1, {("alice", None): 1})
    assert await model.apply(EVENTS[1:], expected=1)
    assert await model.usage.open_jobs_by_caller() == (2, {("alice", "old"): 1})
    await old_database.close()


async def test_many_processes_may_bring_it_up_to_date_at_once(old_database_url: str) -> None:
    databases = [Database(old_database_url) for _ in range(8)]
    await asyncio.gather(*(database.prepare() for database in databases))
    for database in databases:
        assert len(await ApiKeys(database).all()) == 1
        await database.close()


async def test_it_ends_with_the_indexes_of_a_new_one(
    old_database: Database, old_database_url: str
) -> None:
    await old_database.prepare()
    catalogue = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'jobs'",
        "postgresql": "SELECT indexname FROM pg_indexes WHERE tablename = 'jobs'",
    }
    async with old_database.write() as connection:
        names = await connection.exec_driver_sql(catalogue[connection.dialect.name])
        assert {"jobs_by_caller", "jobs_by_dead_letter"} <= set(names.scalars().all())
    await old_database.close()
