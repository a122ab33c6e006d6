"""What a receiver that hangs or fails costs the others: nothing."""

from __future__ import annotations

from events.types import CallbackAttempted, CallbackDelivered, CallbackExhausted, CallbackWithheld
from tests.support.callbacks.receiver import DEADLINE_S, Receiver, hang, status
from tests.support.callbacks.role import SETTINGS, World, ids


async def test_a_receiver_that_hangs_costs_the_others_nothing(world: World) -> None:
    settings = SETTINGS.model_copy(update={"timeout_s": DEADLINE_S})
    async with Receiver([hang]) as hung, Receiver() as healthy:
        hanging = [await world.ended_job(hung.url) for _ in range(30)]
        async with world.callbacks(settings=settings):
            await hung.wait_for(settings.per_host)
            delivered = [await world.ended_job(healthy.url) for _ in range(30)]
            for job_id in delivered:
                await world.end(job_id)
            assert len(hung.received) == settings.per_host
        assert set(hanging) <= await world.queue.job_ids()


async def test_a_receiver_gets_no_more_than_its_share_at_once(world: World) -> None:
    async with Receiver([status(200, after_s=0.02)]) as receiver:
        jobs = [await world.ended_job(receiver.url) for _ in range(40)]
        async with world.callbacks():
            for job_id in jobs:
                await world.end(job_id)
        assert receiver.most_at_once == SETTINGS.per_host
        assert sorted(ids(receiver.received)) == sorted(f"msg_{job_id}" for job_id in jobs)


LEFT_ALONE = {
    "breaker_failures": 2,
    "breaker_open_s": 0.5,
    "breaker_longest_s": 0.5,
    "per_host": 1,
    "delays_s": (0, *[0.1] * 9),
}


async def test_a_receiver_that_fails_is_left_alone_and_what_was_withheld_is_no_try(
    world: World,
) -> None:
    settings = SETTINGS.model_copy(update=LEFT_ALONE)
    async with Receiver([status(500)] * 4 + [status(200)]) as receiver:
        jobs = [await world.ended_job(receiver.url) for _ in range(12)]
        async with world.callbacks(settings=settings):
            events = {job_id: await world.end(job_id) for job_id in jobs}
        assert len(receiver.received) == 4 + len(jobs)
    for each in events.values():
        tries = [data for data in each if isinstance(data, CallbackAttempted)]
        assert [data.attempt for data in tries] == list(range(1, len(tries) + 1))
        assert each[-1] == CallbackDelivered(attempt=len(tries))
        assert sum(isinstance(data, CallbackWithheld) for data in each) <= 1
    untried = [each[:-2] for each in events.values() if each[-1] == CallbackDelivered(attempt=1)]
    assert [CallbackWithheld()] in untried, "withheld, then taken at the first try"


async def test_what_is_withheld_for_too_long_is_given_up(world: World) -> None:
    settings = SETTINGS.model_copy(update=LEFT_ALONE | {"breaker_open_s": 60.0, "withheld_s": 1.0})
    async with Receiver([status(500)]) as receiver:
        jobs = [await world.ended_job(receiver.url) for _ in range(8)]
        async with world.callbacks(settings=settings):
            ends = [(await world.end(job_id))[-1] for job_id in jobs]
        assert len(receiver.received) == 2
    assert all(isinstance(end, CallbackExhausted) for end in ends)
    assert sorted(end.attempts for end in ends) == [0] * 6 + [1] * 2
    assert all("left alone" in end.message for end in ends)


async def test_a_receiver_that_is_left_alone_costs_no_other_a_try(world: World) -> None:
    settings = SETTINGS.model_copy(update=LEFT_ALONE | {"breaker_open_s": 60.0})
    async with Receiver([status(500)]) as dead, Receiver() as healthy:
        failing = [await world.ended_job(dead.url) for _ in range(20)]
        async with world.callbacks(settings=settings):
            await dead.wait_for(2)
            for _ in range(20):
                await world.end(await world.ended_job(healthy.url))
            assert len(dead.received) == 2
        assert set(failing) <= await world.queue.job_ids()
