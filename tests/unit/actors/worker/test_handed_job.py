"""A job that its dispatcher has folded already, and hands over with its entry."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from actors.worker.job import JobRunner, RunOutcome
from engine.reports import Finished, Note
from events.bus.bus import Bus
from events.decisions import Cancel, Erase, FailAttempt, Start, Submit
from events.ids import new_id
from events.job import Job
from events.log import JobWriter, utc_now
from events.memory.queues import MemoryJobQueue
from events.queue import QueueEntry
from events.types import Cancelled, Completed, Event, Started
from storage.images import ImageStore
from telemetry.tracing.ids import TraceIds
from tests.support.events import submitted
from tests.support.failing_log import FailingLog
from tests.support.worker import LANE, ScriptedEngine, job_runner, picture, pictures


class CountingLog(FailingLog):
    """Counts looks at the last event, too."""

    looks = 0

    async def last(self, job_id: str) -> Event | None:
        self.looks += 1
        return await super().last(job_id)


class Silence:
    """A bus on which nobody hears of progress."""

    async def publish(self, subject: str, data: bytes) -> None: ...


class Bench:
    def __init__(self, folder: Path) -> None:
        self.log = CountingLog()
        self.writer = JobWriter(self.log)
        self.engine = ScriptedEngine(pictures(1))
        self.images = ImageStore(folder.as_uri())

    def runner(self, *, is_traced: bool = False) -> JobRunner:
        return job_runner(
            self.engine,
            log=self.log,
            images=self.images,
            bus=cast(Bus, Silence()),
            lease_renew_s=9,
            is_traced=is_traced,
        )

    async def job(self) -> Job:
        job = (await self.writer.submit(new_id(), Submit(submitted(lane=LANE)))).job
        assert job is not None
        return job


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
async def queue() -> MemoryJobQueue:
    return MemoryJobQueue()


@asynccontextmanager
async def entry_of(job: Job, queue: MemoryJobQueue) -> AsyncGenerator[QueueEntry]:
    await queue.add("default", LANE, job.id)
    async with queue.reader("default", LANE) as lane:
        [entry] = await lane.next(most=1, timeout_s=5)
        yield entry


async def test_it_is_not_read_again(bench: Bench, queue: MemoryJobQueue) -> None:
    job = await bench.job()
    async with entry_of(job, queue) as entry:
        assert await bench.runner().run(entry, job) is RunOutcome.COMPLETED
    assert (bench.log.reads[job.id], bench.log.looks) == (0, 0)
    ended = await bench.writer.load(job.id)
    assert ended is not None
    assert isinstance(ended.end, Completed)
    assert await queue.job_ids() == set()


@pytest.mark.parametrize("command", [Cancel(), Erase()], ids=["cancelled", "erased"])
async def test_what_became_of_it_meanwhile_counts(
    bench: Bench, queue: MemoryJobQueue, command: Cancel | Erase
) -> None:
    job = await bench.job()
    await bench.writer.execute(command, job)
    async with entry_of(job, queue) as entry:
        assert await bench.runner().run(entry, job) is RunOutcome.ENDED
    assert bench.engine.orders == []
    ended = await bench.writer.load(job.id)
    assert ended is not None
    assert isinstance(ended.end, Cancelled)
    assert await queue.job_ids() == set()


async def test_an_attempt_that_it_did_not_know_of_is_counted(
    bench: Bench, queue: MemoryJobQueue
) -> None:
    job = await bench.job()
    other = Start("other", max_attempts=3, max_attempts_total=9, now=utc_now())
    await bench.writer.execute(other, job)
    async with entry_of(job, queue) as entry:
        assert await bench.runner().run(entry, job) is RunOutcome.COMPLETED
    ended = await bench.writer.load(job.id)
    assert ended is not None
    assert ended.attempts == 2


@pytest.mark.parametrize("actor", ["other", "a"], ids=["another actor", "the same one before"])
@pytest.mark.parametrize("runs", [True, False])
async def test_one_that_was_started_since_it_was_handed_out_is_left_to_who_did(
    bench: Bench, queue: MemoryJobQueue, actor: str, *, runs: bool
) -> None:
    job = await bench.job()
    start = Start(actor, max_attempts=3, max_attempts_total=9, now=utc_now())
    started = (await bench.writer.execute(start, job)).job
    assert started is not None
    if not runs:
        failed = FailAttempt(actor, "It broke.", final=False)
        started = (await bench.writer.execute(failed, started)).job
    async with entry_of(job, queue) as entry:
        run = bench.runner().run(entry, job, after_attempts=0)
        assert await run is RunOutcome.LOST
    assert bench.engine.orders == []
    assert await bench.writer.load(job.id) == started
    assert await queue.job_ids() == {job.id}


@pytest.mark.parametrize("is_traced", [True, False])
async def test_its_events_say_for_its_trace_what_only_that_tells(
    bench: Bench, queue: MemoryJobQueue, *, is_traced: bool
) -> None:
    job, given_at = await bench.job(), utc_now()
    beside = ("4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",) if is_traced else ()
    end = Finished(1, {"denoise": 0.5}, steps=20, beside=beside, notes=(Note.VAE_TILED,))
    bench.engine.script = [picture(), end]
    async with entry_of(job, queue) as entry:
        await bench.runner(is_traced=is_traced).run(entry, job, given_at=given_at)
    _, started, _, completed = [event.data for event in await bench.log.read(job.id)]
    assert isinstance(started, Started)
    assert isinstance(completed, Completed)
    assert completed.timing is not None
    assert completed.timing.steps == 20
    assert completed.notes == ("vae_tiled",)
    [order] = bench.engine.orders
    if is_traced:
        assert order.name == TraceIds.of(job).attempt_link(1)
        assert (started.given_at, completed.beside) == (given_at, beside)
    else:
        assert order.name == ""
        assert (started.given_at, completed.beside) == (None, None)
