"""The databases that the contract tests run against: a SQLite file and a real Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from events.store.database import Database
from events.store.read_model import ReadModel
from tests.support.database import Postgres, postgres_server, prepared, sqlite_url
from tests.support.events import History


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, one per test."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path)
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with prepared(Database(database_url)) as database:
        yield database


@pytest.fixture
async def other_database(database: Database, database_url: str) -> AsyncIterator[Database]:
    """The same database as another process sees it."""
    async with prepared(Database(database_url)) as other:
        yield other


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
def model(database: Database) -> ReadModel:
    return ReadModel(database)


@pytest.fixture
def other_model(other_database: Database) -> ReadModel:
    return ReadModel(other_database)
