"""What becomes of an endpoint whose row is gone, whoever dispatched it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from actors.dispatch.cluster import ActorUnavailable
from actors.endpoints.gone_endpoints import GoneEndpoints
from events.decisions import Cancel, Submit
from events.errors import JobOfLaterVersion
from events.ids import new_id
from events.job import Job
from events.log import JobWriter
from events.memory.log import MemoryLog
from events.memory.queues import MemoryJobQueue
from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.records import Endpoint
from events.store.tables import ENDPOINTS
from events.types import Cancelled, Failed
from tests.support.database import database_in
from tests.support.events import submitted
from tests.support.workers.cluster import FakeCluster

GRACE_S = 60.0


class Bench:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.endpoints = Endpoints(database)
        self.queue = MemoryJobQueue()
        self.writer = JobWriter(MemoryLog())
        self.cluster = FakeCluster()
        self.now_s = 0.0
        self.gone = self.another()

    def another(self) -> GoneEndpoints:
        """As a dispatcher has it that starts now."""
        return GoneEndpoints(
            endpoints=self.endpoints,
            queue=self.queue,
            writer=self.writer,
            cluster=self.cluster,
            grace_s=GRACE_S,
            clock=lambda: self.now_s,
        )

    async def after(self, seconds: float) -> None:
        self.now_s += seconds
        await self.gone.sweep()

    async def remove_row(self, id: str) -> None:
        """As an operator does."""
        await self.database.execute(sa.delete(ENDPOINTS).where(ENDPOINTS.c.id == id))

    async def submit(self, endpoint: str, *, lane: int = 3, deadline_s: float = 60.0) -> str:
        job_id = new_id()
        data = submitted(endpoint=endpoint, lane=lane, deadline_s=deadline_s)
        await self.writer.submit(job_id, Submit(data))
        await self.queue.add(endpoint, lane, job_id)
        return job_id

    async def dispatched(self, endpoint: str) -> None:
        """It was dispatched once: its lanes were read, and it has a worker."""
        async with self.queue.reader(endpoint, 3):
            await self.cluster.place(f"worker:{endpoint}:d1:0")

    async def job(self, job_id: str) -> Job:
        job = await self.writer.load(job_id)
        assert job is not None
        return job


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """With a database in which the endpoint `fast` had a row once."""
    async with database_in(tmp_path) as database:
        bench = Bench(database)
        await bench.endpoints.note(["fast"])
        yield bench


@pytest.mark.parametrize("has_any", [False, True], ids=["empty", "older backup"])
async def test_a_database_that_lost_its_rows_removes_no_endpoint(
    bench: Bench, has_any: bool
) -> None:
    """One that was restored, or made anew, does not say that an operator removed them."""
    await bench.dispatched("slow")
    job_id = await bench.submit("slow")
    if has_any:
        await bench.endpoints.put(Endpoint("default"))
    await bench.after(0)
    await bench.after(GRACE_S)
    await bench.after(100 * GRACE_S)
    assert (await bench.job(job_id)).end is None
    assert await bench.queue.endpoints() == {"slow"}
    assert set(bench.cluster.groups) == {"worker:slow:d1:0"}


async def test_an_endpoint_that_cannot_be_removed_holds_up_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(worker: str, **_: object) -> None:
        raise ActorUnavailable(worker)

    monkeypatch.setattr(bench.cluster, "remove", refuse)
    await bench.dispatched("fast")
    await bench.endpoints.note(["later"])
    job_id = await bench.submit("later")
    await bench.after(0)
    await bench.after(GRACE_S)
    assert (await bench.job(job_id)).end is not None


async def test_an_endpoint_that_is_back_at_the_last_moment_keeps_its_workers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.dispatched("fast")
    await bench.after(0)
    noted = bench.endpoints.noted

    async def back_meanwhile() -> set[str]:
        await bench.endpoints.put(Endpoint("fast"))
        return await noted()

    monkeypatch.setattr(bench.endpoints, "noted", back_meanwhile)
    await bench.after(GRACE_S)
    assert set(bench.cluster.groups) == {"worker:fast:d1:0"}


async def test_a_job_of_an_endpoint_that_nobody_knows_ends_at_its_deadline(bench: Bench) -> None:
    late, patient = await bench.submit("slow", deadline_s=0.01), await bench.submit("slow")
    await asyncio.sleep(0.02)
    await bench.after(0)
    await bench.after(GRACE_S)
    end = (await bench.job(late)).end
    assert isinstance(end, Failed)
    assert "Timed out" in end.message
    assert "'slow'" in end.message
    assert (await bench.job(patient)).end is None
    assert await bench.queue.job_ids() == {patient}


async def test_nothing_is_left_of_an_endpoint_that_is_gone(bench: Bench) -> None:
    await bench.dispatched("fast")
    jobs = [await bench.submit("fast", lane=lane % 64) for lane in range(100)]
    await bench.after(0)
    await bench.after(GRACE_S - 1)
    assert await bench.queue.depth("fast") == len(jobs)
    await bench.after(1)
    for job_id in jobs:
        end = (await bench.job(job_id)).end
        assert isinstance(end, Failed)
        assert "'fast' was removed" in end.message
        assert "Submit it again" in end.message
    assert await bench.queue.endpoints() == set()
    assert bench.cluster.groups == {}


async def test_an_endpoint_that_has_a_row_is_let_alone(bench: Bench) -> None:
    await bench.endpoints.put(Endpoint("fast-2"))
    for endpoint in ("fast", "fast-2"):
        await bench.dispatched(endpoint)
    kept, lost = await bench.submit("fast-2"), await bench.submit("fast")
    await bench.after(0)
    await bench.after(GRACE_S)
    assert (await bench.job(kept)).end is None
    assert (await bench.job(lost)).end is not None
    assert await bench.queue.endpoints() == {"fast-2"}
    assert set(bench.cluster.groups) == {"worker:fast-2:d1:0"}


async def test_a_row_that_comes_back_in_time_is_in_time(bench: Bench) -> None:
    job_id = await bench.submit("fast")
    await bench.after(0)
    await bench.endpoints.put(Endpoint("fast"))
    await bench.after(GRACE_S)
    await bench.remove_row("fast")
    await bench.after(1)
    await bench.after(GRACE_S - 1)
    assert (await bench.job(job_id)).end is None
    await bench.after(1)
    assert (await bench.job(job_id)).end is not None


async def test_it_is_found_by_a_dispatcher_that_never_knew_it(bench: Bench) -> None:
    await bench.dispatched("fast")
    await bench.after(0)
    bench.gone = bench.another()
    await bench.after(0)
    await bench.after(GRACE_S)
    assert bench.cluster.groups == {}
    assert await bench.queue.endpoints() == set()


async def test_a_job_that_comes_to_the_queue_later_ends_too(bench: Bench) -> None:
    await bench.dispatched("fast")
    await bench.after(0)
    await bench.after(GRACE_S)
    late = await bench.submit("fast")
    await bench.after(1)
    await bench.after(GRACE_S)
    assert (await bench.job(late)).end is not None


async def test_a_job_that_ended_otherwise_keeps_its_end(bench: Bench) -> None:
    job_id = await bench.submit("fast")
    await bench.writer.execute(Cancel(), await bench.job(job_id))
    await bench.after(0)
    await bench.after(GRACE_S)
    assert isinstance((await bench.job(job_id)).end, Cancelled)
    assert await bench.queue.job_ids() == set()


async def test_a_row_that_comes_back_meanwhile_saves_the_jobs_that_are_left(bench: Bench) -> None:
    jobs = [await bench.submit("fast") for _ in range(100)]
    await bench.after(0)
    remove = bench.queue.remove

    async def remove_and_bring_back(endpoint: str, lane: int, job_id: str) -> None:
        await remove(endpoint, lane, job_id)
        await bench.endpoints.put(Endpoint("fast"))

    bench.queue.remove = remove_and_bring_back  # type: ignore[method-assign]
    await bench.after(GRACE_S)
    ends = await asyncio.gather(*(bench.job(job_id) for job_id in jobs))
    assert 0 < sum(job.end is None for job in ends) < len(jobs)
    assert await bench.queue.endpoints() == {"fast"}


async def test_a_job_that_only_a_later_version_can_read_is_left_to_it(bench: Bench) -> None:
    later, other = await bench.submit("fast"), await bench.submit("fast")
    load = bench.writer.load

    async def load_what_is_known(job_id: str) -> Job | None:
        if job_id == later:
            raise JobOfLaterVersion
        return await load(job_id)

    bench.writer.load = load_what_is_known  # type: ignore[method-assign]
    await bench.after(0)
    await bench.after(GRACE_S)
    assert (await bench.job(other)).end is not None
    assert await bench.queue.job_ids() == {later}
    bench.writer.load = load  # type: ignore[method-assign]
    await bench.after(1)
    assert (await bench.job(later)).end is not None
