"""Endpoints that are deleted, and endpoints whose rows are gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from actors.scheduler.cluster import ActorUnavailable
from actors.scheduler.endpoint_removal import DeletedEndpoints, RowlessEndpoints
from events.decisions import Cancel, Start
from events.log import JobWriter, utc_now
from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.records import Endpoint, StoredEndpoint
from events.store.tables import ENDPOINTS
from events.types import Cancelled, DeadLetter
from tests.support.database import database_in
from tests.support.failing_log import FailingLog
from tests.support.scheduler.cluster import FakeCluster
from tests.support.scheduler.jobs import JobsBench

WORKER = "worker:fast:r-1:0"


class Bench(JobsBench):
    def __init__(self, database: Database) -> None:
        self.log = FailingLog()
        super().__init__(writer=JobWriter(self.log))
        self.database = database
        self.endpoints = Endpoints(database)
        self.cluster = FakeCluster()
        self.clock = 0.0


class DeletedBench(Bench):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.now = utc_now()
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
        job_id = await super().submit(endpoint="fast")
        if is_running:
            start = Start("an-actor", max_attempts=3, max_attempts_total=9, now=self.now)
            await self.writer.execute(start, await self.job(job_id))
        return job_id


@pytest.fixture
async def deleted(tmp_path: Path) -> AsyncIterator[DeletedBench]:
    async with database_in(tmp_path) as database:
        yield DeletedBench(database)


async def test_at_its_end_waiting_jobs_fail_and_running_jobs_go_on(deleted: DeletedBench) -> None:
    await deleted.delete(drain_s=60)
    await deleted.endpoints.put(Endpoint("stays", draining=True))
    waiting, running = await deleted.submit(), await deleted.submit(is_running=True)
    await deleted.deleted.sweep()
    assert (await deleted.job(waiting)).end is None
    deleted.now += timedelta(seconds=61)
    await deleted.deleted.sweep()
    end = await deleted.failure(waiting)
    assert end.dead_letter is DeadLetter.UNDISPATCHABLE
    assert "'fast' was deleted while this job waited" in end.message
    assert (await deleted.job(running)).end is None
    assert await deleted.queue.job_ids() == {running}
    assert {each.id for each in await deleted.endpoints.all()} == {"fast", "stays"}


async def test_its_row_goes_once_neither_jobs_nor_workers_are_left(deleted: DeletedBench) -> None:
    await deleted.delete(drain_s=60)
    job_id = await deleted.submit()
    await deleted.cluster.place(WORKER)
    await deleted.sweep()
    await deleted.queue.remove("fast", 3, job_id)
    await deleted.sweep()
    assert await deleted.endpoints.get("fast") is not None
    await deleted.cluster.remove(WORKER)
    await deleted.sweep()
    assert await deleted.endpoints.get("fast") is None


async def test_it_waits_for_jobs_of_replicas_that_do_not_know_yet(deleted: DeletedBench) -> None:
    await deleted.delete(drain_s=0)
    await deleted.sweep()
    job_id = await deleted.submit()
    await deleted.sweep()
    end = await deleted.failure(job_id)
    assert "was deleted" in end.message
    assert await deleted.endpoints.get("fast") is None


@pytest.mark.parametrize("is_back", [True, False])
async def test_the_readers_of_its_lanes_go_soon_unless_it_is_made_again(
    deleted: DeletedBench, is_back: bool
) -> None:
    await deleted.delete(drain_s=0)
    async with deleted.queue.consume("fast", 3):
        pass
    for _ in range(2):
        await deleted.sweep()
        assert await deleted.queue.endpoints() == {"fast"}
        if is_back and await deleted.endpoints.get("fast") is None:
            await deleted.endpoints.put(Endpoint("fast"))
    await deleted.sweep()
    assert await deleted.queue.endpoints() == ({"fast"} if is_back else set())


async def test_one_that_was_changed_meanwhile_ends_no_job_by_what_was_read(
    deleted: DeletedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await deleted.delete(drain_s=0)
    job_id = await deleted.submit()
    later = replace(before.endpoint, ends_at=deleted.now + timedelta(seconds=60))
    assert await deleted.endpoints.change(replace(before, endpoint=later))

    async def stored_before(*, owner: str | None = None) -> list[StoredEndpoint]:
        return [before]

    monkeypatch.setattr(deleted.endpoints, "stored", stored_before)
    await deleted.deleted.sweep()
    assert (await deleted.job(job_id)).end is None


GRACE_S = 60.0


class GoneBench(Bench):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.gone = self.another()

    def another(self) -> RowlessEndpoints:
        """As a dispatcher has it that starts now."""
        return RowlessEndpoints(
            endpoints=self.endpoints,
            queue=self.queue,
            writer=self.writer,
            cluster=self.cluster,
            grace_s=GRACE_S,
            clock=lambda: self.clock,
        )

    async def after(self, seconds: float) -> None:
        self.clock += seconds
        await self.gone.sweep()

    async def after_grace(self) -> None:
        """Sweep at the start and at the end of the time of grace."""
        await self.after(0)
        await self.after(GRACE_S)

    async def remove_row(self, id: str) -> None:
        """As an operator does."""
        await self.database.execute(sa.delete(ENDPOINTS).where(ENDPOINTS.c.id == id))

    async def dispatched(self, endpoint: str) -> None:
        """It was dispatched once: its lanes were read, and it has a worker."""
        async with self.queue.consume(endpoint, 3):
            await self.cluster.place(f"worker:{endpoint}:d1:0")


@pytest.fixture
async def gone(tmp_path: Path) -> AsyncIterator[GoneBench]:
    """With a database in which the endpoint `fast` had a row once."""
    async with database_in(tmp_path) as database:
        gone = GoneBench(database)
        await gone.endpoints.note(["fast"])
        yield gone


@pytest.mark.parametrize("has_any", [False, True], ids=["empty", "older backup"])
async def test_lost_rows_of_a_database_remove_no_endpoint(gone: GoneBench, has_any: bool) -> None:
    """One that was restored, or made anew, does not say that an operator removed them."""
    await gone.dispatched("slow")
    job_id = await gone.submit(endpoint="slow")
    if has_any:
        await gone.endpoints.put(Endpoint("default"))
    await gone.after_grace()
    await gone.after(100 * GRACE_S)
    assert (await gone.job(job_id)).end is None
    assert await gone.queue.endpoints() == {"slow"}
    assert set(gone.cluster.groups) == {"worker:slow:d1:0"}


async def test_an_endpoint_that_cannot_be_removed_holds_up_no_other(
    gone: GoneBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(worker: str, **_: object) -> None:
        raise ActorUnavailable(worker)

    monkeypatch.setattr(gone.cluster, "remove", refuse)
    await gone.dispatched("fast")
    await gone.endpoints.note(["later"])
    job_id = await gone.submit(endpoint="later")
    await gone.after_grace()
    assert (await gone.job(job_id)).end is not None


async def test_an_endpoint_that_is_back_at_the_last_moment_keeps_its_workers(
    gone: GoneBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gone.dispatched("fast")
    await gone.after(0)
    noted = gone.endpoints.noted

    async def back_meanwhile() -> set[str]:
        await gone.endpoints.put(Endpoint("fast"))
        return await noted()

    monkeypatch.setattr(gone.endpoints, "noted", back_meanwhile)
    await gone.after(GRACE_S)
    assert set(gone.cluster.groups) == {"worker:fast:d1:0"}


async def test_a_job_of_an_endpoint_that_nobody_knows_ends_at_its_deadline(gone: GoneBench) -> None:
    late, patient = (
        await gone.submit(endpoint="slow", deadline_s=0.01),
        await gone.submit(endpoint="slow"),
    )
    await asyncio.sleep(0.02)
    await gone.after_grace()
    end = await gone.failure(late)
    assert "Timed out" in end.message
    assert "'slow'" in end.message
    assert (await gone.job(patient)).end is None
    assert await gone.queue.job_ids() == {patient}


async def test_nothing_is_left_of_an_endpoint_that_is_gone(gone: GoneBench) -> None:
    await gone.dispatched("fast")
    jobs = [await gone.submit(endpoint="fast", lane=lane % 64) for lane in range(100)]
    cancelled = await gone.submit(endpoint="fast")
    await gone.writer.execute(Cancel(), await gone.job(cancelled))
    gone.gone = gone.another()  # a dispatcher that never knew it
    await gone.after(0)
    await gone.after(GRACE_S - 1)
    assert await gone.queue.depth("fast") == len(jobs) + 1
    await gone.after(1)
    assert isinstance((await gone.job(cancelled)).end, Cancelled)
    for job_id in jobs:
        end = await gone.failure(job_id)
        assert "'fast' was removed" in end.message
        assert "Submit it again" in end.message
    assert await gone.queue.endpoints() == set()
    assert gone.cluster.groups == {}
    late = await gone.submit(endpoint="fast")
    await gone.after(1)
    await gone.after(GRACE_S)
    assert (await gone.job(late)).end is not None


async def test_an_endpoint_that_has_a_row_is_let_alone(gone: GoneBench) -> None:
    await gone.endpoints.put(Endpoint("fast-2"))
    for endpoint in ("fast", "fast-2"):
        await gone.dispatched(endpoint)
    kept, lost = await gone.submit(endpoint="fast-2"), await gone.submit(endpoint="fast")
    await gone.after_grace()
    assert (await gone.job(kept)).end is None
    assert (await gone.job(lost)).end is not None
    assert await gone.queue.endpoints() == {"fast-2"}
    assert set(gone.cluster.groups) == {"worker:fast-2:d1:0"}


async def test_a_row_that_comes_back_in_time_is_in_time(gone: GoneBench) -> None:
    job_id = await gone.submit(endpoint="fast")
    await gone.after(0)
    await gone.endpoints.put(Endpoint("fast"))
    await gone.after(GRACE_S)
    await gone.remove_row("fast")
    await gone.after(1)
    await gone.after(GRACE_S - 1)
    assert (await gone.job(job_id)).end is None
    await gone.after(1)
    assert (await gone.job(job_id)).end is not None


async def test_a_row_that_comes_back_meanwhile_saves_the_remaining_jobs(gone: GoneBench) -> None:
    jobs = [await gone.submit(endpoint="fast") for _ in range(100)]
    await gone.after(0)
    remove = gone.queue.remove

    async def remove_and_bring_back(endpoint: str, lane: int, job_id: str) -> None:
        await remove(endpoint, lane, job_id)
        await gone.endpoints.put(Endpoint("fast"))

    gone.queue.remove = remove_and_bring_back  # type: ignore[method-assign]
    await gone.after(GRACE_S)
    ends = await asyncio.gather(*(gone.job(job_id) for job_id in jobs))
    assert 0 < sum(job.end is None for job in ends) < len(jobs)
    assert await gone.queue.endpoints() == {"fast"}


async def test_a_job_that_only_a_later_version_can_read_is_left_to_it(gone: GoneBench) -> None:
    later, other = await gone.submit(endpoint="fast"), await gone.submit(endpoint="fast")
    gone.log.of_later_version.add(later)
    await gone.after_grace()
    assert (await gone.job(other)).end is not None
    assert await gone.queue.job_ids() == {later}
    gone.log.of_later_version.clear()
    await gone.after(1)
    assert (await gone.job(later)).end is not None
