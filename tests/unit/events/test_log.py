"""JobWriter over the log in memory."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from events.decisions import Cancel, Complete, ConfirmCancel, FailAttempt, Start, StoreImage, Submit
from events.errors import ReadTimeout
from events.ids import new_id
from events.job import Job, fold
from events.log import Appended, Conflict, JobWriter
from events.types import CancelRequested, Event, ImageStored
from tests.support.events import JOB_ID, START, image, submitted
from tests.support.memory.log import MemoryLog
from tests.support.patience import FACTOR


class SlowLog(MemoryLog):
    """Lets the other writers go first, so that their appends conflict."""

    async def append(self, event: Event, *, expected: int) -> Appended | Conflict:
        for _ in range(3):
            await asyncio.sleep(0)
        return await super().append(event, expected=expected)


@pytest.fixture
def log() -> MemoryLog:
    return SlowLog()


@pytest.fixture
def writer(log: MemoryLog) -> JobWriter:
    return JobWriter(log, now=lambda: START)


def start(actor: str) -> Start:
    return Start(actor, max_attempts=3, max_attempts_total=9, now=START + timedelta(seconds=1))


class SilentLog(MemoryLog):
    """Refuses every append, and shows nothing that came before it."""

    async def append(self, event: Event, *, expected: int) -> Appended | Conflict:
        await asyncio.sleep(0)
        return Conflict(())


async def submit(writer: JobWriter) -> Job:
    outcome = await writer.submit(JOB_ID, Submit(submitted(images=1)), traceparent="00-trace-01")
    assert outcome.job is not None
    return outcome.job


async def run(writer: JobWriter) -> Job:
    outcome = await writer.execute(start("a"), await submit(writer))
    assert outcome.job is not None
    return outcome.job


async def test_a_submission_is_stored(log: MemoryLog, writer: JobWriter) -> None:
    outcome = await writer.submit(JOB_ID, Submit(submitted()), traceparent="00-trace-01")
    assert outcome.added == (submitted(),)
    [event] = await log.read(JOB_ID)
    assert (event.job_id, event.version, event.time) == (JOB_ID, 1, START)
    assert event.traceparent == "00-trace-01"
    assert outcome.job == fold([event]) == await writer.load(JOB_ID)


async def test_submits_at_the_same_time_create_one_job(log: MemoryLog, writer: JobWriter) -> None:
    outcomes = await asyncio.gather(
        *(writer.submit(JOB_ID, Submit(submitted(fingerprint=f"{n}"))) for n in range(8))
    )
    assert sum(len(outcome.added) for outcome in outcomes) == 1
    assert len({outcome.job.submitted.fingerprint for outcome in outcomes if outcome.job}) == 1
    assert len(await log.read(JOB_ID)) == 1


async def test_events_of_a_job_keep_its_trace_and_count_up(
    log: MemoryLog, writer: JobWriter
) -> None:
    job = await run(writer)
    await writer.submit(new_id(), Submit(submitted()))
    await writer.execute(Complete(actor="a", images=0), job)
    events = await log.read(JOB_ID)
    assert [(event.version, event.position) for event in events] == [(1, 1), (2, 2), (3, 4)]
    assert {event.traceparent for event in events} == {"00-trace-01"}
    assert len({event.id for event in events}) == 3


async def test_a_conflict_decides_again(log: MemoryLog, writer: JobWriter) -> None:
    """A cancel that read the job before it was started becomes a request."""
    before = await submit(writer)
    await writer.execute(start("a"), before)
    outcome = await writer.execute(Cancel(), before)
    assert outcome.added == (CancelRequested(),)
    assert outcome.job == fold(await log.read(JOB_ID))


async def test_a_conflict_without_news_ends_the_writing(writer: JobWriter) -> None:
    job = await submit(writer)
    silent = JobWriter(SilentLog())
    async with asyncio.timeout(60 * FACTOR):
        with pytest.raises(ReadTimeout):
            await silent.submit(new_id(), Submit(submitted()))
        with pytest.raises(ReadTimeout):
            await silent.execute(start("a"), job)


async def test_a_conflict_that_leaves_nothing_to_do_adds_nothing(
    log: MemoryLog, writer: JobWriter
) -> None:
    job = await run(writer)
    await writer.execute(start("b"), job)
    outcome = await writer.execute(StoreImage(actor="a", image=image(0)), job)
    assert outcome.added == ()
    assert outcome.job is not None
    assert outcome.job.actor == "b"
    assert not any(isinstance(event.data, ImageStored) for event in await log.read(JOB_ID))


async def test_concurrent_writers_come_to_one_end(log: MemoryLog, writer: JobWriter) -> None:
    job = await run(writer)
    outcomes = await asyncio.gather(
        writer.execute(Complete(actor="a", images=0), job),
        writer.execute(FailAttempt(actor="a", message="No.", final=True), job),
        writer.execute(ConfirmCancel(actor="a"), job),
        JobWriter(log).execute(Complete(actor="a", images=0), job),
    )
    assert sum(len(outcome.added) for outcome in outcomes) == 1
    ends = {outcome.job.end for outcome in outcomes if outcome.job}
    assert len(ends) == 1
    stored = fold(await log.read(JOB_ID))
    assert stored is not None
    assert {stored.end} == ends
    assert stored.version == 3
