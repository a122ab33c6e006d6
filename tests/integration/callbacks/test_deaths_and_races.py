"""Deaths, outages and races during deliveries: none is lost, and each ends once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from events.bus.streams import CALLBACKS, due_subject, scheduled_subject
from events.delivery import fold_delivery
from events.ids import new_id
from events.log import Appended, Conflict, EventLog, Writer, utc_now
from events.types import CallbackAttempted, CallbackDelivered, Event, EventData, RedeliveryRequested
from tests.support.callbacks.receiver import DEADLINE_S, Receiver, status
from tests.support.callbacks.role import SETTINGS, World, ids
from tests.support.polling import eventually


async def test_an_entry_that_is_longer_in_work_than_its_ack_wait_is_sent_once(
    world: World,
) -> None:
    settings = SETTINGS.model_copy(update={"timeout_s": DEADLINE_S})
    async with Receiver([status(200, after_s=4)]) as receiver:
        async with world.callbacks(settings=settings):
            await world.end(await world.ended_job(receiver.url))
        assert len(receiver.received) == 1


async def test_an_early_entry_is_parked_until_its_time(world: World) -> None:
    """What a death between `CallbackAttempted` and parking leaves."""
    at = utc_now() + timedelta(seconds=2.5)
    async with Receiver() as receiver:
        job_id = await world.ended_job(receiver.url)
        early = CallbackAttempted(attempt=1, status=500, latency_s=0, retry_at=at)
        await world.store(world.deliveries, job_id, early)
        async with world.callbacks():
            await eventually(lambda: is_parked(world, job_id))
            await world.queue.add(job_id)  # as a router does that starts again
            await receiver.wait_for(1)
            assert utc_now() >= at
            assert (await world.end(job_id))[-1] == CallbackDelivered(attempt=2)


async def is_parked(world: World, job_id: str) -> bool:
    """Nothing but one scheduled entry is on the queue."""
    return await world.bus.pending(CALLBACKS, "callbacks.>") == {scheduled_subject(job_id): 1}


class StopsBefore:
    """A log of deliveries that never answers when an event of one kind is appended."""

    def __init__(self, log: EventLog, kind: type[EventData]) -> None:
        self._log = log
        self._kind = kind
        self.stopped = asyncio.Event()

    async def append(self, event: Event, *, expected: int) -> Appended | Conflict:
        if isinstance(event.data, self._kind):
            self.stopped.set()
            await asyncio.Event().wait()
        return await self._log.append(event, expected=expected)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


@pytest.mark.parametrize("data", [CallbackAttempted, CallbackDelivered])
async def test_a_death_before_an_event_is_stored_loses_no_delivery(
    world: World, data: type[EventData]
) -> None:
    stopping: Any = StopsBefore(world.deliveries, data)
    async with Receiver() as receiver:
        job_id = await world.ended_job(receiver.url)
        async with world.callbacks(deliveries=stopping):
            await asyncio.wait_for(stopping.stopped.wait(), DEADLINE_S)
        assert not (await world.delivery(job_id)).ended
        async with world.callbacks():
            events = await world.end(job_id)
        assert isinstance(events[-1], CallbackDelivered)
        assert len(receiver.received) == 2
        assert len(set(ids(receiver.received))) == 1


async def test_an_entry_whose_job_is_in_work_already_is_not_sent_beside_it(world: World) -> None:
    """What is left where the answer to parking was lost: the old entry, and the parked one."""
    answer = asyncio.Event()
    async with Receiver([status(200, after=answer)]) as receiver, world.callbacks():
        job_id = await world.ended_job(receiver.url)
        await receiver.wait_for(1)
        await world.queue.park(job_id, utc_now())
        await eventually(lambda: has_two_entries(world, job_id))
        answer.set()
        await world.end(job_id)
        assert len(receiver.received) == 1


async def has_two_entries(world: World, job_id: str) -> bool:
    """Two entries of the job are due."""
    return await world.bus.pending(CALLBACKS, "callbacks.>") == {due_subject(job_id): 2}


async def test_of_two_instances_that_send_the_same_one_ends_it_once(world: World) -> None:
    both_came = asyncio.Event()
    settings = SETTINGS.model_copy(update={"timeout_s": DEADLINE_S})
    async with Receiver([status(200, after=both_came)]) as receiver:
        job_id = await world.ended_job(receiver.url)
        async with world.callbacks(settings=settings), world.callbacks(settings=settings):
            await receiver.wait_for(1)
            await world.queue.park(job_id, utc_now())
            await receiver.wait_for(2)
            both_came.set()
            events = await world.end(job_id)
    assert sum(isinstance(data, CallbackDelivered) for data in events) == 1
    assert len(set(ids(receiver.received))) == 1


async def test_deliveries_go_on_after_nats_was_away(world: World) -> None:
    async with Receiver([status(200, after_s=0.05)]) as receiver:
        jobs = [await world.ended_job(receiver.url) for _ in range(100)]
        async with world.callbacks():
            await receiver.wait_for(10)
            await asyncio.to_thread(world.server.stop)
            await asyncio.to_thread(world.server.start)
            for job_id in jobs:
                assert isinstance((await world.end(job_id))[-1], CallbackDelivered)
        assert set(ids(receiver.received)) == {f"msg_{job_id}" for job_id in jobs}
        assert len(receiver.received) <= len(jobs) + SETTINGS.per_host


async def test_a_writer_of_deliveries_continues_their_own_versions(world: World) -> None:
    job_id = new_id()
    writer = Writer(world.deliveries, fold=fold_delivery)
    for _ in range(3):
        delivery, added = await writer.write(
            job_id, await world.delivery(job_id), lambda known: (RedeliveryRequested(),)
        )
        assert added == (RedeliveryRequested(),)
    assert delivery.version == 3
    assert await world.bus.pending(CALLBACKS, "callbacks.>") == {}
