"""Entries are pulled as they arrive, held, dropped when their job ends, and given back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from actors.scheduler.fairness import WaitingJobs
from actors.scheduler.pool import WorkerPool
from actors.scheduler.prefetch import Prefetch
from events.bus.queues import QueueEntry
from events.decisions import Cancel, Start
from events.job import Job
from events.log import utc_now
from events.types import Cancelled
from tests.support.memory.queues import MemoryJobQueue
from tests.support.polling import eventually, running
from tests.support.scheduler.cluster import FakeJobActor
from tests.support.scheduler.jobs import JobsBench

LEASE_S = 30.0
HOLD_S = 1.0
LANE = 3


class FakePool:
    """The pool of one dispatcher, and its slots."""

    def __init__(self) -> None:
        self.slot_index = self
        self.running: set[str] = set()
        self.asked: list[str] = []
        """The jobs about which it was asked whether they run."""

    def slot_of(self, job_id: str) -> tuple[None, SimpleNamespace] | None:
        self.asked.append(job_id)
        if job_id not in self.running:
            return None
        actor = FakeJobActor("slot", 1)
        actor.job_id = job_id
        return None, SimpleNamespace(entry=None, actor=actor)

    def may_run(self, actor: str | None) -> bool:
        return False

    def wake(self) -> None: ...


class PrefetchBench(JobsBench):
    """The dispatchers of one queue, one after the other."""

    def __init__(self) -> None:
        super().__init__(queue=MemoryJobQueue(lease_s=LEASE_S))
        self.waiting = WaitingJobs(quantum=10, runs_some=lambda _: False)
        self.pool = FakePool()

    @asynccontextmanager
    async def open(self, *, most: int = 1000) -> AsyncGenerator[Prefetch]:
        self.waiting = WaitingJobs(quantum=10, runs_some=lambda _: False)
        prefetch = Prefetch(
            "default",
            queue=self.queue,
            writer=self.writer,
            waiting=self.waiting,
            pool=cast(WorkerPool, self.pool),
            most=most,
            hold_s=HOLD_S,
            lease_s=LEASE_S,
        )
        async with running(prefetch.run()):
            yield prefetch

    @asynccontextmanager
    async def holding(self, count: int) -> AsyncGenerator[tuple[Prefetch, list[str]]]:
        """So many jobs are prefetched."""
        jobs = [await self.submit() for _ in range(count)]
        async with self.open() as prefetch:
            await eventually(lambda: len(prefetch) == count)
            yield prefetch, jobs

    async def delivered(self) -> list[str]:
        """The jobs that a successor gets."""
        async with self.queue.consume("default", LANE) as successor:
            return [entry.job_id for entry in await successor.next(most=3, timeout_s=1)]

    async def cancel(self, job_id: str) -> None:
        await self.writer.execute(Cancel(), await self.job(job_id))

    async def start(self, job_id: str) -> None:
        """As the actor of another dispatcher does."""
        command = Start("another@1", max_attempts=3, max_attempts_total=9, now=utc_now())
        await self.writer.execute(command, await self.job(job_id))

    async def forgotten(self, prefetch: Prefetch, job_id: str) -> str:
        """Wait until the job is not in memory any more, so that it will be read again."""
        await eventually(lambda: prefetch._jobs[job_id].job is None)
        return job_id

    async def is_held_on(self, *job_ids: str) -> None:
        """Wait until the holds of the jobs were renewed for longer than one of them lasts."""
        over = time.monotonic() + 2 * HOLD_S

        def is_renewed(job_id: str) -> bool:
            return over < self.queue.held_until(job_id) <= time.monotonic() + HOLD_S

        await eventually(lambda: all(map(is_renewed, job_ids)))

    def order(self) -> list[str]:
        """The jobs that wait, in their turns."""
        found: list[str] = []
        while job := next(self.waiting.candidates(1), None):
            self.waiting.charge(job)
            found.append(job.job_id)
        return found


@pytest.fixture
def bench() -> PrefetchBench:
    return PrefetchBench()


async def test_beyond_the_bound_each_lane_offers_one(bench: PrefetchBench) -> None:
    for lane in (1, 1, 1, 1, 2, 2, 3):
        await bench.submit(lane=lane)
    async with bench.open(most=3) as prefetch:
        await eventually(lambda: len(prefetch) >= 3)
        await bench.is_held_on(*prefetch._jobs)
        assert 3 <= len(prefetch) <= 5
        for job_id in bench.order():
            await prefetch.begin_flight(job_id).entry.ack()
        await eventually(lambda: len(prefetch) > 1)


async def test_a_full_prefetch_hears_of_a_job_that_comes_again(bench: PrefetchBench) -> None:
    runs = await bench.submit()
    bench.pool.running.add(runs)
    async with bench.queue.consume("default", LANE) as entries:
        [entry] = await entries.next(most=1, timeout_s=1)
    waits = [await bench.submit() for _ in range(3)]
    async with bench.open(most=1) as prefetch:
        await eventually(lambda: prefetch)
        await entry.nak()  # its actor hangs
        await eventually(lambda: runs in bench.pool.asked)
        assert bench.order() == waits[:1]


async def test_prefetched_entries_are_held_for_as_long_as_the_dispatcher_lives(
    bench: PrefetchBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def say_nothing(_: QueueEntry) -> None: ...

    async with bench.holding(3) as (_, jobs):
        await bench.is_held_on(*jobs)
        monkeypatch.setattr(QueueEntry, "nak", say_nothing)  # it is killed
    async with bench.open() as prefetch:
        await eventually(lambda: len(prefetch) == 3, within_s=LEASE_S / 2)
        assert bench.order() == jobs


async def test_a_large_job_is_read_again_and_not_kept(bench: PrefetchBench) -> None:
    large = await bench.submit(request={"prompt": "x" * 40_000})
    small = await bench.submit()
    async with bench.open() as prefetch:
        await eventually(lambda: len(prefetch) == 2)
        held = [prefetch.begin_flight(job_id) for job_id in (large, small)]
        assert [each.job is None for each in held] == [True, False]
        job = await prefetch.renew_and_read(held[0])
        assert job is not None
        assert job.id == large
        for each in held:
            await each.entry.ack()


async def test_a_job_that_is_cancelled_after_its_actor_is_gone_ends(bench: PrefetchBench) -> None:
    job_id = await bench.submit()
    await bench.start(job_id)
    async with bench.open() as prefetch:
        await eventually(lambda: len(prefetch) == 1)
        await bench.cancel(job_id)
        assert (await bench.job(job_id)).end is None
        await eventually(lambda: len(prefetch) == 0)
    assert isinstance((await bench.job(job_id)).end, Cancelled)


async def test_prefetched_entries_are_given_back_at_the_end(bench: PrefetchBench) -> None:
    async with bench.holding(3) as (prefetch, jobs):
        prefetch.begin_flight(jobs[0])
    assert await bench.delivered() == jobs[1:]


async def test_what_is_just_read_is_given_back_at_the_end(bench: PrefetchBench) -> None:
    jobs = [await bench.submit() for _ in range(3)]
    is_asked = asyncio.Event()

    async def wait(_: str) -> Job | None:
        is_asked.set()
        return await asyncio.get_running_loop().create_future()

    bench.writer.load = wait  # type: ignore[method-assign]
    async with bench.open():
        await is_asked.wait()
    assert await bench.delivered() == jobs


async def test_one_that_is_taken_has_a_full_lease(bench: PrefetchBench) -> None:
    async with bench.holding(1) as (prefetch, [job_id]):
        await bench.is_held_on(job_id)
        job = await prefetch.renew_and_read(prefetch.begin_flight(job_id))
        assert (job is not None and job.id, len(prefetch)) == (job_id, 0)
        assert bench.queue.held_until(job_id) > time.monotonic() + LEASE_S / 2


async def test_one_that_ended_meanwhile_leaves_the_queue(bench: PrefetchBench) -> None:
    async with bench.holding(2) as (prefetch, [waits, taken]):
        held = prefetch.begin_flight(await bench.forgotten(prefetch, taken))
        await bench.cancel(taken)
        assert await prefetch.renew_and_read(held) is None
        await bench.cancel(waits)
        await eventually(lambda: not prefetch)
    assert await bench.queue.job_ids() == set()
    assert len(bench.waiting) == 1  # the one that was taken


async def test_one_that_another_has_started_is_left_to_it(bench: PrefetchBench) -> None:
    async with bench.holding(2) as (prefetch, [waits, taken]):
        held = prefetch.begin_flight(await bench.forgotten(prefetch, taken))
        await bench.start(taken)
        assert await prefetch.renew_and_read(held) is None
        entry = prefetch._jobs[waits].entry
        await bench.start(waits)
        while prefetch:
            await entry.renew()
            await asyncio.sleep(0.05)
        await entry.nak()  # its actor is gone
        await eventually(lambda: prefetch)
        job = await prefetch.renew_and_read(prefetch.begin_flight(waits))
        assert job is not None
        assert job.attempts == 1
    assert await bench.queue.job_ids() == {waits, taken}


async def test_one_that_comes_again_keeps_its_place(bench: PrefetchBench) -> None:
    async with bench.holding(3) as (prefetch, jobs):
        held = prefetch._jobs[jobs[1]]
        before = held.entry
        await before.nak()
        await eventually(lambda: held.entry is not before)
        assert bench.order() == jobs
