"""A janitor stalls for longer than its lease, at any step; another one does the work meanwhile.

By then the id of a job may be another one's: its Idempotency-Key came again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from events.decisions import Erase
from tests.support.upkeep import ALL, DAY, HOUR, House

LONGER_THAN_A_LEASE = timedelta(minutes=5)


def stall(
    house: House,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    meanwhile: Callable[[], Awaitable[None]],
    *,
    after: bool,
) -> Callable[[], bool]:
    """Let something happen before or after a step that is done first; says whether it has."""
    part, name = step.split(".")
    owner = getattr(house, part)
    real = getattr(owner, name)
    happened = False

    async def stalled(*args: Any, **named: Any) -> Any:
        nonlocal happened
        result = await real(*args, **named) if after or happened else None
        if not happened:
            happened = True
            house.clock.time += LONGER_THAN_A_LEASE
            await meanwhile()
            result = result if after else await real(*args, **named)
        return result

    monkeypatch.setattr(owner, name, stalled)
    return lambda: happened


async def another_job(house: House, job_id: str) -> None:
    """The job is removed by another janitor, and the next one of its id comes."""
    await house.janitor("other").round()
    assert await house.traces(job_id) == set()
    await house.job(job_id=job_id)
    await house.project()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "step",
    [
        "hot_jobs.old",
        "log.stored",
        "images.delete_folder",
        "deliveries.purge",
        "log.purge",
        "read_model.remove",
    ],
)
async def test_the_next_job_of_the_id_of_a_removed_one_is_whole(
    house: House, monkeypatch: pytest.MonkeyPatch, step: str, *, after: bool
) -> None:
    job_id = await house.job()
    await house.project()
    house.clock.time += 8 * DAY

    happened = stall(house, monkeypatch, step, lambda: another_job(house, job_id), after=after)
    await house.janitor().round()
    assert happened()
    assert await house.traces(job_id) == ALL
    assert len(await house.log.read(job_id)) == 5


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "step",
    [
        "segments.until",
        "archive.blocks",
        "segments.rows_of",
        "images.delete_folder",
        "read_model.remove",
        "archive.delete",
        "segments.remove",
    ],
)
async def test_the_next_job_of_the_id_of_one_of_a_removed_segment_is_whole(
    house: House, monkeypatch: pytest.MonkeyPatch, step: str, *, after: bool
) -> None:
    job_id = await house.job()
    await house.project()
    house.clock.time += 2 * HOUR
    await house.archiver().round()
    assert await house.log.read(job_id) == []
    house.clock.time += 9 * DAY

    happened = stall(house, monkeypatch, step, lambda: another_job(house, job_id), after=after)
    await house.janitor().round()
    assert happened()
    assert await house.traces(job_id) == ALL
    assert [ref async for ref in house.archive.segments()] == []


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "step",
    [
        "read_model.due_erasures",
        "images.delete_folder",
        "deliveries.purge",
        "log.purge",
        "archive_writer.erase",
        "read_model.settle_erasure",
    ],
)
async def test_an_erased_job_stays_erased(
    house: House, monkeypatch: pytest.MonkeyPatch, step: str, *, after: bool
) -> None:
    job_id = await house.job()
    await house.writer.execute(Erase(), await house.load(job_id))
    await house.project()

    async def meanwhile() -> None:
        await house.janitor("other").round()

    happened = stall(house, monkeypatch, step, meanwhile, after=after)
    await house.janitor().round()
    assert happened()
    house.clock.time += HOUR
    await house.janitor().round()
    assert await house.traces(job_id) == {"log", "row"}
    assert len(await house.log.read(job_id)) == 1
    assert await house.read_model.due_erasures(house.clock(), limit=9) == []
