"""Several processes of the callbacks role, each with its own receivers, on a real nats-server."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from events.bus.streams import CALLBACKS, ConsumerSpec, callbacks_consumer
from events.errors import LogUnavailable
from events.log import utc_now
from events.types import CallbackDelivered
from events.wire.callback_keys import PARTS, parts_of
from tests.support.bus import operator
from tests.support.callbacks.receiver import DEADLINE_S, Receiver, status
from tests.support.callbacks.role import SETTINGS, World, ids
from tests.support.polling import eventually

OF_OLDER_VERSIONS = ConsumerSpec(CALLBACKS, "callbacks", ("callbacks.due.*",), 15, 1024)


async def run(world: World, stack: AsyncExitStack, processes: int) -> None:
    for number in range(1, processes + 1):
        await stack.enter_async_context(world.callbacks(parts=parts_of(number, processes)))


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
            assert await puller.follow(batch=3, timeout_s=5)
        jobs += [later, await world.ended_job(receiver.url, divided=True)]
        async with AsyncExitStack() as stack:
            await run(world, stack, processes)
            for job_id in jobs:
                assert isinstance((await world.end(job_id))[-1], CallbackDelivered)
        assert set(ids(receiver.received)) == {f"msg_{job_id}" for job_id in jobs}


async def test_one_process_asks_two_consumers(world: World) -> None:
    """The first is that of older versions, and stays as it is."""
    await world.bus.ensure_consumer(OF_OLDER_VERSIONS)
    for processes in (3, 1):
        async with AsyncExitStack() as stack:
            await run(world, stack, processes)
            parts = PARTS if processes > 1 else ("", "all")
            names = {f"callbacks-{part}" if part else "callbacks" for part in parts}

            async def are_there(names: set[str] = names) -> bool:
                return await consumers(world) == names

            await eventually(are_there)
    async with operator(world.server) as client:
        info = await client.jetstream().consumer_info(CALLBACKS, "callbacks")
    assert info.config.filter_subject == OF_OLDER_VERSIONS.subjects[0]


@pytest.mark.parametrize("processes", [1, 3])
async def test_an_older_version_may_run_beside(world: World, processes: int) -> None:
    """It takes what has no part, as we do, and sees nothing else."""
    await world.bus.ensure_consumer(OF_OLDER_VERSIONS)
    async with (
        Receiver() as receiver,
        world.bus.puller(CALLBACKS, "callbacks") as puller,
        AsyncExitStack() as stack,
    ):
        old = asyncio.create_task(puller.follow(batch=1, timeout_s=DEADLINE_S))
        await asyncio.sleep(0.1)
        await run(world, stack, processes)
        divided = await world.ended_job(receiver.url, divided=True)
        assert isinstance((await world.end(divided))[-1], CallbackDelivered)
        assert not old.done()
        undivided = await world.ended_job(receiver.url)
        [message] = await old
        assert message.subject == f"callbacks.due.{undivided}"
        await world.bus.ack(message.ack_subject)
        assert await world.events(undivided) == []


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
                parts = parts_of(number, before)
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


async def test_whoever_may_not_begin_yet_takes_no_consumer_away(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A process with a full hand asks for nothing, and others do."""
    async with AsyncExitStack() as stack:
        await run(world, stack, 3)

        async def are_there() -> bool:
            return len(await consumers(world)) == len(PARTS)

        await eventually(are_there)
        before = await consumers(world)
        await world.bus.delete_consumer(CALLBACKS, "callbacks-0")
        busy = callbacks_consumer("0", most_held=4, hold_s=30)
        await world.bus.ensure_consumer(busy)
        for _ in range(2):
            with pytest.raises(LogUnavailable):
                async with world.queue.due(most_held=4, hold_s=30, part="all"):
                    pass
        assert await consumers(world) == before
    assert sum("another number" in message for message in caplog.messages) == 1
