"""Parts of a work, divided among processes by leases in a real database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
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
NAMES = ["a", "b", "c", "d"]
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

    async def renew(self, names: Collection[str], holder: str, *, ttl_s: float) -> set[str]:
        if self.is_away:
            raise DatabaseUnavailable("away")
        return await super().renew(names, holder, ttl_s=ttl_s)

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
        names: Collection[str] = NAMES,
        all_without_database: bool = False,
        is_away: bool = False,
    ) -> None:
        self.leases = Away(database)
        self.leases.is_away = is_away
        self.parts: set[str] = set()
        self.shares = Shares(
            "test",
            leases=self.leases,
            holder=holder,
            seats=seats,
            lease_s=LEASE_S,
            all_without_database=all_without_database,
        )
        self.task = asyncio.create_task(self.shares.run(names, self.work))

    async def work(self, part: str) -> None:
        self.parts.add(part)
        try:
            await asyncio.Event().wait()
        finally:
            self.parts.discard(part)

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
    async def fail(part: str) -> None:
        raise ValueError(part)

    shares = Shares("test", leases=Leases(database), holder="a", seats=1, lease_s=LEASE_S)
    with pytest.raises(ExceptionGroup):
        await asyncio.wait_for(shares.run(["a"], fail), 10)
    assert await Leases(database).held("test/") == 0


async def test_parts_come_and_go_while_they_are_shared(database: Database) -> None:
    names = ["a", "b"]
    one, two = (Process(database, holder, names=names) for holder in ("one", "two"))
    await eventually(lambda: len(one.parts) == len(two.parts) == 1)
    names += ["c", "d"]
    await eventually(lambda: len(one.parts) == len(two.parts) == PARTS / 2)
    assert one.parts | two.parts == set(NAMES)
    del names[1:]
    await eventually(lambda: one.parts | two.parts == {"a"})
    names[:] = ["e"]
    await eventually(lambda: one.parts | two.parts == {"e"})
    await one.stop()
    await two.stop()
    assert await Leases(database).held("test/") == 0


async def test_the_lease_of_a_part_that_is_gone_is_given_back(database: Database) -> None:
    shares = Shares("test", leases=Leases(database), holder="one", seats=1, lease_s=LEASE_S)
    stopped: list[tuple[str, int]] = []

    async def stop(part: str) -> None:
        stopped.append((part, await Leases(database).held("test/part/")))

    assert await shares.settle(["a", "b"], stop) == {"a", "b"}
    assert await shares.settle(["b"], stop) == {"b"}
    assert ("a", 2) in stopped, "it is stopped while its lease is held"
    assert await Leases(database).held("test/part/") == 1
    assert {part for part, _ in stopped} == {"a"}


async def test_a_part_that_is_taken_away_is_stopped(database: Database) -> None:
    leases, stopped = Away(database), list[str]()
    shares = Shares("test", leases=leases, holder="one", seats=1, lease_s=LEASE_S)

    async def stop(part: str) -> None:
        stopped.append(part)

    assert await shares.settle(["a"], stop) == {"a"}
    leases.is_away = True
    assert await shares.settle(["a"], stop) == {"a"}
    await asyncio.sleep(LEASE_S)
    assert await shares.settle(["a"], stop) == set()
    assert stopped == ["a"]
    assert await Leases(database).acquire("test/part/a", "two", ttl_s=LEASE_S)
    leases.is_away = False
    assert await shares.settle(["a"], stop) == set()


def project(log: WholeLog, model: ReadModel, leases: Leases, holder: str) -> asyncio.Task[None]:
    shares = Shares("results", leases=leases, holder=holder, seats=2, lease_s=LEASE_S)
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
