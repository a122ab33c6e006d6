"""Streams of the log, divided among projections by leases in a real database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from actors.upkeep.results import Results
from actors.upkeep.shares import Shares
from events.decisions import Submit
from events.errors import DatabaseUnavailable
from events.ids import new_id
from events.log import JobWriter, WholeLog
from events.store.database import Database
from events.store.leases import Leases
from events.store.read_model import ReadModel
from events.streams.log_streams import LogStreams
from tests.support.database import database_in
from tests.support.events import submitted
from tests.support.live.memory_streams import memory_streams
from tests.support.polling import eventually

PARTS = 4
LEASE_S = 1.5


@pytest.fixture
async def database(tmp_path: Path) -> AsyncGenerator[Database]:
    async with database_in(tmp_path) as database:
        yield database


class Away(Leases):
    """Leases whose database can go away."""

    is_away = False

    async def acquire(self, name: str, holder: str, *, ttl_s: float) -> bool:
        if self.is_away:
            raise DatabaseUnavailable("away")
        return await super().acquire(name, holder, ttl_s=ttl_s)

    async def release(self, name: str, holder: str) -> None:
        if self.is_away:
            raise DatabaseUnavailable("away")
        await super().release(name, holder)


class Process:
    """One that shares; knows which parts it works on."""

    def __init__(
        self,
        database: Database,
        holder: str,
        *,
        seats: int = 2,
        all_without_database: bool = False,
        is_away: bool = False,
    ) -> None:
        self.leases = Away(database)
        self.leases.is_away = is_away
        self.parts: set[int] = set()
        self.shares = Shares(
            "test",
            leases=self.leases,
            holder=holder,
            parts=PARTS,
            seats=seats,
            lease_s=LEASE_S,
            all_without_database=all_without_database,
        )
        self.task = asyncio.create_task(self.shares.run(self.work))

    async def work(self, index: int) -> None:
        self.parts.add(index)
        try:
            await asyncio.Event().wait()
        finally:
            self.parts.discard(index)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})

    async def die(self) -> None:
        """Its leases stay until they run out."""
        self.leases.is_away = True
        await self.stop()


async def test_a_process_alone_has_all_and_gives_half_to_one_that_comes(database: Database) -> None:
    one = Process(database, "one")
    await eventually(lambda: len(one.parts) == PARTS)
    two = Process(database, "two")
    await eventually(lambda: len(one.parts) == len(two.parts) == PARTS / 2)
    assert one.parts.isdisjoint(two.parts)
    await one.stop()
    await eventually(lambda: len(two.parts) == PARTS)
    await two.stop()


async def test_a_clean_stop_hands_over_at_once(database: Database) -> None:
    one = Process(database, "one")
    await eventually(lambda: len(one.parts) == PARTS)
    await one.stop()
    assert await Leases(database).held("test/") == 0


async def test_parts_of_a_dead_process_are_taken_once_its_leases_ran_out(
    database: Database,
) -> None:
    one, two = Process(database, "one"), Process(database, "two")
    await eventually(lambda: len(one.parts) == len(two.parts) == PARTS / 2)
    await one.die()
    assert len(two.parts) == PARTS / 2
    await eventually(lambda: len(two.parts) == PARTS)
    await two.stop()


async def test_without_a_database_parts_are_kept_until_their_leases_run_out(
    database: Database,
) -> None:
    one = Process(database, "one")
    await eventually(lambda: len(one.parts) == PARTS)
    one.leases.is_away = True
    await asyncio.sleep(LEASE_S / 2)
    assert len(one.parts) == PARTS
    await eventually(lambda: not one.parts)
    one.leases.is_away = False
    await eventually(lambda: len(one.parts) == PARTS)
    await one.stop()


async def test_without_a_database_all_work_on_all_where_they_may(database: Database) -> None:
    names = ("one", "two")
    both = [Process(database, name, all_without_database=True) for name in names]
    await eventually(lambda: [len(each.parts) for each in both] == [PARTS / 2] * 2)
    for each in both:
        each.leases.is_away = True
    await asyncio.sleep(LEASE_S / 2)
    assert [len(each.parts) for each in both] == [PARTS / 2] * 2
    await eventually(lambda: [len(each.parts) for each in both] == [PARTS] * 2)
    for each in both:
        each.leases.is_away = False
    await eventually(lambda: [len(each.parts) for each in both] == [PARTS / 2] * 2)
    assert both[0].parts.isdisjoint(both[1].parts)
    for each in both:
        await each.stop()


async def test_parts_that_all_may_work_on_never_rest_without_a_database(
    database: Database,
) -> None:
    one = Process(database, "one", all_without_database=True)
    await eventually(lambda: len(one.parts) == PARTS)
    one.leases.is_away = True
    rested = False

    async def look() -> None:
        nonlocal rested
        while True:
            rested = rested or len(one.parts) < PARTS
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    await asyncio.sleep(2 * LEASE_S)
    looking.cancel()
    assert not rested
    await one.stop()


async def test_a_process_that_starts_without_a_database_works_on_all_where_it_may(
    database: Database,
) -> None:
    one = Process(database, "one", all_without_database=True, is_away=True)
    await eventually(lambda: len(one.parts) == PARTS)
    await one.stop()


async def test_a_process_without_a_seat_waits_for_one(database: Database) -> None:
    one = Process(database, "one", seats=1)
    await eventually(lambda: len(one.parts) == PARTS)
    two = Process(database, "two", seats=1)
    await asyncio.sleep(LEASE_S)
    assert (len(one.parts), len(two.parts)) == (PARTS, 0)
    await one.stop()
    await eventually(lambda: len(two.parts) == PARTS)
    await two.stop()


async def test_an_error_of_the_work_ends_all(database: Database) -> None:
    async def fail(index: int) -> None:
        raise ValueError(index)

    shares = Shares("test", leases=Leases(database), holder="a", parts=1, seats=1, lease_s=LEASE_S)
    with pytest.raises(ExceptionGroup):
        await asyncio.wait_for(shares.run(fail), 10)
    assert await Leases(database).held("test/") == 0


def project(log: WholeLog, model: ReadModel, leases: Leases, holder: str) -> asyncio.Task[None]:
    shares = Shares("results", leases=leases, holder=holder, parts=PARTS, seats=2, lease_s=LEASE_S)
    results = Results(log=log, read_model=model, catch_up_period_s=60, shares=shares)
    return asyncio.create_task(results.run())


async def new_jobs_are_projected(log: WholeLog, model: ReadModel) -> None:
    jobs = [new_id() for _ in range(4 * PARTS)]
    for job_id in jobs:
        await JobWriter(log).submit(job_id, Submit(submitted()))

    async def are_there() -> bool:
        return None not in [await model.job(job_id) for job_id in jobs]

    await eventually(are_there)


async def test_two_projections_share_the_streams_and_one_that_dies_stops_none(
    database: Database,
) -> None:
    log, _ = memory_streams(PARTS)
    model = ReadModel(database, streams=LogStreams(PARTS))
    mortal = Away(database)
    one, two = project(log, model, mortal, "one"), project(log, model, Leases(database), "two")
    await new_jobs_are_projected(log, model)
    mortal.is_away = True
    one.cancel()
    await asyncio.wait({one})
    await new_jobs_are_projected(log, model)
    two.cancel()
    await asyncio.wait({two})
