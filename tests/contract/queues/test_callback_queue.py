"""The promises of every callback queue: in memory and on JetStream."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from events.bus.queues import AT_ONCE, CallbackQueue
from events.ids import new_id
from events.log import utc_now
from tests.support.memory.queues import MemoryCallbackQueue
from tests.support.patience import FACTOR
from tests.support.polling import eventually

HOLD_S = 1.0 * FACTOR


@pytest.fixture(params=["memory", "jetstream"])
def queue(request: pytest.FixtureRequest) -> CallbackQueue:
    if request.param == "memory":
        return MemoryCallbackQueue()
    return CallbackQueue(request.getfixturevalue("bus"))


async def test_what_is_added_is_due_once(queue: CallbackQueue) -> None:
    for _ in range(2):
        await queue.add("a-job")
    async with queue.due(max_unacknowledged=10, ack_wait_s=HOLD_S) as due:
        [entry] = await due.next(most=5, timeout_s=5)
        assert entry.job_id == "a-job"
        await entry.ack()
        assert await due.next(most=5, timeout_s=1.5 * HOLD_S) == []
    assert await queue.job_ids() == set()


async def test_what_is_neither_renewed_nor_acknowledged_comes_again(queue: CallbackQueue) -> None:
    await queue.add("a-job")
    async with queue.due(max_unacknowledged=10, ack_wait_s=HOLD_S) as due:
        assert len(await due.next(most=1, timeout_s=5)) == 1
        assert len(await due.next(most=1, timeout_s=3 * HOLD_S)) == 1


async def test_what_is_parked_in_a_line_is_found_there_until_it_is_due_or_leaves_it(
    queue: CallbackQueue,
) -> None:
    later = utc_now() + timedelta(hours=1)
    await queue.add("due")
    await queue.park("elsewhere", later)
    await queue.park("slow", later, receiver="https://slow.example:443")
    await queue.park("left", later, receiver="https://slow.example:443")
    await queue.park("left", later)
    await queue.park("came", AT_ONCE, receiver="https://slow.example:443")
    async with queue.due(max_unacknowledged=10, ack_wait_s=30) as due:
        taken: list[str] = []
        while len(taken) < 2:
            taken += [entry.job_id for entry in await due.next(most=2, timeout_s=5)]
    found = [page async for page in queue.parked_by_receiver()]
    assert found == [{"slow": "https://slow.example:443"}]


async def test_readers_together_hold_no_more_than_is_allowed(queue: CallbackQueue) -> None:
    for _ in range(5):
        await queue.add(new_id())
    async with queue.due(max_unacknowledged=3, ack_wait_s=30) as due:
        held = await due.next(most=5, timeout_s=5)
        assert len(held) == 3
        assert await due.next(most=5, timeout_s=0.3) == []
        await held[0].ack()

        async def one_more() -> bool:
            return len(await due.next(most=5, timeout_s=1)) == 1

        await eventually(one_more)


async def test_two_readers_hold_no_more_than_is_allowed_between_them(queue: CallbackQueue) -> None:
    for _ in range(5):
        await queue.add(new_id())
    async with (
        queue.due(max_unacknowledged=3, ack_wait_s=30) as one,
        queue.due(max_unacknowledged=3, ack_wait_s=30) as other,
    ):
        assert len(await one.next(most=2, timeout_s=5)) == 2
        assert len(await other.next(most=5, timeout_s=5)) == 1
        assert await one.next(most=5, timeout_s=0.3) == []


async def test_a_reader_that_allows_less_takes_nothing_while_more_is_held(
    queue: CallbackQueue,
) -> None:
    for _ in range(10):
        await queue.add(new_id())
    async with queue.due(max_unacknowledged=3, ack_wait_s=30) as one:
        assert len(await one.next(most=3, timeout_s=5)) == 3
        async with queue.due(max_unacknowledged=1, ack_wait_s=30) as other:
            assert await other.next(most=5, timeout_s=0.3) == []


async def test_what_is_held_stays_with_its_holder_until_it_is_given_back(
    queue: CallbackQueue,
) -> None:
    await queue.add("a-job")
    async with queue.due(max_unacknowledged=10, ack_wait_s=HOLD_S) as due:
        [entry] = await due.next(most=1, timeout_s=5)
        for _ in range(4):
            await entry.renew()
            assert await due.next(most=1, timeout_s=0.4 * HOLD_S) == []
        await entry.nak()
        [again] = await due.next(most=1, timeout_s=0.8 * HOLD_S)
        assert again.job_id == "a-job"


@pytest.mark.parametrize(
    "until",
    [
        AT_ONCE,
        (utc_now() - timedelta(minutes=1)).astimezone(timezone(timedelta(hours=9))),
    ],
    ids=["at-once", "tokyo"],
)
async def test_what_is_parked_until_a_time_that_is_over_is_due(
    queue: CallbackQueue, until: datetime
) -> None:
    await queue.park("a-job", utc_now() + timedelta(hours=1))
    assert await queue.job_ids() == {"a-job"}
    await queue.park("a-job", until)
    async with queue.due(max_unacknowledged=10, ack_wait_s=30) as due:
        [entry] = await due.next(most=1, timeout_s=5)
        assert entry.job_id == "a-job"
        await entry.ack()
    assert await queue.job_ids() == set()


async def test_what_is_parked_is_due_again_although_it_was_added_meanwhile(
    queue: CallbackQueue,
) -> None:
    await queue.park("a-job", utc_now() + timedelta(seconds=2 * FACTOR))
    await queue.add("a-job")
    async with queue.due(max_unacknowledged=10, ack_wait_s=30) as due:
        [added] = await due.next(most=5, timeout_s=1)
        await added.ack()
        assert await queue.job_ids() == {"a-job"}
        [parked] = await due.next(most=5, timeout_s=30)
        assert parked.job_id == "a-job"


async def test_an_entry_says_when_it_became_due_by_the_clock_of_the_queue(
    queue: CallbackQueue,
) -> None:
    until = utc_now() + timedelta(seconds=0.3)
    await queue.park("a-job", until)
    async with queue.due(max_unacknowledged=10, ack_wait_s=0.3) as due:
        for _ in range(2):  # and that is the same however often it is delivered
            [entry] = await due.next(most=1, timeout_s=5)
            assert until <= entry.stored_at <= until + timedelta(seconds=1)


async def test_it_tells_of_any_number_of_jobs_whether_they_wait(queue: CallbackQueue) -> None:
    job_ids = [new_id() for _ in range(700)]
    await queue.add(job_ids[3])
    await queue.add(new_id())
    await queue.park(job_ids[3], utc_now() + timedelta(hours=1))
    await queue.park(job_ids[-1], utc_now() + timedelta(hours=1))
    assert await queue.waiting(job_ids) == {job_ids[3], job_ids[-1]}
    assert await queue.waiting(job_ids[4:9]) == set()
    assert await queue.waiting([]) == set()
