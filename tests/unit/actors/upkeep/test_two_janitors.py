"""A janitor stalls for longer than its lease, at any step; another one does the work meanwhile.

By then the id of a job may be another one's: its Idempotency-Key came again.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from events.decisions import Erase
from events.store.leases import Leases
from tests.support.polling import eventually
from tests.support.upkeep import ALL, DAY, HOUR, House

LONGER_THAN_A_LEASE = timedelta(minutes=5)


async def another_job(house: House, job_id: str) -> None:
    """The job is removed by another janitor, and the next one of its id comes."""
    house.clock.time += LONGER_THAN_A_LEASE
    await house.janitor("other").round()
    assert await house.traces(job_id) == set()
    await house.job(job_id=job_id)
    await house.project()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("step", "has_left_the_log"),
    [
        ("ended_jobs.ended_before", False),
        ("log.read_raw", False),
        ("images.delete_folder", False),
        ("deliveries.purge", False),
        ("log.purge", False),
        ("read_model.remove", False),
        ("ended_jobs.ended_before", True),
        ("log.read_raw", True),
        ("images.delete_folder", True),
        ("read_model.remove", True),
    ],
)
async def test_the_next_job_of_the_id_of_a_removed_one_is_whole(
    house: House, step: str, *, has_left_the_log: bool, after: bool
) -> None:
    [job_id] = await (house.moved() if has_left_the_log else house.jobs())
    house.clock.time += 9 * DAY

    with house.interrupted(step, partial(another_job, house, job_id), after=after):
        await house.janitor().round()
    assert await house.traces(job_id) == ALL
    assert len(await house.log.read(job_id)) == 5


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "step",
    [
        "read_model.due_erasures",
        "images.delete_folder",
        "deliveries.purge",
        "log.purge",
        "read_model.settle_erasure",
    ],
)
async def test_an_erased_job_stays_erased(house: House, step: str, *, after: bool) -> None:
    job_id = await house.job()
    await house.writer.execute(Erase(), await house.load(job_id))
    await house.project()

    async def stall() -> None:
        house.clock.time += LONGER_THAN_A_LEASE
        await house.janitor("other").round()

    with house.interrupted(step, stall, after=after):
        await house.janitor().round()
    house.clock.time += HOUR
    await house.janitor().round()
    assert await house.traces(job_id) == {"log", "row"}
    assert len(await house.log.read(job_id)) == 1
    assert await house.read_model.due_erasures(house.clock(), limit=9) == []


@pytest.mark.parametrize("role", ["janitor", "historian"])
async def test_one_of_two_works(house: House, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    [job_id] = await house.jobs(age=8 * DAY)
    leases, acquire = Leases(house.database), Leases.acquire
    assert await leases.acquire(role, "other", ttl_s=3600)
    asked: list[float] = []

    async def noted(*args: Any, ttl_s: float) -> bool:
        asked.append(ttl_s)
        return await acquire(*args, ttl_s=ttl_s)

    async def is_gone() -> bool:
        return not await house.is_in_log(job_id)

    monkeypatch.setattr(Leases, "acquire", noted)
    running = asyncio.create_task(getattr(house, role)(lease_s=3000, period_s=0.01).run())
    await eventually(lambda: len(asked) > 1)
    assert await house.is_in_log(job_id)
    await leases.release(role, "other")
    await eventually(is_gone)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert set(asked) == {3000}
