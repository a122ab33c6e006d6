"""Ended jobs leave the log whole, whenever the archiver dies; nothing else does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from events.decisions import Erase
from events.delivery import RequestRedelivery
from events.errors import LogUnavailable
from events.log import DeliveryWriter
from events.store.leases import Leases
from events.types import Event
from storage.images import ImageStoreUnavailable
from tests.support.upkeep import DAY, HOUR, House

URL = "https://example.com/done"
MINUTE = timedelta(minutes=1)


async def stories(house: House, *job_ids: str) -> list[tuple[list[Event], list[Event]]]:
    return [
        (await house.history.read(job_id), await house.history.deliveries(job_id))
        for job_id in job_ids
    ]


async def is_in_log(house: House, job_id: str) -> bool:
    return bool(await house.log.read(job_id) or await house.deliveries.read(job_id))


async def archived_ids(house: House) -> list[str]:
    """The ids in all objects of the archive, with repeats."""
    refs = [ref async for ref in house.archive.segments()]
    return sorted(
        [job.job_id for ref in refs for job in [j async for j in house.archive.scan(ref)]]
    )


async def test_an_ended_job_leaves_the_log_and_is_read_as_before(house: House) -> None:
    ended, running = await house.job(), await house.running_job()
    await house.project()
    before = await stories(house, ended, running)
    house.clock.time += HOUR - MINUTE
    await house.archiver().round()
    assert await is_in_log(house, ended)
    house.clock.time += MINUTE
    await house.archiver().round()
    assert not await is_in_log(house, ended)
    assert await is_in_log(house, running)
    assert await stories(house, ended, running) == before
    assert await archived_ids(house) == [ended]
    row = await house.read_model.job(ended)
    assert row is not None
    assert row.end is not None


async def test_a_job_whose_end_was_projected_late_stays_as_long(house: House) -> None:
    """Who submits it again may have looked for its row right before that, and found none."""
    job_id = await house.job()
    house.clock.time += 2 * HOUR
    await house.project()
    await house.archiver().round()
    assert await is_in_log(house, job_id)
    house.clock.time += HOUR
    await house.archiver().round()
    assert not await is_in_log(house, job_id)


async def test_a_job_that_is_not_projected_yet_stays(house: House) -> None:
    job_id = await house.job()
    await house.project()
    job = await house.load(job_id)
    await house.writer.execute(Erase(), job)  # the row is behind
    house.clock.time += 2 * HOUR
    await house.archiver().round()
    assert await is_in_log(house, job_id)
    assert await archived_ids(house) == []


@pytest.mark.parametrize("asked", [{"callback_url": URL}, {"image_puts": ("sealed",)}])
async def test_a_job_stays_until_its_delivery_has_ended(
    house: House, asked: dict[str, Any]
) -> None:
    job_id = await house.job(**asked)
    waiting = await house.ended_job(**asked)
    await house.project()
    house.clock.time += 2 * HOUR
    await house.archiver().round()
    assert [await is_in_log(house, each) for each in (job_id, waiting)] == [False, True]
    await house.deliver(waiting)
    house.clock.time += HOUR - MINUTE
    await house.archiver().round()
    assert await is_in_log(house, waiting)
    house.clock.time += MINUTE
    await house.archiver().round()
    assert not await is_in_log(house, waiting)
    assert await archived_ids(house) == sorted([job_id, waiting])


async def test_jobs_that_wait_do_not_hold_up_those_behind_them(house: House) -> None:
    waiting = [await house.ended_job(callback_url=URL) for _ in range(3)]
    house.clock.time += MINUTE
    job_id = await house.job()
    await house.project()
    house.clock.time += 2 * HOUR
    archiver = house.archiver(batch=2)
    for _ in range(3):
        await archiver.round()
    assert await archived_ids(house) == [job_id]
    assert all([await is_in_log(house, each) for each in waiting])


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("part", "step"),
    [
        ("segments", "begin"),
        ("archive", "write"),
        ("segments", "commit"),
        ("deliveries", "purge"),
        ("log", "purge"),
        ("segments", "purged"),
    ],
)
async def test_whenever_the_archiver_dies_another_ends_its_work(
    house: House, monkeypatch: pytest.MonkeyPatch, part: str, step: str, *, after: bool
) -> None:
    ids = [await house.job() for _ in range(5)]
    await house.project()
    before = await stories(house, *ids)
    house.clock.time += 2 * HOUR
    with monkeypatch.context() as patch:
        die(patch, getattr(house, part), step, after=after)
        with pytest.raises(BaseException):  # noqa: B017, PT011 - a task group wraps it
            await house.archiver().round()
    assert await stories(house, *ids) == before
    house.clock.time += 3 * MINUTE
    await house.archiver().round()
    assert not any([await is_in_log(house, job_id) for job_id in ids])
    assert await stories(house, *ids) == before
    assert await archived_ids(house) == sorted(ids)


def die(patch: pytest.MonkeyPatch, part: object, step: str, *, after: bool) -> None:
    """At the second call of this step, or after it."""
    real = getattr(part, step)
    calls = 0

    async def dying(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < 2 and step == "purge":
            return await real(*args, **named)
        if after:
            await real(*args, **named)
        raise Died

    patch.setattr(type(part) if hasattr(type(part), "__slots__") else part, step, dying)


class Died(BaseException):
    """The process was killed."""


async def test_an_archived_job_is_called_back_again_and_archived_again(house: House) -> None:
    job_id, other = await house.job(callback_url=URL), await house.job()
    await house.project()
    house.clock.time += 2 * HOUR
    await house.archiver().round()
    writer = DeliveryWriter(house.history.delivery_log)
    job = await house.read_model.job(job_id)
    assert job is not None
    await house.hot_jobs.heat(job_id, house.clock())
    delivery, _ = await writer.execute(RequestRedelivery(), job, await writer.load(job_id))
    house.clock.time += 2 * HOUR
    await house.archiver().round()
    assert await is_in_log(house, job_id)  # it was not delivered yet
    await house.deliver(job_id, version=delivery.version + 1, expected=delivery.position)
    before = await stories(house, job_id, other)
    assert len(before[0][1]) == 3
    house.clock.time += 2 * HOUR
    await house.archiver().round()
    assert not await is_in_log(house, job_id)
    assert await stories(house, job_id, other) == before
    assert await archived_ids(house) == sorted([job_id, other])


async def test_a_job_that_changes_while_it_is_archived_stays_in_the_log(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, other = await house.job(), await house.job()
    await house.project()
    house.clock.time += 2 * HOUR
    write = house.archive.write

    async def meanwhile(*args: Any) -> int:
        job = (await house.writer.execute(Erase(), await house.load(job_id))).job
        assert job is not None
        await house.read_model.erase(job)
        return await write(*args)

    with monkeypatch.context() as patch:
        patch.setattr(house.archive, "write", meanwhile)
        await house.archiver().round()
    assert job_id not in await archived_ids(house)
    await house.archiver().round()
    assert job_id not in await archived_ids(house)
    house.clock.time += 2 * HOUR
    await house.archiver().round()
    assert await archived_ids(house) == sorted([job_id, other])  # of the first, that it was erased
    assert len(await house.history.read(job_id)) == 1


async def test_what_cannot_be_read_stays_in_the_log(house: House) -> None:
    broken, whole = await house.job(), await house.job()
    await house.project()
    house.log.unreadable.add(broken)
    house.clock.time += 2 * HOUR
    await house.archiver().round()
    assert await archived_ids(house) == [whole]
    house.log.unreadable.clear()
    assert await is_in_log(house, broken)


async def test_an_outage_is_waited_out(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = await house.job()
    await house.project()
    house.clock.time += 2 * HOUR

    async def refuse(*_: Any) -> None:
        raise ImageStoreUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(house.archive, "write", refuse)
        with pytest.raises(ImageStoreUnavailable):
            await house.archiver().round()
    assert await is_in_log(house, job_id)
    house.log.purge_error = LogUnavailable()
    with pytest.raises(LogUnavailable):
        await house.archiver().round()
    house.log.recover()
    house.clock.time += 3 * MINUTE
    await house.archiver().round()
    assert not await is_in_log(house, job_id)
    assert await archived_ids(house) == [job_id]


async def test_one_of_two_archivers_works(house: House) -> None:
    job_id = await house.job()
    await house.project()
    house.clock.time += 2 * HOUR
    assert await Leases(house.database).acquire("archiver", "other", ttl_s=60)
    await house.archiver().round()
    assert await is_in_log(house, job_id)


async def test_two_that_overlap_archive_each_job_once(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await house.job() for _ in range(3)]
    await house.project()
    house.clock.time += 2 * HOUR
    write = house.archive.write

    async def meanwhile(*args: Any) -> int:
        monkeypatch.setattr(house.archive, "write", write)
        await house.archiver("a").round()
        return await write(*args)

    monkeypatch.setattr(house.archive, "write", meanwhile)
    await house.archiver("a").round()
    assert await archived_ids(house) == sorted(ids)
    assert not any([await is_in_log(house, job_id) for job_id in ids])


async def test_the_days_of_a_long_past_become_few_segments(house: House) -> None:
    ids, before = [], []
    for _ in range(12):
        ids += [await house.job() for _ in range(8)]
        await house.project()
        house.clock.time += HOUR
        before += await stories(house, *ids[-8:])
        await house.archiver().round()
    house.clock.time += 3 * DAY
    await house.archiver().round()
    refs = [ref async for ref in house.archive.segments()]
    assert len({(ref.day, ref.partition) for ref in refs}) == len(refs)
    assert await stories(house, *ids) == before
    assert await archived_ids(house) == sorted(ids)
