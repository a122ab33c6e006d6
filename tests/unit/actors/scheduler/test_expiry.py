"""Jobs that wait past their deadline, and entries that are lost; tests move the clock."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import cast

import pytest

from actors.scheduler.expiry import EntryReaper, Expiry
from actors.scheduler.pool import WorkerPool
from actors.scheduler.prefetch import Prefetch
from events.bus.queues import QueuedJob
from events.decisions import Command, Start, Submit
from events.errors import JobDamaged, JobOfLaterVersion, LogFull, LogUnavailable
from events.ids import new_id
from events.job import Job
from events.log import JobWriter, utc_now
from events.types import Failed
from tests.support.events import LATER, submitted
from tests.support.memory.log import MemoryLog
from tests.support.memory.queues import MemoryJobQueue
from tests.support.polling import eventually, running
from tests.support.scheduler.jobs import JobsBench


class CountingQueue(MemoryJobQueue):
    """Counts the entries that are read; is away where a test says so."""

    entries_read = 0
    is_away = False

    def is_made_again(self) -> None:
        """The stream was lost with its entries."""
        super().__init__()

    async def queued(self, endpoint: str, *, after: int, most: int) -> list[QueuedJob]:
        if self.is_away:
            raise LogUnavailable
        found = await super().queued(endpoint, after=after, most=most)
        self.entries_read += len(found)
        return found


class FakePool:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.slot_index = self

    def slot_of(self, job_id: str) -> str | None:
        return job_id if job_id in self._bench.running else None

    def trouble(self) -> str | None:
        return self._bench.trouble


class Bench(JobsBench):
    def __init__(self) -> None:
        self.now = utc_now()
        self.log = MemoryLog()
        super().__init__(queue=CountingQueue(), writer=JobWriter(self.log, now=lambda: self.now))
        self.running: set[str] = set()
        self.trouble: str | None = None
        self.deadlines = self.another()

    def another(self) -> Expiry:
        """As a dispatcher has it that starts now."""
        return Expiry(
            "default",
            queue=self.queue,
            writer=self.writer,
            pool=cast(WorkerPool, FakePool(self)),
            period_s=1,
            now=lambda: self.now,
        )

    async def submit(self, deadline_s: float) -> str:
        job_id = new_id()
        outcome = await self.writer.submit(job_id, Submit(submitted(deadline_s=deadline_s)))
        assert outcome.job is not None
        await self.queue.add("default", 3, job_id, deadline=outcome.job.deadline)
        return job_id

    async def after(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        await self.deadlines.sweep()

    async def has_timed_out(self, job_id: str) -> bool:
        end = (await self.job(job_id)).end
        is_queued = job_id in await self.queue.job_ids()
        assert isinstance(end, Failed) != is_queued
        return not is_queued


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_job_ends_at_its_deadline_wherever_it_stands(bench: Bench) -> None:
    jobs = {deadline_s: await bench.submit(deadline_s) for deadline_s in (30, 10, 20, 10.5)}
    for seconds in range(32):
        if seconds == 3:  # what is queued later is seen
            jobs[11] = await bench.submit(9)
        if seconds == 5:  # a successor finds what its predecessor knew
            bench.deadlines = bench.another()
        await bench.after(1 if seconds else 0)
        for deadline_s, job_id in jobs.items():
            assert await bench.has_timed_out(job_id) == (seconds >= deadline_s)


async def test_a_job_that_timed_out_is_told_what_kept_it_waiting(bench: Bench) -> None:
    job_id = await bench.submit(10)
    bench.trouble = "No worker is ready: the cluster has no room for a worker."
    await bench.after(10)
    end = await bench.failure(job_id)
    assert end.message == f"Timed out: the job did not end within 10 s. {bench.trouble}"


async def test_a_long_queue_is_read_about_twice(bench: Bench) -> None:
    jobs = [await bench.submit(3600 + number / 100) for number in range(1000)]
    for _ in range(500):
        await bench.after(1)
    assert bench.queue.entries_read == len(jobs)
    bench.queue.entries_read = 0
    await bench.after(3120)
    assert all([await bench.has_timed_out(job_id) for job_id in jobs])
    assert bench.queue.entries_read <= 2 * len(jobs)


async def test_a_job_that_runs_keeps_its_own_time_while_it_does(bench: Bench) -> None:
    job_id = await bench.submit(10)
    bench.running.add(job_id)
    await bench.after(11)
    assert not await bench.has_timed_out(job_id)
    bench.running.clear()  # it came back to the queue
    await bench.after(10)
    assert await bench.has_timed_out(job_id)


async def test_a_queue_that_was_away_or_made_again_is_read_again(bench: Bench) -> None:
    for _ in range(3):
        await bench.submit(5000)
    await bench.after(1)
    bench.queue.is_away = True
    with pytest.raises(LogUnavailable):
        await bench.after(1)
    bench.queue.is_away = False
    bench.queue.is_made_again()
    jobs = [await bench.submit(10) for _ in range(2)]
    await bench.after(1)
    await bench.after(9)
    assert all([await bench.has_timed_out(job_id) for job_id in jobs])


@pytest.mark.parametrize("error", [RuntimeError("a bug"), JobDamaged(), JobOfLaterVersion()])
async def test_an_error_about_one_job_holds_up_no_other(bench: Bench, error: Exception) -> None:
    bad, good = await bench.submit(10), await bench.submit(10)
    load = bench.writer.load

    async def failing_load(job_id: str) -> Job | None:
        if job_id == bad:
            raise error
        return await load(job_id)

    bench.writer.load = failing_load  # type: ignore[method-assign]
    await bench.after(11)
    assert await bench.has_timed_out(good)
    bench.writer.load = load  # type: ignore[method-assign]
    await bench.after(60)  # as a version does that can read it
    assert await bench.has_timed_out(bad) == isinstance(error, JobOfLaterVersion)


ACTOR = "actor"
PATIENCE_S = 90.0


class LostEntryBench(JobsBench):
    def __init__(self, *, patience_s: float = PATIENCE_S) -> None:
        super().__init__()
        self.time = 0.0
        self.known: set[str] = set()
        self.has_room = True
        self.reaper = EntryReaper(
            "default",
            queue=self.queue,
            writer=self.writer,
            prefetch=cast(Prefetch, self),
            patience_s=patience_s,
            clock=lambda: self.time,
        )

    def knows(self, job_id: str) -> bool:
        """As a prefetch does, which this bench stands for."""
        return job_id in self.known

    async def submit(self) -> str:
        """A job whose entry is held for good by nobody."""
        job_id = await super().submit()
        async with self.queue.consume("default", 3) as entries:
            [entry] = await entries.next(most=1, timeout_s=1)
            await entry.redeliver_in(math.inf)
        return job_id

    async def start(self, job_id: str) -> None:
        await self.write(job_id, Start(ACTOR, max_attempts=3, max_attempts_total=9, now=utc_now()))

    async def write(self, job_id: str, command: Command) -> None:
        await self.writer.execute(command, await self.job(job_id))

    async def look_after(self, seconds: float) -> None:
        self.time += seconds
        await self.reaper.look()

    async def delivered(self) -> list[str]:
        async with self.queue.consume("default", 3) as entries:
            return [entry.job_id for entry in await entries.next(most=9, timeout_s=0)]


@pytest.fixture
def lost() -> LostEntryBench:
    return LostEntryBench()


async def test_an_entry_of_nobody_comes_again_after_some_time(lost: LostEntryBench) -> None:
    job_id = await lost.submit()
    await lost.look_after(0)
    await lost.look_after(PATIENCE_S - 1)
    assert await lost.delivered() == []
    await lost.look_after(1)
    assert await lost.delivered() == [job_id]
    await lost.look_after(PATIENCE_S - 1)
    assert await lost.delivered() == []  # its time begins again


async def is_prefetched_for_a_while(lost: LostEntryBench, job_id: str) -> None:
    lost.known.add(job_id)
    await lost.look_after(PATIENCE_S / 2)
    lost.known.clear()
    await lost.look_after(PATIENCE_S / 2)


async def runs_elsewhere(lost: LostEntryBench, job_id: str) -> None:
    """On a worker that this dispatcher no longer owns."""
    await lost.start(job_id)
    await lost.look_after(PATIENCE_S)


async def finds_a_full_prefetch(lost: LostEntryBench, _: str) -> None:
    lost.has_room = False
    await lost.look_after(PATIENCE_S)
    lost.has_room = True
    await lost.look_after(PATIENCE_S - 1)


@pytest.mark.parametrize(
    "happens", [is_prefetched_for_a_while, runs_elsewhere, finds_a_full_prefetch]
)
async def test_the_entry_is_left_of_a_job_that(
    lost: LostEntryBench, happens: Callable[[LostEntryBench, str], Awaitable[None]]
) -> None:
    job_id = await lost.submit()
    await lost.look_after(0)
    await happens(lost, job_id)
    assert await lost.delivered() == []


async def test_that_of_a_job_which_has_ended_is_removed(lost: LostEntryBench) -> None:
    await lost.queue.add("default", 3, new_id(), deadline=LATER)
    await lost.look_after(0)
    await lost.look_after(PATIENCE_S)
    assert await lost.queue.job_ids() == set()


async def test_an_outage_forgets_nothing(
    lost: LostEntryBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await lost.submit()
    await lost.look_after(0)

    async def away(*_: object, **__: object) -> None:
        raise LogUnavailable

    with monkeypatch.context() as outage:
        outage.setattr(lost.queue, "put_again", away)
        with pytest.raises(LogUnavailable):
            await lost.look_after(PATIENCE_S)
    await lost.look_after(0)
    assert await lost.delivered() == [job_id]


async def test_a_full_log_does_not_end_the_reaper(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = LostEntryBench(patience_s=0.01)
    await lost.submit()
    refusals = 0

    async def refuse(*_: object, **__: object) -> None:
        nonlocal refusals
        refusals += 1
        raise LogFull

    def is_refused_again() -> bool:
        lost.time += PATIENCE_S
        return refusals > 1

    monkeypatch.setattr(lost.queue, "put_again", refuse)
    async with running(lost.reaper.run()):
        await eventually(is_refused_again, within_s=5)
