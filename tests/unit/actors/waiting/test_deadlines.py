"""Jobs that wait past their deadline, with a clock that only a test moves."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from actors.waiting.deadlines import Deadlines
from events.decisions import Cancel, Submit
from events.errors import JobDamaged, JobOfLaterVersion, LogUnavailable
from events.ids import new_id
from events.job import Job
from events.log import JobWriter, utc_now
from events.memory.log import MemoryLog
from events.memory.queues import MemoryJobQueue
from events.queue import QueuedJob
from events.types import Failed
from tests.support.events import submitted


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


class Bench:
    def __init__(self) -> None:
        self.now = utc_now()
        self.queue = CountingQueue()
        self.log = MemoryLog()
        self.writer = JobWriter(self.log, now=self.clock)
        self.running: set[str] = set()
        self.trouble: str | None = None
        self.deadlines = self.another()

    def clock(self) -> datetime:
        return self.now

    def another(self) -> Deadlines:
        """As a dispatcher has it that starts now."""
        return Deadlines(
            "default",
            queue=self.queue,
            writer=self.writer,
            is_running=lambda job_id: job_id in self.running,
            why=lambda: self.trouble,
            period_s=1,
            now=self.clock,
        )

    async def submit(self, deadline_s: float, *, says_deadline: bool = True) -> str:
        job_id = new_id()
        outcome = await self.writer.submit(job_id, Submit(submitted(deadline_s=deadline_s)))
        assert outcome.job is not None
        deadline = outcome.job.deadline if says_deadline else None
        await self.queue.add("default", 3, job_id, deadline=deadline)
        return job_id

    async def after(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        await self.deadlines.sweep()

    async def job(self, job_id: str) -> Job:
        job = await self.writer.load(job_id)
        assert job is not None
        return job

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
        await bench.after(1 if seconds else 0)
        for deadline_s, job_id in jobs.items():
            assert await bench.has_timed_out(job_id) == (seconds >= deadline_s)


async def test_a_job_that_timed_out_is_told_what_kept_it_waiting(bench: Bench) -> None:
    job_id = await bench.submit(10)
    bench.trouble = "No worker got ready: the cluster has no room for one."
    await bench.after(10)
    end = (await bench.job(job_id)).end
    assert isinstance(end, Failed)
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


async def test_what_is_queued_later_is_seen(bench: Bench) -> None:
    await bench.submit(1000)
    await bench.after(1)
    urgent = await bench.submit(5)
    await bench.after(1)
    await bench.after(4)
    assert await bench.has_timed_out(urgent)


async def test_a_successor_finds_what_its_predecessor_knew(bench: Bench) -> None:
    job_id = await bench.submit(10)
    await bench.after(1)
    bench.deadlines = bench.another()
    await bench.after(9)
    assert await bench.has_timed_out(job_id)


async def test_an_entry_that_does_not_say_its_deadline_has_the_one_of_its_job(
    bench: Bench,
) -> None:
    job_id = await bench.submit(10, says_deadline=False)
    await bench.after(9)
    assert not await bench.has_timed_out(job_id)
    await bench.after(1)
    assert await bench.has_timed_out(job_id)


async def test_a_job_that_runs_keeps_its_own_time_while_it_does(bench: Bench) -> None:
    job_id = await bench.submit(10)
    bench.running.add(job_id)
    await bench.after(11)
    assert not await bench.has_timed_out(job_id)
    bench.running.clear()  # it came back to the queue
    await bench.after(10)
    assert await bench.has_timed_out(job_id)


async def test_a_job_that_ended_otherwise_keeps_its_end(bench: Bench) -> None:
    job_id = await bench.submit(10)
    await bench.writer.execute(Cancel(), await bench.job(job_id))
    end = (await bench.job(job_id)).end
    await bench.after(11)
    assert (await bench.job(job_id)).end == end
    assert await bench.queue.job_ids() == set()


async def test_a_queue_that_was_away_or_begun_anew_is_read_again(bench: Bench) -> None:
    for _ in range(3):
        await bench.submit(5000)
    await bench.after(1)
    bench.queue.is_away = True
    with pytest.raises(LogUnavailable):
        await bench.after(1)
    bench.queue.is_away = False
    bench.queue._messages.by_sequence.clear()  # the stream was lost
    bench.queue._messages.stored = 0
    job_id = await bench.submit(10)
    await bench.after(601)
    assert await bench.has_timed_out(job_id)


async def test_a_queue_that_was_made_again_is_read_at_once(bench: Bench) -> None:
    for _ in range(3):
        await bench.submit(5000)
    await bench.after(1)
    bench.queue.is_made_again()
    jobs = [await bench.submit(10) for _ in range(2)]
    await bench.after(1)
    await bench.after(9)
    assert all([await bench.has_timed_out(job_id) for job_id in jobs])


@pytest.mark.parametrize("error", [RuntimeError("a bug"), JobDamaged(), JobOfLaterVersion()])
async def test_an_error_about_one_job_keeps_no_other_waiting(
    bench: Bench, error: Exception
) -> None:
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
