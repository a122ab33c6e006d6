"""A Postgres that restarts, is replaced by its standby, or says nothing, while it is used."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress

import pytest

from actors.roles.projection import Projection
from events.decisions import Submit
from events.errors import DatabaseUnavailable
from events.ids import new_id
from events.log import JobWriter, utc_now
from events.store.database import Database
from events.store.keys import ApiKeys
from events.store.leases import Leases
from events.store.read_model import ReadModel
from events.store.records import ApiKey, Scope
from tests.support.events import submitted
from tests.support.link import Link, linked
from tests.support.memory.log import MemoryLog
from tests.support.outside.postgres_pair import Pair, postgres_pair
from tests.support.polling import eventually, running

BUSY_S = 2.0


@pytest.fixture
def pair() -> Iterator[Pair]:
    with postgres_pair() as pair:
        yield pair


@pytest.fixture
async def link(pair: Pair) -> AsyncIterator[Link]:
    async with linked(pair.primary.socket) as link:
        yield link


@pytest.fixture
async def database(pair: Pair, link: Link) -> AsyncIterator[Database]:
    name = pair.primary.new_database().partition("@/")[2].partition("?")[0]
    url = f"postgresql+asyncpg://postgres@127.0.0.1:{link.port}/{name}?ssl=disable"
    database = Database(url, busy_timeout_s=BUSY_S)
    await database.prepare()
    yield database
    await database.close()


class Writer:
    """Adds key after key, and again what failed: who calls has no other way."""

    def __init__(self, database: Database) -> None:
        self._keys = ApiKeys(database)
        self.acknowledged: list[str] = []
        self.failures = 0
        self.longest_s = 0.0

    async def run(self) -> None:
        while True:
            before = time.monotonic()
            key = api_key(new_id())
            try:
                await self._keys.add(key)
                self.acknowledged.append(key.id)
            except DatabaseUnavailable:
                self.failures += 1
                await asyncio.sleep(0.05)
            self.longest_s = max(self.longest_s, time.monotonic() - before)

    async def writes_on(self) -> None:
        """Returns when it has added a few more."""
        enough = len(self.acknowledged) + 20
        await eventually(lambda: len(self.acknowledged) >= enough, within_s=60)


def api_key(id: str) -> ApiKey:
    return ApiKey(
        id=id,
        owner="alice",
        name="laptop",
        secret_sha256="ab" * 32,
        scopes=frozenset({Scope.READ}),
        created_at=utc_now(),
    )


async def restart(pair: Pair, link: Link) -> None:
    await asyncio.to_thread(pair.primary.stop)
    await asyncio.to_thread(pair.primary.start)


async def fail_over(pair: Pair, link: Link) -> None:
    await asyncio.to_thread(pair.fail_over)
    link.lead_to(pair.standby.socket)


async def fail_over_in_silence(pair: Pair, link: Link) -> None:
    """The machine of the primary is gone, and no connection to it ends."""
    link.fall_silent()
    await asyncio.to_thread(pair.fail_over)
    await asyncio.sleep(2 * BUSY_S)
    link.lead_to(pair.standby.socket)


Disturbance = Callable[[Pair, Link], Awaitable[None]]


@pytest.mark.parametrize("disturb", [restart, fail_over, fail_over_in_silence])
async def test_nothing_that_was_acknowledged_is_lost(
    pair: Pair, link: Link, database: Database, disturb: Disturbance
) -> None:
    writers = [Writer(database) for _ in range(8)]
    tasks = [asyncio.create_task(writer.run()) for writer in writers]
    try:
        await asyncio.gather(*(writer.writes_on() for writer in writers))
        await disturb(pair, link)
        await asyncio.gather(*(writer.writes_on() for writer in writers))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    stored = {key.id for key in await ApiKeys(database).all()}
    acknowledged = {id for writer in writers for id in writer.acknowledged}
    assert acknowledged <= stored
    # The row may have been written when the server stopped, without an answer.
    assert len(stored - acknowledged) <= len(writers) * 4
    # No call hung: a connection, a statement and a wait for the pool each have a time-out.
    assert max(writer.longest_s for writer in writers) < 4 * BUSY_S + 5


@pytest.mark.parametrize("disturb", [restart, fail_over])
async def test_the_projection_goes_on_and_leaves_nothing_out(
    pair: Pair, link: Link, database: Database, disturb: Disturbance
) -> None:
    log, model = MemoryLog(), ReadModel(database)
    results = Projection(log=log, read_model=model, catch_up_period_s=60)
    job_ids = [new_id() for _ in range(60)]
    async with running(results.run()):
        for number, job_id in enumerate(job_ids):
            await JobWriter(log).submit(job_id, Submit(submitted()))
            if number == len(job_ids) // 2:
                await eventually(lambda: _is_past(model, 1), within_s=30)
                await disturb(pair, link)
        await eventually(lambda: _is_past(model, len(job_ids)), within_s=60)
    rows = [await model.job(job_id) for job_id in job_ids]
    assert all(row is not None for row in rows)
    assert await model.blocked.page(limit=1) == []


async def _is_past(model: ReadModel, position: int) -> bool:
    with suppress(DatabaseUnavailable):
        return await model.offset() >= position
    return False


async def test_a_lease_has_one_holder_over_a_failover(
    pair: Pair, link: Link, database: Database
) -> None:
    leases = Leases(database)
    assert await leases.acquire("janitor", "one", ttl_s=600)
    await fail_over(pair, link)
    await eventually(lambda: _acquires(leases, "one"), within_s=30)
    assert not await leases.acquire("janitor", "two", ttl_s=600)


async def _acquires(leases: Leases, holder: str) -> bool:
    with suppress(DatabaseUnavailable):
        return await leases.acquire("janitor", holder, ttl_s=600)
    return False
