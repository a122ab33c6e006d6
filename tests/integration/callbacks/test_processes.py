"""Several processes of the callbacks role, each with its own receivers, on a real nats-server."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import nats.js.api
import pytest

from events.bus.streams import CALLBACKS, ConsumerSpec
from events.log import utc_now
from events.types import CallbackDelivered
from events.wire.callback_keys import PARTS, parts_of
from tests.support.bus import operator
from tests.support.callbacks.receiver import DEADLINE_S, Receiver, status
from tests.support.callbacks.role import SETTINGS, World, ids
from tests.support.polling import eventually

OF_OLDER_VERSIONS = ConsumerSpec(CALLBACKS, "callbacks", "callbacks.due.*", 15, 1024)


async def run(world: World, stack: AsyncExitStack, processes: int) -> None:
    for number in range(1, processes + 1):
        parts = parts_of(number, processes) if processes > 1 else None
        await stack.enter_async_context(world.callbacks(parts=parts))


async def consumers(world: World) -> set[str]:
    return set(await world.bus.consumers(CALLBACKS))


async def test_no_receiver_has_more_at_once_for_there_being_several_processes(
    world: World,
) -> None:
    settings = SETTINGS.model_copy(update={"per_host": 2})
    async with AsyncExitStack() as stack:
        receivers = [
            await stack.enter_async_context(Receiver([status(200, after_s=0.02)])) for _ in range(6)
        ]
        jobs = [
            await world.ended_job(receiver.url, divided=True)
            for _ in range(30)
            for receiver in receivers
        ]
        for number in range(1, 5):
            parts = parts_of(number, 4)
            await stack.enter_async_context(world.callbacks(settings=settings, parts=parts))
        for job_id in jobs:
            assert isinstance((await world.end(job_id))[-1], CallbackDelivered)
        for receiver in receivers:
            assert len(set(ids(receiver.received))) == len(receiver.received) == 30
            assert receiver.most_at_once <= 2


@pytest.mark.parametrize("processes", [1, 3])
async def test_what_an_older_version_left_is_delivered(world: World, processes: int) -> None:
    """Its consumer is there as well. It has taken something that it did not acknowledge, and has
    passed over what a newer router put on the queue meanwhile.
    """
    await world.bus.ensure_consumer(OF_OLDER_VERSIONS)
    async with Receiver() as receiver:
        jobs = [await world.ended_job(receiver.url, divided=True)]
        jobs += [await world.ended_job(receiver.url) for _ in range(10)]
        later = await world.ended_job(receiver.url)
        await world.bus.purge(CALLBACKS, f"callbacks.due.{later}")
        await world.queue.park(later, utc_now())
        async with world.bus.puller(CALLBACKS, "callbacks") as puller:
            assert await puller.next(batch=3, timeout_s=5)
        jobs += [later, await world.ended_job(receiver.url, divided=True)]
        async with AsyncExitStack() as stack:
            await run(world, stack, processes)
            for job_id in jobs:
                assert isinstance((await world.end(job_id))[-1], CallbackDelivered)
        assert set(ids(receiver.received)) == {f"msg_{job_id}" for job_id in jobs}


async def test_one_process_has_one_consumer(world: World) -> None:
    async with AsyncExitStack() as stack:
        await run(world, stack, 3)
        names = {f"callbacks-{part}" if part else "callbacks" for part in PARTS}

        async def have_all() -> bool:
            return await consumers(world) == names

        await eventually(have_all)
    async with AsyncExitStack() as stack:
        await run(world, stack, 1)

        async def has_one() -> bool:
            return await consumers(world) == {"callbacks"}

        await eventually(has_one)
        async with operator(world.server) as client:
            info = await client.jetstream().consumer_info(CALLBACKS, "callbacks")
        assert len(info.config.filter_subjects or []) == len(PARTS)
        assert info.config.ack_policy == nats.js.api.AckPolicy.EXPLICIT


@pytest.mark.parametrize("numbers", [(1, 3), (3, 1), (2, 3), (4, 2)])
async def test_nothing_is_lost_where_another_number_of_processes_begins_while_the_old_work(
    world: World, numbers: tuple[int, int]
) -> None:
    """What the old ones have in hand may be sent twice, under one id."""
    before, after = numbers
    settings = SETTINGS.model_copy(update={"timeout_s": DEADLINE_S})
    taken = asyncio.Event()
    async with Receiver([status(200, after=taken)]) as hanging, Receiver() as quick:
        old, new = AsyncExitStack(), AsyncExitStack()
        async with old, new:
            jobs = [await world.ended_job(hanging.url, divided=True)]
            for number in range(1, before + 1):
                parts = parts_of(number, before) if before > 1 else None
                await old.enter_async_context(world.callbacks(settings=settings, parts=parts))
            await hanging.wait_for(1)
            for _ in range(20):
                jobs.append(await world.ended_job(quick.url, divided=True))
                jobs.append(await world.ended_job(quick.url))
            await run(world, new, after)
            jobs += [await world.ended_job(quick.url, divided=True) for _ in range(20)]
            await eventually(lambda: quick.received)
            await old.aclose()
            taken.set()
            for job_id in jobs:
                assert isinstance((await world.end(job_id))[-1], CallbackDelivered)
        sent = set(ids(hanging.received)) | set(ids(quick.received))
        assert sent == {f"msg_{job_id}" for job_id in jobs}
