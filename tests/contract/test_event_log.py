"""One suite over both event logs: in memory, and on a real nats-server."""

from __future__ import annotations

import asyncio
from operator import attrgetter

import pytest

from events.bus.jetstream_log import JetStreamLog
from events.cloud_events import encode
from events.errors import HistoryGone
from events.ids import new_id
from events.log import Appended, Conflict, EventLog, EventReader, StoredEvent
from events.types import CancelRequested, Event, JobEvent, Started
from tests.support.events import appended, erased, new_event
from tests.support.memory.log import MemoryLog
from tests.support.patience import FACTOR


@pytest.fixture(params=["memory", "jetstream"])
def log(request: pytest.FixtureRequest) -> EventLog:
    if request.param == "memory":
        return MemoryLog()
    return JetStreamLog(request.getfixturevalue("bus"))


async def stored(log: EventLog, *later: JobEvent) -> list[Event]:
    """Store a new job: its submission, and these events after it."""
    events = [await appended(log, new_event())]
    for data in later:
        events.append(await stored_behind(log, events[-1], data))
    return events


async def stored_behind(log: EventLog, last: Event, data: JobEvent) -> Event:
    return await appended(log, new_event(last.job_id, last.version + 1, data), last.position)


async def test_what_was_appended_is_read_in_order(log: EventLog) -> None:
    [first] = await stored(log)
    [other] = await stored(log)
    second = await stored_behind(log, first, Started(attempt=1, actor="a"))
    assert await log.read(first.job_id) == [first, second]
    assert await log.last(first.job_id) == second
    assert await log.read(other.job_id) == [other]


async def test_a_stale_append_stores_nothing_and_returns_what_came_before(log: EventLog) -> None:
    first, second = await stored(log, CancelRequested())
    late = new_event(first.job_id, 2, Started(attempt=1, actor="late"))
    assert await log.append(late, expected=first.position) == Conflict((second,))
    assert await log.read(first.job_id) == [first, second]


async def test_the_same_event_sent_again_is_stored_once_also_after_others(log: EventLog) -> None:
    new = new_event()
    first = await appended(log, new)
    assert await appended(log, new) == first
    second = await stored_behind(log, first, CancelRequested())
    assert await appended(log, new) == first
    assert await log.read(new.job_id) == [first, second]


async def test_of_many_writers_at_one_position_exactly_one_wins(log: EventLog) -> None:
    [first] = await stored(log)
    starts = [Started(attempt=1, actor=str(n)) for n in range(30)]
    events = [new_event(first.job_id, 2, start) for start in starts]
    outcomes = await asyncio.gather(*(log.append(each, expected=first.position) for each in events))
    assert sum(isinstance(outcome, Appended) for outcome in outcomes) == 1
    assert len(await log.read(first.job_id)) == 2


async def test_a_reader_follows_from_where_it_is_told(log: EventLog) -> None:
    known = [event for _ in range(20) for event in await stored(log)]
    async with log.reader(after=known[7].position) as reader:
        assert await read_all(reader) == known[8:]
        later = await stored(log)
        assert await reader.next(2) == later


async def test_a_reader_that_was_told_nothing_for_a_while_is_told_what_comes(log: EventLog) -> None:
    async with log.reader(after=0) as reader:
        for _ in range(5):
            assert await reader.next(0) == []
        new = await stored(log)
        assert await read_until(reader, new[-1]) == new
        assert await reader.next(0) == []


async def read_all(reader: EventReader) -> list[Event]:
    known: list[Event] = []
    while batch := await reader.next(0.5):
        known += batch
    return known


async def test_a_watch_sees_what_is_stored_for_its_job_once(log: EventLog) -> None:
    job_id = new_id()
    async with log.watch(job_id) as subscription:
        first = await appended(log, new_event(job_id))
        await stored(log)
        refused = await log.append(new_event(job_id), expected=0)
        assert isinstance(refused, Conflict)
        second = await stored_behind(log, first, CancelRequested())
        assert await subscription.next(2) == first
        assert await subscription.next(2) == second
        assert await subscription.next(0.2) is None


async def test_a_purge_keeps_the_last_event_and_its_place(log: EventLog) -> None:
    _, second, last = await stored(log, CancelRequested(), erased())
    [other] = await stored(log)
    for _ in range(2):
        await log.purge(last.job_id, keep=1)
        assert await log.read(last.job_id) == [last]
        assert await log.last(last.job_id) == last
    late = new_event(last.job_id, 3, Started(attempt=1, actor="late"))
    assert await log.append(late, expected=second.position) == Conflict((last,))
    assert await log.append(new_event(last.job_id), expected=0) == Conflict((last,))
    async with log.reader(after=0) as reader:
        found = await read_all(reader)
        assert sorted(found, key=attrgetter("time")) == [last, other]


async def test_a_purge_of_everything_leaves_an_unknown_job(log: EventLog) -> None:
    [first] = await stored(log)
    await log.purge(first.job_id)
    await log.purge(first.job_id)
    assert await log.read(first.job_id) == []
    assert await log.last(first.job_id) is None
    with pytest.raises(HistoryGone):
        await stored_behind(log, first, CancelRequested())


async def read_until(reader: EventReader, last: Event) -> list[Event]:
    found: list[Event] = []
    async with asyncio.timeout(10 * FACTOR):
        while not found or found[-1] != last:
            found += await reader.next(1)
    return found


async def test_a_purge_up_to_a_position_keeps_what_came_later(log: EventLog) -> None:
    first, second = await stored(log, CancelRequested())
    job_id = first.job_id
    await log.purge(job_id, upto=first.position)
    for _ in range(2):
        assert await log.read(job_id) == [second]
        await log.purge(job_id, upto=first.position)
    third = await stored_behind(log, second, CancelRequested())
    assert await log.read(job_id) == [second, third]
    await log.purge(job_id, upto=third.position)
    assert await log.read(job_id) == []


async def test_the_events_of_many_jobs_are_read_as_they_were_stored(log: EventLog) -> None:
    expected: dict[str, tuple[StoredEvent, ...]] = {}
    for _ in range(40):
        events = await stored(log, CancelRequested())
        raw = tuple(StoredEvent(each.position, encode(each)) for each in events)
        expected[events[0].job_id] = raw
    await log.purge(unknown := next(iter(expected)))
    del expected[unknown]
    assert await log.read_raw([*expected, unknown]) == expected
    assert await log.read_raw([]) == {}


async def test_a_job_of_more_events_than_one_answer_has_is_read_whole(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("events.bus.bus._BATCH", 3)
    events = await stored(log, *[CancelRequested()] * 7)
    other = await stored(log)
    found = await log.read_raw([events[0].job_id, other[0].job_id])
    assert [len(found[each[0].job_id]) for each in (events, other)] == [8, 1]
    assert await log.read(events[0].job_id) == events
