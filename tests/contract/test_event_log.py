"""One suite over both event logs: in memory, and on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from operator import attrgetter
from pathlib import Path

import pytest

from events.bus.jetstream_log import JetStreamLog
from events.cloud_events import encode
from events.errors import HistoryGone
from events.ids import new_id
from events.log import Appended, Conflict, EventLog, EventReader, StoredEvent, utc_now
from events.types import CancelRequested, Erased, Event, Flavour, JobEvent, Started
from local.nats_server import NatsServer
from tests.support.bus import connected
from tests.support.events import submitted
from tests.support.memory.log import MemoryLog
from tests.support.patience import FACTOR


def event(job_id: str, version: int, data: JobEvent | None = None) -> Event:
    return Event(
        id=new_id(), job_id=job_id, version=version, time=utc_now(), data=data or submitted()
    )


@pytest.fixture(params=["memory", "jetstream"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventLog]:
    if request.param == "memory":
        yield MemoryLog()
        return
    server = NatsServer(tmp_path / "nats", preferred_port=0)
    server.start()
    async with connected(server) as bus:
        yield JetStreamLog(bus)
    server.stop()


async def appended(log: EventLog, new: Event, expected: int) -> Event:
    outcome = await log.append(new, expected=expected)
    assert isinstance(outcome, Appended)
    return outcome.event


async def test_what_was_appended_is_read_in_order(log: EventLog) -> None:
    job_id = new_id()
    first = await appended(log, event(job_id, 1), 0)
    other = await appended(log, event(new_id(), 1), 0)
    second = await appended(log, event(job_id, 2, Started(attempt=1, actor="a")), first.position)
    assert await log.read(job_id) == [first, second]
    assert await log.last(job_id) == second
    assert await log.read(other.job_id) == [other]


async def test_a_stale_append_stores_nothing_and_returns_what_came_before(log: EventLog) -> None:
    job_id = new_id()
    first = await appended(log, event(job_id, 1), 0)
    second = await appended(log, event(job_id, 2, CancelRequested()), first.position)
    outcome = await log.append(
        event(job_id, 2, Started(attempt=1, actor="late")), expected=first.position
    )
    assert outcome == Conflict((second,))
    assert await log.read(job_id) == [first, second]


async def test_the_same_event_sent_again_is_stored_once_also_after_others(log: EventLog) -> None:
    new = event(new_id(), 1)
    first = await appended(log, new, 0)
    assert await appended(log, new, 0) == first
    second = await appended(log, event(new.job_id, 2, CancelRequested()), first.position)
    assert await appended(log, new, 0) == first
    assert await log.read(new.job_id) == [first, second]


async def test_of_many_writers_at_one_position_exactly_one_wins(log: EventLog) -> None:
    job_id = new_id()
    first = await appended(log, event(job_id, 1), 0)
    outcomes = await asyncio.gather(
        *(
            log.append(event(job_id, 2, Started(attempt=1, actor=str(n))), expected=first.position)
            for n in range(30)
        )
    )
    assert sum(isinstance(outcome, Appended) for outcome in outcomes) == 1
    assert len(await log.read(job_id)) == 2


async def test_a_reader_follows_from_where_it_is_told(log: EventLog) -> None:
    stored = [await appended(log, event(new_id(), 1), 0) for _ in range(20)]
    async with log.reader(after=stored[7].position) as reader:
        known = await read_all(reader)
        assert known == stored[8:]
        later = await appended(log, event(new_id(), 1), 0)
        assert await reader.next(2) == [later]


async def test_a_reader_that_was_told_nothing_for_a_while_is_told_what_comes(log: EventLog) -> None:
    async with log.reader(after=0) as reader:
        for _ in range(5):
            assert await reader.next(0) == []
        new = await appended(log, event(new_id(), 1), 0)
        assert await read_until(reader, new) == [new]
        assert await reader.next(0) == []


async def read_all(reader: EventReader) -> list[Event]:
    known: list[Event] = []
    while batch := await reader.next(0.5):
        known += batch
    return known


async def test_a_watch_sees_what_is_stored_for_its_job_once(log: EventLog) -> None:
    job_id = new_id()
    async with log.watch(job_id) as subscription:
        first = await appended(log, event(job_id, 1), 0)
        await appended(log, event(new_id(), 1), 0)
        refused = await log.append(event(job_id, 1), expected=0)
        assert isinstance(refused, Conflict)
        second = await appended(log, event(job_id, 2, CancelRequested()), first.position)
        assert await subscription.next(2) == first
        assert await subscription.next(2) == second
        assert await subscription.next(0.2) is None


async def test_a_purge_keeps_the_last_event_and_its_place(log: EventLog) -> None:
    job_id = new_id()
    first = await appended(log, event(job_id, 1), 0)
    second = await appended(log, event(job_id, 2, CancelRequested()), first.position)
    erased = Erased(
        flavour=Flavour.DIFFUSION, owner="alice", endpoint="default", submitted_at=first.time
    )
    last = await appended(log, event(job_id, 3, erased), second.position)
    other = await appended(log, event(new_id(), 1), 0)
    for _ in range(2):
        await log.purge(job_id, keep=1)
        assert await log.read(job_id) == [last]
        assert await log.last(job_id) == last
    late = event(job_id, 3, Started(attempt=1, actor="late"))
    assert await log.append(late, expected=second.position) == Conflict((last,))
    assert await log.append(event(job_id, 1), expected=0) == Conflict((last,))
    async with log.reader(after=0) as reader:
        found = await read_all(reader)
        assert sorted(found, key=attrgetter("time")) == [last, other]


async def test_a_purge_of_everything_leaves_an_unknown_job(log: EventLog) -> None:
    job_id = new_id()
    first = await appended(log, event(job_id, 1), 0)
    await log.purge(job_id)
    await log.purge(job_id)
    assert await log.read(job_id) == []
    assert await log.last(job_id) is None
    with pytest.raises(HistoryGone):
        await log.append(event(job_id, 2, CancelRequested()), expected=first.position)


async def read_until(reader: EventReader, last: Event) -> list[Event]:
    found: list[Event] = []
    async with asyncio.timeout(10 * FACTOR):
        while not found or found[-1] != last:
            found += await reader.next(1)
    return found


async def test_a_purge_up_to_a_position_keeps_what_came_later(log: EventLog) -> None:
    job_id = new_id()
    first = await appended(log, event(job_id, 1), 0)
    second = await appended(log, event(job_id, 2, CancelRequested()), first.position)
    await log.purge(job_id, upto=first.position)
    for _ in range(2):
        assert await log.read(job_id) == [second]
        await log.purge(job_id, upto=first.position)
    third = await appended(log, event(job_id, 3, CancelRequested()), second.position)
    assert await log.read(job_id) == [second, third]
    await log.purge(job_id, upto=third.position)
    assert await log.read(job_id) == []


async def test_the_events_of_many_jobs_are_read_as_they_were_stored(log: EventLog) -> None:
    expected: dict[str, tuple[StoredEvent, ...]] = {}
    for _ in range(40):
        first = await appended(log, event(new_id(), 1), 0)
        job_id, second = first.job_id, event(first.job_id, 2, CancelRequested())
        events = [first, await appended(log, second, first.position)]
        expected[job_id] = tuple(StoredEvent(each.position, encode(each)) for each in events)
    await log.purge(unknown := next(iter(expected)))
    del expected[unknown]
    assert await log.read_raw([*expected, unknown]) == expected
    assert await log.read_raw([]) == {}


async def test_a_job_of_more_events_than_one_answer_has_is_read_whole(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("events.bus.bus._BATCH", 3)
    last = await appended(log, event(new_id(), 1), 0)
    for version in range(2, 9):
        last = await appended(log, event(last.job_id, version, CancelRequested()), last.position)
    other = await appended(log, event(new_id(), 1), 0)
    stored = await log.read_raw([last.job_id, other.job_id])
    assert [len(stored[each.job_id]) for each in (last, other)] == [8, 1]
    assert [known.version for known in await log.read(last.job_id)] == list(range(1, 9))
