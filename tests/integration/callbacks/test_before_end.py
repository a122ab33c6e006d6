"""Callbacks before the end on a real nats-server, over real sockets."""

from __future__ import annotations

import json

from events.ids import new_id
from events.queue import AT_ONCE
from events.types import CallbackAttempted, Completed, EventData, Started
from tests.support.callbacks.receiver import Received, Receiver, status
from tests.support.callbacks.role import World, ids
from tests.support.events import image, submitted

IMAGES = [image(index) for index in range(3)]
RUN: list[EventData] = [Started(attempt=1, actor="a"), *IMAGES, Completed(images=3)]


async def submit(world: World, url: str) -> str:
    job_id = new_id()
    asked = submitted(callback_url=url, callback_events=("started", "image"), images=3)
    await world.store(world.jobs, job_id, asked)
    return job_id


async def happens(world: World, job_id: str, *events: EventData) -> None:
    """Each, and what the router makes of it."""
    for event in events:
        await world.store(world.jobs, job_id, event)
        await world.queue.park(job_id, AT_ONCE)


def whole(job_id: str) -> list[str]:
    told = ["_started", "_image-0", "_image-1", "_image-2", ""]
    return [f"msg_{job_id}{each}" for each in told]


def firsts(received: list[Received]) -> list[str]:
    """Ids without those that were there before."""
    return list(dict.fromkeys(ids(received)))


async def test_each_is_told_as_it_happens(world: World) -> None:
    async with Receiver() as receiver, world.callbacks():
        job_id = await submit(world, receiver.url)
        for count, event in enumerate(RUN, start=1):
            await happens(world, job_id, event)
            await receiver.wait_for(count)
        tries = await world.end(job_id)
    assert ids(receiver.received) == whole(job_id)
    told = [each.about for each in tries if isinstance(each, CallbackAttempted)]
    assert told == ["started", "image-0", "image-1", "image-2", None]


async def test_all_at_once_are_told_in_order_and_again_where_they_were_refused(
    world: World,
) -> None:
    answers = [status(503), status(200), status(503), status(200)]
    async with Receiver(answers) as receiver, world.callbacks():
        job_id = await submit(world, receiver.url)
        await happens(world, job_id, *RUN)
        await world.end(job_id)
    first, second, third, fourth, last = whole(job_id)
    assert ids(receiver.received) == [first, first, second, second, third, fourth, last]
    assert [json.loads(each.body)["event"] for each in receiver.received][-1] == "completed"


async def test_of_two_roles_at_once_none_tells_a_later_one_first(world: World) -> None:
    slow = Receiver([status(200, after_s=0.05)])
    async with slow as receiver, world.callbacks(), world.callbacks():
        jobs = [await submit(world, receiver.url) for _ in range(5)]
        for event in RUN:
            for job_id in jobs:
                await happens(world, job_id, event)
        for job_id in jobs:
            await world.end(job_id)
    for job_id in jobs:
        mine = [each for each in firsts(receiver.received) if each.startswith(f"msg_{job_id}")]
        assert mine == whole(job_id)


async def test_a_role_that_is_killed_is_followed_by_one_that_goes_on(world: World) -> None:
    async with Receiver() as receiver:
        job_id = await submit(world, receiver.url)
        async with world.callbacks():
            await happens(world, job_id, *RUN[:2])
            await receiver.wait_for(1)
        await happens(world, job_id, *RUN[2:])
        async with world.callbacks():
            await world.end(job_id)
    assert firsts(receiver.received) == whole(job_id)
