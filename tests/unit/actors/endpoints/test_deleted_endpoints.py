"""What becomes of an endpoint that is deleted, and of its jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from actors.endpoints.deleted_endpoints import DeletedEndpoints
from events.decisions import Start, Submit
from events.ids import new_id
from events.job import Job
from events.log import JobWriter, utc_now
from events.memory.log import MemoryLog
from events.memory.queues import MemoryJobQueue
from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.records import Endpoint, StoredEndpoint
from events.types import DeadLetter, Failed
from tests.support.database import database_in
from tests.support.events import submitted
from tests.support.workers.cluster import FakeCluster

WORKER = "worker:fast:r-1:0"


class Bench:
    def __init__(self, database: Database) -> None:
        self.endpoints = Endpoints(database)
        self.queue = MemoryJobQueue()
        self.writer = JobWriter(MemoryLog())
        self.cluster = FakeCluster()
        self.now = utc_now()
        self.clock = 0.0
        self.deleted = DeletedEndpoints(
            endpoints=self.endpoints,
            queue=self.queue,
            writer=self.writer,
            cluster=self.cluster,
            period_s=1.0,
            now=lambda: self.now,
            clock=lambda: self.clock,
        )

    async def sweep(self) -> None:
        """The next one, somewhat more than a period later."""
        await self.deleted.sweep()
        self.clock += 1.1

    async def delete(self, *, drain_s: float = 60.0) -> StoredEndpoint:
        ends_at = self.now + timedelta(seconds=drain_s)
        stored = StoredEndpoint(endpoint=Endpoint("fast", draining=True, ends_at=ends_at))
        assert await self.endpoints.add(stored)
        return stored

    async def submit(self, *, is_running: bool = False) -> str:
        job_id = new_id()
        outcome = await self.writer.submit(job_id, Submit(submitted(endpoint="fast", lane=3)))
        await self.queue.add("fast", 3, job_id)
        if is_running:
            start = Start("an-actor", max_attempts=3, max_attempts_total=9, now=self.now)
            await self.writer.execute(start, outcome.job)
        return job_id

    async def job(self, job_id: str) -> Job:
        job = await self.writer.load(job_id)
        assert job is not None
        return job


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with database_in(tmp_path) as database:
        yield Bench(database)


async def test_its_jobs_go_on_until_its_time_is_over(bench: Bench) -> None:
    await bench.delete(drain_s=60)
    job_id = await bench.submit()
    await bench.deleted.sweep()
    assert (await bench.job(job_id)).end is None
    assert await bench.endpoints.get("fast") is not None


async def test_then_those_that_wait_fail_and_say_why_and_those_that_run_go_on(
    bench: Bench,
) -> None:
    await bench.delete(drain_s=60)
    waiting, running = await bench.submit(), await bench.submit(is_running=True)
    bench.now += timedelta(seconds=61)
    await bench.deleted.sweep()
    end = (await bench.job(waiting)).end
    assert isinstance(end, Failed)
    assert end.dead_letter is DeadLetter.UNDISPATCHABLE
    assert "'fast' was deleted while this job waited" in end.message
    assert (await bench.job(running)).end is None
    assert await bench.queue.job_ids() == {running}
    assert await bench.endpoints.get("fast") is not None


async def test_its_row_goes_once_neither_jobs_nor_workers_are_left(bench: Bench) -> None:
    await bench.delete(drain_s=60)
    job_id = await bench.submit()
    await bench.cluster.place(WORKER)
    await bench.sweep()
    await bench.queue.remove("fast", 3, job_id)
    await bench.sweep()
    assert await bench.endpoints.get("fast") is not None
    await bench.cluster.remove(WORKER)
    await bench.sweep()
    assert await bench.endpoints.get("fast") is None


async def test_it_waits_for_the_jobs_of_replicas_that_do_not_know_yet(bench: Bench) -> None:
    await bench.delete(drain_s=0)
    await bench.sweep()
    job_id = await bench.submit()
    await bench.sweep()
    end = (await bench.job(job_id)).end
    assert isinstance(end, Failed)
    assert "was deleted" in end.message
    assert await bench.endpoints.get("fast") is None


@pytest.mark.parametrize("is_back", [True, False])
async def test_the_readers_of_its_lanes_go_soon_unless_it_is_made_again(
    bench: Bench, is_back: bool
) -> None:
    await bench.delete(drain_s=0)
    async with bench.queue.reader("fast", 3):
        pass
    for _ in range(2):
        await bench.sweep()
        assert await bench.queue.endpoints() == {"fast"}
        if is_back and await bench.endpoints.get("fast") is None:
            await bench.endpoints.put(Endpoint("fast"))
    await bench.sweep()
    assert await bench.queue.endpoints() == ({"fast"} if is_back else set())


async def test_one_that_was_changed_meanwhile_ends_no_job_by_what_was_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await bench.delete(drain_s=0)
    job_id = await bench.submit()
    later = replace(before.endpoint, ends_at=bench.now + timedelta(seconds=60))
    assert await bench.endpoints.change(replace(before, endpoint=later))

    async def stored_before(*, owner: str | None = None) -> list[StoredEndpoint]:
        return [before]

    monkeypatch.setattr(bench.endpoints, "stored", stored_before)
    await bench.deleted.sweep()
    assert (await bench.job(job_id)).end is None


async def test_endpoints_that_stay_are_let_alone(bench: Bench) -> None:
    await bench.endpoints.put(Endpoint("fast", draining=True))
    await bench.deleted.sweep()
    assert await bench.endpoints.get("fast") is not None
