"""The promises of every job queue: in memory and on JetStream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import pytest

from events.bus.queues import EntryConsumer, JobQueue, QueueEntry
from events.errors import LogUnavailable
from events.ids import new_id
from events.log import utc_now
from tests.support.events import LATER
from tests.support.memory.queues import MemoryJobQueue
from tests.support.patience import FACTOR

LEASE_S = 1.0 * FACTOR
LANE = 3


@pytest.fixture(params=["memory", "jetstream"])
def queue(request: pytest.FixtureRequest) -> JobQueue:
    if request.param == "memory":
        return MemoryJobQueue(lease_s=LEASE_S)
    return JobQueue(request.getfixturevalue("bus"), lease_s=LEASE_S)


async def taken(entries: EntryConsumer, *, within_s: float = 30.0) -> QueueEntry:
    [entry] = await entries.next(most=1, timeout_s=within_s)
    return entry


@asynccontextmanager
async def held(queue: JobQueue) -> AsyncIterator[tuple[EntryConsumer, QueueEntry]]:
    """A reader of the lane, and the entry of `a-job`, which it holds."""
    await queue.add("default", LANE, "a-job", deadline=LATER)
    async with queue.consume("default", LANE) as entries:
        yield entries, await taken(entries)


async def test_an_entry_is_delivered_to_one_holder_at_a_time(queue: JobQueue) -> None:
    await queue.add("default", LANE, "a-job", deadline=LATER)
    async with queue.consume("default", LANE) as one, queue.consume("default", LANE) as other:
        assert (await taken(one)).job_id == "a-job"
        assert await other.next(most=1, timeout_s=0.2) == []


async def test_entries_come_in_the_order_in_which_they_were_added(queue: JobQueue) -> None:
    jobs = [new_id() for _ in range(5)]
    for job_id in jobs:
        await queue.add("default", LANE, job_id, deadline=LATER)
    async with queue.consume("default", LANE) as entries:
        first = await entries.next(most=3, timeout_s=5)
        rest = await entries.next(most=5, timeout_s=5)
    assert [entry.job_id for entry in (*first, *rest)] == jobs
    assert len(first) == 3


async def test_lanes_and_endpoints_do_not_mix(queue: JobQueue) -> None:
    await queue.add("default", LANE, "mine", deadline=LATER)
    await queue.add("default", LANE + 1, "other-lane", deadline=LATER)
    await queue.add("other", LANE, "other-endpoint", deadline=LATER)
    async with queue.consume("default", LANE) as entries:
        assert (await taken(entries)).job_id == "mine"
        assert await entries.next(most=1, timeout_s=0.2) == []
    assert await queue.job_ids() == {"mine", "other-lane", "other-endpoint"}
    assert await queue.depth("default") == 2


async def test_a_job_that_waits_or_runs_is_not_queued_twice(queue: JobQueue) -> None:
    await queue.add("default", LANE, "a-job", deadline=LATER)
    async with held(queue) as (entries, entry):
        await queue.add("default", LANE, "a-job", deadline=LATER)
        assert await queue.depth("default") == 1
        await entry.ack()
        assert await entries.next(most=1, timeout_s=1.2 * LEASE_S) == []
        assert await queue.job_ids() == set()
        await queue.add("default", LANE, "a-job", deadline=LATER)
        assert (await taken(entries)).job_id == "a-job"


async def test_an_entry_that_is_put_again_comes_once_whoever_held_it(queue: JobQueue) -> None:
    due = utc_now() + timedelta(hours=1)
    await queue.add("default", LANE, "a-job", deadline=due)
    [before] = await queue.queued("default", after=0, most=5)
    async with queue.consume("default", LANE) as entries:
        old = await taken(entries)
        await queue.put_again("default", LANE, "a-job", deadline=due)
        new = await taken(entries)
        assert new.job_id == "a-job"
        for act in (old.renew, old.nak, old.ack):
            await act()
        assert await entries.next(most=1, timeout_s=0.2) == []
        [after] = await queue.queued("default", after=0, most=5)
        assert after.position > before.position
        assert (after.lane, after.deadline) == (LANE, due)
        await new.ack()
    assert await queue.depth("default") == 0 or await queue.job_ids() == set()


async def test_an_entry_that_is_not_renewed_is_delivered_again(queue: JobQueue) -> None:
    async with held(queue) as (entries, first):
        again = await taken(entries, within_s=3 * LEASE_S)
    assert again.job_id == first.job_id


async def test_an_entry_that_is_renewed_stays_with_its_holder(queue: JobQueue) -> None:
    async with held(queue) as (entries, entry):
        for _ in range(5):
            await asyncio.wait_for(entry.renew(), 1)
            assert await entries.next(most=1, timeout_s=0.4 * LEASE_S) == []


async def test_an_entry_is_held_for_as_long_as_its_holder_says(queue: JobQueue) -> None:
    for job_id in ("short", "long"):
        await queue.add("default", LANE, job_id, deadline=LATER)
    async with queue.consume("default", LANE) as entries:
        short, long = await taken(entries), await taken(entries)
        for _ in range(4):
            await short.redeliver_in(0.5 * LEASE_S)
            await long.redeliver_in(2 * LEASE_S)
            assert await entries.next(most=1, timeout_s=0.3 * LEASE_S) == []
        again = await taken(entries, within_s=0.8 * LEASE_S)
        await again.ack()
        assert again.job_id == "short"
        assert (await taken(entries, within_s=5 * LEASE_S)).job_id == "long"


async def test_what_is_held_for_a_short_time_is_renewed_for_a_full_one(queue: JobQueue) -> None:
    async with held(queue) as (entries, entry):
        await entry.redeliver_in(0.2 * LEASE_S)
        await entry.renew()
        assert await entries.next(most=1, timeout_s=0.7 * LEASE_S) == []
        await entry.redeliver_in(0.2 * LEASE_S)
        await entry.ack()
        assert await entries.next(most=1, timeout_s=0.7 * LEASE_S) == []
    assert await queue.job_ids() == set()


async def test_one_that_is_given_back_comes_behind_one_that_was_not_renewed(
    queue: JobQueue,
) -> None:
    for job_id in ("hung", "in-hand", "new"):
        await queue.add("default", LANE, job_id, deadline=LATER)
    async with queue.consume("default", LANE) as entries:
        await taken(entries)
        in_hand = await taken(entries)
        for _ in range(4):
            await in_hand.renew()
            await asyncio.sleep(0.4 * LEASE_S)
        await in_hand.nak()
        await asyncio.sleep(0.1)  # no call waits until the server has it
        found = [(await taken(entries)).job_id for _ in range(3)]
    assert found == ["hung", "in-hand", "new"]


async def test_an_ack_subject_opens_the_entry_in_another_process(queue: JobQueue) -> None:
    async with held(queue) as (entries, entry):
        opened = queue.entry("a-job", entry.ack_subject)
        assert abs(utc_now() - opened.stored_at) < timedelta(seconds=30)
        assert (opened.job_id, opened.ack_subject) == ("a-job", entry.ack_subject)
        await opened.nak()
        await taken(entries, within_s=0.8 * LEASE_S)  # at once
        await opened.ack()  # of an earlier delivery: it is no fence
        assert await entries.next(most=1, timeout_s=1.5 * LEASE_S) == []


async def test_of_two_readers_that_wait_one_is_given_the_entry(queue: JobQueue) -> None:
    async with queue.consume("default", LANE) as one, queue.consume("default", LANE) as other:
        waiting = [asyncio.create_task(each.next(most=1, timeout_s=0.8)) for each in (one, other)]
        await asyncio.wait(waiting, timeout=0.2)
        await queue.add("default", LANE, "a-job", deadline=LATER)
        found = [entry.job_id for each in waiting for entry in await each]
    assert found == ["a-job"]


async def test_an_entry_that_is_gone_acts_on_no_later_one_of_its_job(queue: JobQueue) -> None:
    async with held(queue) as (entries, gone):
        await gone.ack()
        await queue.add("default", LANE, "a-job", deadline=LATER)
        await gone.ack()
        later = await taken(entries)
        await gone.nak()
        await gone.renew()
        assert await entries.next(most=1, timeout_s=0.5 * LEASE_S) == []
        await later.ack()
    assert await queue.job_ids() == set()


async def test_an_entry_that_is_removed_from_its_holder_is_gone(queue: JobQueue) -> None:
    async with held(queue) as (entries, entry):
        for _ in range(2):
            await queue.remove("default", LANE, "a-job")
        assert await queue.job_ids() == set()
        await entry.nak()
        assert await entries.next(most=1, timeout_s=1.5 * LEASE_S) == []
        await queue.add("default", LANE, "a-job", deadline=LATER)
        assert (await taken(entries)).job_id == "a-job"


async def test_it_tells_of_what_is_queued_without_taking_it(queue: JobQueue) -> None:
    deadline = utc_now()
    await queue.add("default", LANE, "first", deadline=deadline)
    await queue.add("other", LANE, "other-endpoint", deadline=deadline)
    await queue.add("default", LANE + 1, "second", deadline=LATER)
    await queue.add("default", LANE, "third", deadline=deadline)
    first, second, third = await queue.queued("default", after=0, most=10)
    assert (first.job_id, first.lane, first.deadline) == ("first", LANE, deadline)
    assert (second.job_id, second.lane, second.deadline) == ("second", LANE + 1, LATER)
    assert await queue.queued("default", after=0, most=2) == [first, second]
    assert await queue.queued("default", after=second.position, most=2) == [third]
    assert await queue.queued("default", after=third.position, most=2) == []
    assert await queue.queued("unknown", after=0, most=2) == []
    async with queue.consume("default", LANE) as entries:
        entry = await taken(entries)
        assert await queue.queued("default", after=0, most=9) == [first, second, third]
        await entry.ack()
    assert await queue.queued("default", after=0, most=9) == [second, third]


async def test_what_happens_on_it_does_not_make_it_another_queue(queue: JobQueue) -> None:
    made_at = await queue.made_at()
    await queue.add("default", LANE, "a-job", deadline=LATER)
    await queue.remove("default", LANE, "a-job")
    assert await queue.made_at() == made_at


async def test_it_knows_the_endpoints_that_have_entries_or_readers(queue: JobQueue) -> None:
    await queue.add("has-entries", LANE, "a-job", deadline=LATER)
    async with queue.consume("default", LANE), queue.consume("default", LANE + 1):
        assert await queue.endpoints() == {"has-entries", "default"}
    await queue.forget("default")
    await queue.forget("unknown")
    assert await queue.endpoints() == {"has-entries"}


async def test_an_endpoint_that_was_forgotten_is_read_again(queue: JobQueue) -> None:
    await queue.add("default", LANE, "a-job", deadline=LATER)
    async with queue.consume("default", LANE) as entries:
        await queue.forget("default")
        with suppress(LogUnavailable):
            await entries.next(most=1, timeout_s=0.5)
    async with queue.consume("default", LANE) as entries:
        assert (await taken(entries)).job_id == "a-job"


async def test_it_knows_how_many_entries_of_the_endpoint_stand_before_one(queue: JobQueue) -> None:
    await queue.add("default", LANE, "first", deadline=LATER)
    await queue.add("other", LANE, "elsewhere", deadline=LATER)
    await queue.add("default", LANE + 1, "second", deadline=LATER)
    await queue.add("default", LANE, "third", deadline=LATER)
    async with queue.consume("default", LANE) as entries:
        held = await taken(entries)  # it runs, and stands there still
        assert await queue.ahead("default", LANE, "first") == 0
        assert await queue.ahead("default", LANE + 1, "second") == 1
        assert await queue.ahead("default", LANE, "third") == 2
        assert await queue.ahead("other", LANE, "elsewhere") == 0
        await held.ack()
    assert await queue.ahead("default", LANE, "third") == 1
    assert await queue.ahead("default", LANE, "first") is None
    assert await queue.ahead("default", LANE, "unknown") is None
