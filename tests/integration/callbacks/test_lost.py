"""Deliveries whose queue entries are gone, on a real nats-server and database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from actors.callbacks.lost import LostCallbacks
from events.bus.streams import CALLBACKS
from events.errors import LogUnavailable
from events.log import utc_now
from events.store.read_model import ReadModel
from events.types import CallbackAttempted, CallbackDelivered
from tests.support.callbacks.receiver import DEADLINE_S
from tests.support.callbacks.role import World
from tests.support.polling import eventually

ADDRESS = "http://example.com/"


async def project(world: World, job_ids: Sequence[str]) -> None:
    model = ReadModel(world.database)
    for job_id in job_ids:
        events = await world.jobs.read(job_id)
        assert await model.apply(events, expected=await model.checkpoint())


def lost_callbacks(world: World, *, period_s: float = 60) -> LostCallbacks:
    return LostCallbacks(
        queue=world.queue,
        unsettled=ReadModel(world.database).unsettled,
        deliveries=world.deliveries,
        period_s=period_s,
        batch=100,
    )


async def lose_all_entries(world: World) -> None:
    await world.bus.purge(CALLBACKS, "callbacks.>")


async def test_a_delivery_that_is_open_gets_its_entry_back(world: World) -> None:
    untried = await world.ended_job(ADDRESS)
    tried = await world.ended_job(ADDRESS)
    delivered = await world.ended_job(ADDRESS)
    uncalled = await world.ended_job(None)
    await project(world, [untried, tried, delivered, uncalled])
    failure = CallbackAttempted(attempt=1, status=500, latency_s=0, retry_at=utc_now())
    await world.store(world.deliveries, tried, failure)
    await world.store(world.deliveries, delivered, CallbackDelivered(attempt=1))
    await lose_all_entries(world)
    lost = lost_callbacks(world)
    assert await lost.put_back() == 2
    assert await world.queue.job_ids() == {untried, tried}
    assert await lost.put_back() == 0, "what waits is not doubled"
    await world.store(world.deliveries, tried, CallbackDelivered(attempt=2))
    await lose_all_entries(world)
    assert await lost.put_back() == 1
    assert await world.queue.job_ids() == {untried}


async def test_what_is_parked_is_not_lost(world: World) -> None:
    job_id = await world.ended_job(ADDRESS)
    await project(world, [job_id])
    await lose_all_entries(world)
    await world.queue.park(job_id, utc_now() + timedelta(hours=1))
    assert await lost_callbacks(world).put_back() == 0


async def test_a_job_that_is_projected_late_is_found_in_the_next_round(world: World) -> None:
    first, late = await world.ended_job(ADDRESS), await world.ended_job(ADDRESS)
    await lose_all_entries(world)
    lost = lost_callbacks(world)
    await project(world, [first])
    assert await lost.put_back() == 1
    await project(world, [late])
    assert await lost.put_back() == 1
    assert await world.queue.job_ids() == {first, late}


async def test_they_are_put_back_also_after_the_log_was_away(world: World) -> None:
    job_id = await world.ended_job(ADDRESS)
    await project(world, [job_id])
    task = asyncio.create_task(lost_callbacks(world, period_s=0.2).run())
    for _ in range(3):
        await lose_all_entries(world)
        await eventually(lambda: is_queued(world, job_id))
    await asyncio.to_thread(world.server.stop)
    await asyncio.to_thread(world.server.start)
    await asyncio.wait_for(world.bus.wait_connected(), DEADLINE_S)
    await eventually(lambda: is_lost_again(world))
    await eventually(lambda: is_queued(world, job_id))
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def is_lost_again(world: World) -> bool:
    with suppress(LogUnavailable):
        await lose_all_entries(world)
        return True
    return False


async def is_queued(world: World, job_id: str) -> bool:
    with suppress(LogUnavailable):
        return await world.queue.job_ids() == {job_id}
    return False
