"""Jobs that are over leave the log whole, whenever the historian dies; no other job does."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from actors.upkeep import historian
from events.decisions import Erase
from events.delivery import RequestRedelivery
from events.errors import LogUnavailable
from events.log import DeliveryWriter
from events.store.ended_jobs import EndedJob
from storage.file_names import HistoryName
from storage.images import ImageStoreUnavailable
from tests.support.upkeep import DAY, HOUR, NOON, House

URL = "https://example.com/done"
SECOND = timedelta(seconds=1)
MINUTE = 60 * SECOND


async def leaves_after(house: House, job_id: str, time: timedelta, **settings: Any) -> None:
    """The job leaves the log once this time has passed, and not before."""
    for wait, is_in_log in ((time - SECOND, True), (SECOND, False)):
        house.clock.time += wait
        await house.historian(**settings).round()
        assert await house.is_in_log(job_id) == is_in_log


async def test_an_ended_job_leaves_the_log_and_is_read_as_before(house: House) -> None:
    ended, running = await house.job(), await house.running_job()
    await house.project()
    before = await house.stories(ended, running)
    await leaves_after(house, ended, HOUR)
    assert await house.is_in_log(running)
    assert await house.stories(ended, running) == before
    assert await house.kept_ids() == [ended]
    row = await house.read_model.job(ended)
    assert row is not None
    assert row.end is not None


async def test_a_job_whose_end_was_projected_late_stays_as_long(house: House) -> None:
    """A caller that repeats it may have looked for its row just before, and found none."""
    job_id = await house.job()
    house.clock.time += 2 * HOUR
    await house.project()
    await leaves_after(house, job_id, HOUR)


async def test_a_job_stays_while_a_repeat_of_it_may_be_submitted(house: House) -> None:
    """A repeat looks for the row for at most 10 s, and appends for at most 10 s."""
    [job_id] = await house.jobs()
    await leaves_after(house, job_id, 20 * SECOND, log_hot_s=0)


async def test_a_job_that_is_not_projected_yet_stays(house: House) -> None:
    [job_id] = await house.jobs()
    await house.writer.execute(Erase(), await house.load(job_id))  # the row is behind
    house.clock.time += 2 * HOUR
    await house.historian().round()
    assert await house.is_in_log(job_id)
    assert await house.kept_ids() == []


@pytest.mark.parametrize("asked", [{"callback_url": URL}, {"image_puts": ("sealed",)}])
async def test_a_job_stays_until_its_delivery_ended(house: House, asked: dict[str, Any]) -> None:
    job_id = await house.job(**asked)
    waiting = await house.ended_job(**asked)
    await house.project()
    house.clock.time += 2 * HOUR
    await house.historian().round()
    assert [await house.is_in_log(each) for each in (job_id, waiting)] == [False, True]
    house.clock.time += MINUTE
    await house.deliver(waiting)
    await leaves_after(house, waiting, HOUR)
    assert await house.kept_ids() == sorted([job_id, waiting])


async def test_jobs_that_wait_do_not_hold_up_those_behind_them(house: House) -> None:
    waiting = [await house.ended_job(callback_url=URL) for _ in range(3)]
    house.clock.time += MINUTE
    job_id = await house.job()
    await house.project()
    house.clock.time += 2 * HOUR
    historian = house.historian(batch=2)
    for _ in range(3):
        await historian.round()
    assert await house.kept_ids() == [job_id]
    assert all([await house.is_in_log(each) for each in waiting])


class Died(BaseException):
    """The process was killed."""


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("step", "spared"),
    [
        ("log.read_raw", 0),
        ("images.put", 1),
        ("ended_jobs.store_history_keys", 0),
        ("images.delete", 1),
        ("deliveries.purge", 1),
        ("log.purge", 1),
        ("ended_jobs.mark_moved", 0),
    ],
)
async def test_whenever_the_historian_dies_another_ends_its_work(
    house: House, step: str, spared: int, *, after: bool
) -> None:
    """Some jobs are over for the first time, and some again: these have an object already."""
    ids = await house.moved(2, callback_url=URL)
    for job_id in ids:
        await house.deliver_again(job_id)
    ids += await house.jobs(2, callback_url=URL)
    before = await house.stories(*ids)
    house.clock.time += 2 * HOUR
    with (
        house.failing(step, Died(), after=after, spared=spared),
        pytest.raises(BaseException),  # noqa: B017, PT011 - a task group wraps it
    ):
        await house.historian().round()
    assert await house.stories(*ids) == before
    house.clock.time += 3 * MINUTE
    await house.historian().round()
    assert not any([await house.is_in_log(job_id) for job_id in ids])
    assert await house.stories(*ids) == before
    assert await house.ended_jobs.due_for_move(house.clock(), limit=9) == []
    for _ in range(5):  # an object that was replaced may be left: the janitor sweeps it
        house.clock.time += DAY
        await house.janitor(retention_days=0).round()
    assert await house.kept_ids() == sorted(ids)
    assert await house.stories(*ids) == before


async def test_a_job_that_is_called_back_again_leaves_the_log_again(house: House) -> None:
    job_id, other = await house.moved(2, callback_url=URL)
    [first] = await house.history_keys(job_id)
    asked = await house.ask_again(job_id)
    house.clock.time += 2 * HOUR
    await house.historian().round()
    assert await house.is_in_log(job_id)  # it was not delivered yet
    await house.deliver(job_id, version=asked.version + 1, expected=asked.position)
    before = await house.stories(job_id, other)
    assert len(before[0][1]) == 3
    house.clock.time += 2 * HOUR
    await house.historian().round()
    assert not await house.is_in_log(job_id)
    assert await house.stories(job_id, other) == before
    [second] = await house.history_keys(job_id)
    assert (first, second) == (HistoryName(job_id, 5, 1).key, HistoryName(job_id, 5, 3).key)


async def test_nothing_is_stored_again_where_nothing_was_added(house: House) -> None:
    """A redelivery was asked for by a process that died before it stored the event."""
    [job_id] = await house.moved()
    await house.ended_jobs.restart_hot_time(job_id, house.clock())
    house.clock.time += 2 * HOUR
    with house.failing("images.put", ImageStoreUnavailable()):
        await house.historian().round()
    assert await house.ended_jobs.due_for_move(house.clock(), limit=9) == []


@pytest.mark.parametrize("step", ["images.put", "ended_jobs.store_history_keys"])
async def test_a_job_erased_while_its_object_is_stored_leaves_none(house: House, step: str) -> None:
    job_id, other = await house.jobs(2, age=2 * HOUR)

    async def erase() -> None:
        job = (await house.writer.execute(Erase(), await house.load(job_id))).job
        assert job is not None
        assert await house.removal.hide(job)

    with house.interrupted(step, erase, of=job_id):
        await house.historian().round()
    assert await house.history_keys(job_id) == []
    house.clock.time += 2 * HOUR
    await house.historian().round()
    assert await house.kept_ids() == sorted([job_id, other])  # of the first, that it was erased
    assert len(await house.history.read(job_id)) == 1


async def test_a_job_removed_while_its_object_is_stored_leaves_none(house: House) -> None:
    [job_id] = await house.jobs(age=8 * DAY)

    async def remove() -> None:
        await house.janitor().round()

    with house.interrupted("images.put", remove):
        await house.historian().round()
    assert await house.traces(job_id) == set()


@pytest.mark.parametrize("is_redelivered", [True, False])
async def test_two_that_overlap_move_each_job_once(house: House, *, is_redelivered: bool) -> None:
    """One stores its objects after the other has moved the jobs, once more with a redelivery."""
    ids = await house.jobs(3, age=2 * HOUR, callback_url=URL)
    before = await house.stories(*ids)

    async def move() -> None:
        await house.historian().round()
        if is_redelivered:
            for job_id in ids:
                await house.deliver_again(job_id)
            house.clock.time += 2 * HOUR
            await house.historian().round()

    with house.interrupted("images.put", move):
        await house.historian().round()
    assert not any([await house.is_in_log(job_id) for job_id in ids])
    if not is_redelivered:
        assert await house.kept_ids() == sorted(ids)
    for (events, deliveries), was in zip(await house.stories(*ids), before, strict=True):
        assert (events, deliveries[:1]) == was
        assert len(deliveries) == (3 if is_redelivered else 1)


async def test_a_lost_object_is_stored_again_from_what_the_log_has(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    [job_id] = await house.jobs(age=2 * HOUR)
    before = await house.history.read(job_id)
    house.log.purge_error = LogUnavailable()
    with pytest.raises(LogUnavailable):
        await house.historian().round()
    house.log.recover()
    [key] = await house.history_keys(job_id)
    await house.images.delete(key)
    await house.historian().round()
    assert "history cannot be read" in caplog.text
    assert not await house.log.read(job_id)
    assert len(await house.history.read(job_id)) == len(before)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_an_object_that_cannot_be_read_stops_no_other_job(
    house: House, caplog: pytest.LogCaptureFixture, *, is_lost: bool
) -> None:
    broken, whole = await house.moved(2, callback_url=URL)
    for job_id in (broken, whole):
        await house.deliver_again(job_id)
    [key] = await house.history_keys(broken)
    await (house.images.delete(key) if is_lost else house.images.put(key, b"broken"))
    house.clock.time += 2 * HOUR
    await house.historian().round()
    assert caplog.messages == ["a history cannot be read"]
    assert [bool(await house.deliveries.read(each)) for each in (broken, whole)] == [True, False]


@pytest.mark.parametrize(
    ("job", "most_bytes", "portions"),
    [
        (EndedJob("a", 1, 1, NOON, NOON, None, log_bytes=1), 10**9, [4]),
        (EndedJob("a", 1, 1, NOON, NOON, None, log_bytes=1), 2, [2, 2]),
        (EndedJob("a", 1, 1, NOON, NOON, "a/history-1-0.gz", log_bytes=0), 2**20, [1] * 4),
    ],
    ids=["all", "so many bytes", "histories that are read again"],
)
def test_a_portion_has_so_many_bytes(job: EndedJob, most_bytes: int, portions: list[int]) -> None:
    found = historian._portions([job] * 4, most_bytes=most_bytes)
    assert [len(portion) for portion in found] == portions


async def test_so_many_jobs_leave_at_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.jobs(6, age=2 * HOUR)
    monkeypatch.setattr(historian, "_AT_ONCE", 3)
    purge, now, most = house.log.purge, 0, 0

    async def counted(*args: Any, **named: Any) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        await purge(*args, **named)
        now -= 1

    monkeypatch.setattr(house.log, "purge", counted)
    await house.historian().round()
    assert most == 3


async def test_what_cannot_be_read_stays_in_the_log(house: House) -> None:
    broken, whole = await house.jobs(2, age=2 * HOUR)
    house.log.unreadable.add(broken)
    await house.historian().round()
    assert await house.kept_ids() == [whole]
    house.log.unreadable.clear()
    assert await house.is_in_log(broken)


async def test_an_outage_is_waited_out(house: House) -> None:
    [job_id] = await house.jobs(age=2 * HOUR)
    for step, error in (("images.put", ImageStoreUnavailable()), ("log.purge", LogUnavailable())):
        with house.failing(step, error), pytest.raises(type(error)):
            await house.historian().round()
        assert await house.is_in_log(job_id)
    house.clock.time += 3 * MINUTE
    await house.historian().round()
    assert not await house.is_in_log(job_id)
    assert await house.kept_ids() == [job_id]


@pytest.mark.parametrize("step", ["put", "get", "delete"])
async def test_one_file_that_the_store_refuses_stops_no_other_job(house: House, step: str) -> None:
    [bad] = await house.moved(callback_url=URL)
    await house.deliver_again(bad)
    house.clock.time += MINUTE
    others = await house.jobs(3)
    with house.failing(f"images.{step}", ImageStoreUnavailable(), of=[bad]):
        for _ in range(5):
            house.clock.time += 2 * HOUR
            with suppress(ImageStoreUnavailable):
                await house.historian().round()
    assert not any([await house.is_in_log(each) for each in others])
    cool = await house.ended_jobs.due_for_move(house.clock(), limit=9)
    assert [each.id for each in cool if each.id != bad] == []


async def test_an_event_of_two_lines_stops_no_other_job(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any JSON value is possible, for example after an event was mended by hand."""
    bad, other = await house.jobs(2)
    real = house.log.read_raw

    async def read_raw(job_ids: Any) -> Any:
        found = await real(job_ids)
        if bad in found:
            first, *rest = found[bad]
            found[bad] = (replace(first, payload=first.payload.replace(b"{", b"{\n", 1)), *rest)
        return found

    monkeypatch.setattr(house.log, "read_raw", read_raw)
    for _ in range(3):
        house.clock.time += 2 * HOUR
        with suppress(ValueError):
            await house.historian().round()
    assert not await house.is_in_log(other)


async def test_a_job_that_is_asked_for_while_it_leaves_the_log_is_not_settled(house: House) -> None:
    """The route reopens, the historian marks, the route heats."""
    [job_id] = await house.jobs(age=2 * HOUR, callback_url=URL)
    await house.read_model.unsettled.reopen(job_id)
    await house.historian().round()
    await house.ended_jobs.restart_hot_time(job_id, house.clock())
    writer = DeliveryWriter(house.history.delivery_log)
    job = await house.read_model.job(job_id)
    assert job is not None
    await writer.execute(RequestRedelivery(), job, await writer.load(job_id))
    found = await house.read_model.unsettled.has(job_id)
    house.clock.time += 8 * DAY
    await house.janitor().round()
    assert (found, "row" in await house.traces(job_id)) == (True, True)
