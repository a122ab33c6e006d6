"""What of the jobs need not be read, and what the router makes of that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from actors.roles.router import SeenJobs
from events.decisions import Cancel, Command, Erase
from events.log import JobWriter
from events.types import Cancelled, Event, Unknown
from tests.support.database import database_in
from tests.support.events import JOB_ID, START, history_of, submitted
from tests.support.polling import eventually
from tests.support.routing.bench import Bench


def seen(*events: Event, at: datetime = START) -> SeenJobs:
    jobs = SeenJobs(now=lambda: at)
    for event in events:
        jobs.note(event)
    return jobs


def test_a_first_event_is_given_once() -> None:
    [first] = history_of(submitted())
    jobs = seen(first)
    assert jobs.take_first(JOB_ID) == first
    assert jobs.take_first(JOB_ID) is None


def test_a_first_event_is_not_given_once_another_has_come() -> None:
    for later in (Cancelled(), Unknown(original_type="darkroom.job.paused.v1")):
        assert seen(*history_of(submitted(), later)).take_first(JOB_ID) is None


def test_a_first_event_of_long_ago_is_not_given() -> None:
    assert (
        seen(*history_of(submitted()), at=START + timedelta(minutes=1)).take_first(JOB_ID) is None
    )


def test_it_is_known_who_wants_no_callback() -> None:
    [quiet] = history_of(submitted())
    [loud] = history_of(submitted(callback_url="http://example.com/done"))
    assert seen(quiet).forget_ended(JOB_ID)
    for jobs in (seen(), seen(loud), seen(quiet, loud)):
        assert not jobs.forget_ended(JOB_ID)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with database_in(tmp_path) as database:
        bench = Bench(database)
        bench.writer = JobWriter(bench.log)  # at this moment
        yield bench


async def routed_reads(bench: Bench, *job_ids: str) -> int:
    """How often these jobs were read to be routed."""
    async with bench.routing():
        await bench.routed()
    return sum(bench.log.reads[job_id] for job_id in job_ids)


async def test_a_job_that_has_just_come_is_not_read(bench: Bench) -> None:
    job_id = await bench.job(endpoint="fast", lane=9)
    assert await routed_reads(bench, job_id) == 0
    [queued] = await bench.queue.queued("fast", after=0, most=9)
    job = await bench.writer.load(job_id)
    assert job is not None
    assert (queued.job_id, queued.lane, queued.deadline) == (job_id, 9, job.deadline)


@pytest.mark.parametrize("commands", [[Cancel()], [Erase()]], ids=["cancelled", "erased"])
async def test_a_job_that_has_just_come_and_gone_is_not_queued(
    bench: Bench, commands: list[Command]
) -> None:
    await bench.job(*commands)
    async with bench.routing():
        await bench.routed()
    assert await bench.waits()


@pytest.mark.parametrize(
    "asked", [{"callback_url": "http://example.com/done"}, {"image_puts": ("sealed",)}]
)
async def test_an_end_that_begins_no_delivery_is_not_read(
    bench: Bench, asked: dict[str, Any]
) -> None:
    async with bench.routing():
        job_ids = [await bench.job(), await bench.job(**asked)]
        await eventually(lambda: bench.waits(*job_ids))
        before = bench.log.reads.copy()
        for job_id in job_ids:
            job = await bench.writer.load(job_id)
            assert job is not None
            await bench.writer.execute(Cancel(), job)
        await eventually(lambda: bench.callbacks_of(job_ids[1]))
        reads = [(bench.log.reads - before)[job_id] for job_id in job_ids]
    assert reads == [1, 2]  # one is our own
