"""A rebuild with a log that is older than the archive, as after it was restored from a backup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from events.ids import new_id
from events.log import Appended
from events.memory.log import MemoryLog
from events.types import CallbackDelivered, Event, RedeliveryRequested
from tests.support.operations.installation import Installation
from tests.support.operations.rebuild import rebuild


async def put_back(log: MemoryLog, events: Sequence[Event]) -> None:
    """As a restored log has them."""
    last = 0
    for event in events:
        outcome = await log.append(replace(event, position=0), expected=last)
        assert isinstance(outcome, Appended)
        last = outcome.event.position


@pytest.mark.parametrize("count", [1, 2])
async def test_a_job_that_the_archive_has_as_ended_does_not_run_again(
    installation: Installation, count: int
) -> None:
    job_id = installation.ids["completed"]
    events = await installation.log.read(job_id)
    deliveries = await installation.deliveries.read(job_id)
    before = await installation.read_model.job(job_id)
    await installation.archive(job_id)
    await put_back(installation.log, events[:count])
    await put_back(installation.deliveries, deliveries[:1])
    await rebuild(installation)
    assert await installation.log.read(job_id) == []
    assert await installation.deliveries.read(job_id) == []
    assert await installation.read_model.job(job_id) == before
    assert job_id not in [each for _, each in await installation.disagreements()]


async def test_an_erased_job_does_not_come_back_from_an_older_log(
    installation: Installation,
) -> None:
    """The archive has the event that says so alone."""
    job_id = installation.ids["cancelled"]
    events = await installation.log.read(job_id)
    await installation.append(job_id, installation.erased())
    await installation.log.purge(job_id, keep=1)
    await installation.project()
    await installation.archive(job_id)
    await put_back(installation.log, events[:1])
    await rebuild(installation)
    assert await installation.log.read(job_id) == []
    job = await installation.read_model.job(job_id)
    assert job is not None
    assert job.erased


async def test_what_the_archive_does_not_have_stays_in_the_log(installation: Installation) -> None:
    """A callback that was asked for again, and a job that ran again before the rebuild."""
    called, ran = installation.ids["completed"], installation.ids["failed"]
    events = await installation.log.read(ran)
    for job_id in (called, ran):
        await installation.archive(job_id)
    await installation.deliver(called, RedeliveryRequested(), CallbackDelivered(attempt=1))
    await put_back(installation.log, events[:2])
    again = replace(events[2], id=new_id(), version=3, position=0)
    last = await installation.log.last(ran)
    assert last is not None
    assert isinstance(await installation.log.append(again, expected=last.position), Appended)
    await rebuild(installation)
    assert len(await installation.deliveries.read(called)) == 2
    assert len(await installation.log.read(ran)) == 3
