"""Deaths, outages and races during deliveries: none is lost, and each ends once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from actors.callbacks.reaper import CallbackReaper
from events.bus.queues import AT_ONCE
from events.bus.streams import CALLBACKS, due_subject, scheduled_subject
from events.errors import LogUnavailable
from events.ids import new_id
from events.log import Appended, Conflict, EventLog, utc_now
from events.store.read_model import ReadModel
from events.types import (
    CallbackAttempted,
    CallbackDelivered,
    Completed,
    Event,
    EventData,
    Started,
)
from tests.support.callbacks.receiver import DEADLINE_S, Receiver, status
from tests.support.callbacks.role import LIMITS, World, ids
from tests.support.events import image, submitted
from tests.support.polling import eventually, running


async def test_an_entry_that_is_longer_in_work_than_its_ack_wait_is_sent_once(
    world: World,
) -> None:
    async with Receiver([status(200, after_s=2.5)]) as receiver:
        async with world.callbacks(timeout_s=DEADLINE_S):
            await world.end(await world.ended_job(receiver.url))
        assert len(receiver.received) == 1


async def test_an_early_entry_is_parked_until_its_time(world: World) -> None:
    """What a death between `CallbackAttempted` and parking leaves."""
    at = utc_now() + timedelta(seconds=10)
    async with Receiver() as receiver:
        job_id = await world.ended_job(receiver.url)
        early = CallbackAttempted(attempt=1, status=500, latency_s=0, retry_at=at)
        await world.store(world.deliveries, job_id, early)
        async with world.callbacks():
            await eventually(lambda: are_queued(world, {scheduled_subject(job_id): 1}))
            await world.queue.add(job_id)  # as a router does that starts again
            await receiver.wait_for(1)
            assert utc_now() >= at
            assert (await world.end(job_id))[-1] == CallbackDelivered(attempt=2)


async def are_queued(world: World, entries: dict[str, int]) -> bool:
    """Whether these entries are on the queue, by their subjects, and no others."""
    return await world.bus.pending(CALLBACKS, "callbacks.>") == entries


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
        await eventually(lambda: are_queued(world, {due_subject(job_id): 2}))
        answer.set()
        await world.end(job_id)
        assert len(receiver.received) == 1


async def test_of_two_instances_that_send_the_same_one_ends_it_once(world: World) -> None:
    both_came = asyncio.Event()
    async with Receiver([status(200, after=both_came)]) as receiver:
        job_id = await world.ended_job(receiver.url)
        async with world.callbacks(timeout_s=DEADLINE_S), world.callbacks(timeout_s=DEADLINE_S):
            await receiver.wait_for(1)
            await world.queue.park(job_id, utc_now())
            await receiver.wait_for(2)
            both_came.set()
            events = await world.end(job_id)
    assert sum(isinstance(data, CallbackDelivered) for data in events) == 1
    assert len(set(ids(receiver.received))) == 1


async def test_deliveries_go_on_after_nats_was_away(world: World) -> None:
    async with Receiver([status(200, after_s=0.05)]) as receiver:
        jobs = [await world.ended_job(receiver.url) for _ in range(20)]
        async with world.callbacks():
            await receiver.wait_for(3)
            await asyncio.to_thread(world.server.stop)
            await asyncio.to_thread(world.server.start)
            for job_id in jobs:
                assert isinstance((await world.end(job_id))[-1], CallbackDelivered)
        assert set(ids(receiver.received)) == {f"msg_{job_id}" for job_id in jobs}
        assert len(receiver.received) <= len(jobs) + LIMITS.per_host


async def test_of_two_roles_at_once_none_tells_a_later_one_first(world: World) -> None:
    """Callbacks before the end of a job."""
    run: list[EventData] = [Started(attempt=1, actor="a"), image(0), Completed(images=1)]
    asked = submitted(callback_events=("started", "image"))
    async with (
        Receiver([status(200, after_s=0.05)]) as receiver,
        world.callbacks(),
        world.callbacks(),
    ):
        jobs = [new_id() for _ in range(5)]
        for event in [asked.model_copy(update={"callback_url": receiver.url}), *run]:
            for job_id in jobs:
                await world.store(world.jobs, job_id, event)
                await world.queue.park(job_id, AT_ONCE)  # as the router does
        for job_id in jobs:
            await world.end(job_id)
    told = list(dict.fromkeys(ids(receiver.received)))
    for job_id in jobs:
        mine = [each for each in told if each.startswith(f"msg_{job_id}")]
        assert mine == [f"msg_{job_id}{each}" for each in ("_started", "_image-0", "")]


async def test_lost_entries_of_open_deliveries_are_put_back_also_after_nats_was_away(
    world: World,
) -> None:
    untried, delivered = [await world.ended_job("http://example.com/") for _ in range(2)]
    await world.ended_job(None)
    await world.store(world.deliveries, delivered, CallbackDelivered(attempt=1))
    model = ReadModel(world.database)
    async with world.jobs.reader(after=0) as reader:
        while events := await reader.next(0.5):
            assert await model.apply(events, expected=await model.offset())

    async def are_lost() -> bool:
        with suppress(LogUnavailable):
            await world.bus.purge(CALLBACKS, "callbacks.>")
            return True
        return False

    async def are_back() -> bool:
        with suppress(LogUnavailable):
            return await world.queue.job_ids() == {untried}
        return False

    reaper = CallbackReaper(
        queue=world.queue,
        unsettled=model.unsettled,
        deliveries=world.deliveries,
        period_s=0.2,
        batch=100,
    )
    await eventually(are_lost)
    async with running(reaper.run()):
        await eventually(are_back)
        await asyncio.to_thread(world.server.stop)
        await asyncio.to_thread(world.server.start)
        await eventually(are_lost)
        await eventually(are_back)
