"""The parts of a callback queue: in memory and on JetStream."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import chain

import pytest

from events.bus.queues import JetStreamCallbackQueue
from events.ids import new_id
from events.log import utc_now
from events.memory.queues import MemoryCallbackQueue
from events.queue import AT_ONCE, CallbackQueue
from events.wire.callback_keys import ALL_DIVIDED, ALONE, PARTS, UNDIVIDED, job_id_of, single_parts

HOUR = timedelta(hours=1)


@pytest.fixture(params=["memory", "jetstream"])
def queue(request: pytest.FixtureRequest) -> CallbackQueue:
    if request.param == "memory":
        return MemoryCallbackQueue()
    return JetStreamCallbackQueue(request.getfixturevalue("bus"))


def keys() -> list[str]:
    """One of each part."""
    return [f"{part}.{new_id()}" if part else new_id() for part in PARTS]


async def taken(queue: CallbackQueue, *parts: str) -> list[str]:
    """The keys of all that is due in these parts, which is acknowledged."""
    found = await asyncio.gather(*(_taken(queue, part) for part in parts))
    return list(chain(*found))


async def _taken(queue: CallbackQueue, part: str) -> list[str]:
    found: list[str] = []
    async with queue.due(most_held=50, hold_s=30, part=part) as due:
        while entries := await due.next(most=50, timeout_s=0.3):
            assert all(each.job_id == job_id_of(each.key) for each in entries)
            found += [each.key for each in entries]
            for entry in entries:
                await entry.ack()
    return found


async def test_two_readers_take_what_is_in_any_part(queue: CallbackQueue) -> None:
    every = keys()
    for key in every:
        await queue.add(key)
        await queue.add(key)
    assert await taken(queue, UNDIVIDED) == every[:1]
    assert sorted(await taken(queue, ALL_DIVIDED)) == sorted(every[1:])
    assert await queue.job_ids() == set()


async def test_a_reader_of_a_part_takes_what_is_in_it_alone(queue: CallbackQueue) -> None:
    every, more = keys(), keys()
    for key in every:
        await queue.add(key)
    for key in more:
        await queue.park(key, utc_now() + HOUR)
        await queue.park(key, AT_ONCE)

    async def take_both(part: str, *mine: str) -> None:
        left = list(mine)
        while left:
            for key in await taken(queue, part):
                left.remove(key)

    async with asyncio.timeout(10):
        await asyncio.gather(*map(take_both, PARTS, every, more))
    assert await queue.job_ids() == set()


async def test_what_waits_is_known_by_its_job_in_whichever_part(queue: CallbackQueue) -> None:
    every = keys()
    for number, key in enumerate(every):
        if number % 2:
            await queue.add(key)
        else:
            await queue.park(key, utc_now() + HOUR)
    jobs = set(map(job_id_of, every))
    assert await queue.waiting([*jobs, new_id()]) == await queue.job_ids() == jobs


async def test_lines_are_those_of_the_parts_that_are_asked_for(queue: CallbackQueue) -> None:
    every = keys()
    for key in every:
        await queue.park(key, utc_now() + HOUR, line=f"line of {key}")
    for parts in (PARTS, ALONE, PARTS[:1], PARTS[2:4]):
        found = {key: line async for page in queue.in_line(parts) for key, line in page.items()}
        mine = [key for part, key in zip(PARTS, every, strict=True) if part in single_parts(parts)]
        assert found == {key: f"line of {key}" for key in mine}


async def test_readers_of_one_part_and_of_all_may_follow_one_another(queue: CallbackQueue) -> None:
    for _ in range(2):
        first, second = keys(), keys()
        for key in first:
            await queue.add(key)
        assert sorted(await taken(queue, *ALONE)) == sorted(first)
        for key in second:
            await queue.add(key)
        assert sorted(await taken(queue, *PARTS)) == sorted(second)
