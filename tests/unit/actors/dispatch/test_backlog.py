"""A backlog in the hand of an endpoint's dispatcher, and what becomes of its jobs meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from actors.worker.job import RunOutcome
from events.decisions import Cancel, GiveUp, Start
from events.log import utc_now
from events.memory.queues import MemoryEntry
from tests.support.dispatch import LEASE_S, Bench
from tests.support.polling import eventually
from tests.support.workers.cluster import FakeJobActor


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def next_job(bench: Bench, actor: FakeJobActor) -> str:
    """The next one that the actor is given; it is ended."""
    job_id = await eventually(lambda: actor.job_id)
    await bench.finish(job_id)
    return job_id


async def test_jobs_that_ended_in_hand_get_no_actor_and_cost_their_owner_nothing(
    bench: Bench,
) -> None:
    first = await bench.submit(owner="other")
    async with bench.dispatching() as dispatcher:
        actor = await bench.running(first)
        waiting = [await bench.submit(owner="owner") for _ in range(20)]
        others = [await bench.submit(owner="other") for _ in range(5)]
        await eventually(lambda: len(dispatcher.in_hand) == 25)
        await asyncio.sleep(LEASE_S)
        for job_id in waiting[:-1]:
            await bench.writer.execute(Cancel(), await bench.job(job_id))
        order = [await next_job(bench, actor) for _ in range(7)]
    assert order.index(waiting[-1]) <= 2
    assert [job_id for job_id in order if job_id != waiting[-1]] == [first, *others]
    assert bench.cluster.killed == []


async def test_an_entry_that_was_on_its_way_when_its_job_was_given_out_ends_no_actor(
    bench: Bench,
) -> None:
    async with bench.dispatching() as dispatcher:
        dispatcher._answer_s = 1000  # longer than the machine may take for this test
        job_id = await bench.submit()
        actor = await bench.running(job_id)
        actor.hangs = True  # as one that connects first
        await actor.entries[0].nak()
        await asyncio.sleep(LEASE_S)
        assert bench.cluster.running(job_id) is actor
        await bench.start(job_id, actor)
        await actor.entries[0].nak()
        await eventually(lambda: bench.cluster.running(job_id) not in {actor, None})


async def work(bench: Bench) -> None:
    """What job actors do: each start is bound to what the dispatcher knew of its job."""
    while True:
        await asyncio.sleep(0.001)
        for actor in list(bench.cluster.actors.values()):
            if (job_id := actor.job_id) is None:
                continue
            start = Start(
                actor.writer,
                max_attempts=3,
                max_attempts_total=9,
                now=utc_now(),
                after_attempts=actor.after_attempts,
            )
            outcome = await bench.writer.execute(start, await bench.job(job_id))
            if outcome.added and outcome.job is not None:
                await bench.writer.execute(GiveUp("done"), outcome.job)
                await bench.finish(job_id, RunOutcome.ENDED)
            else:
                actor.finish(RunOutcome.LOST)


async def test_of_two_dispatchers_one_of_which_is_killed_no_job_is_lost_or_run_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [await bench.submit(owner=f"owner {number % 7}") for number in range(60)]

    async def say_nothing(_: MemoryEntry) -> None: ...

    async def all_left() -> bool:
        return not await bench.queue.job_ids()

    working = asyncio.create_task(work(bench))
    async with AsyncExitStack() as stack:
        killed = await stack.enter_async_context(bench.dispatching(slots=3))
        await eventually(lambda: len(killed.in_hand) > 40)
        async with bench.dispatching(slots=3):
            await eventually(lambda: len(killed.in_hand) < 40)
            with monkeypatch.context() as patch:
                patch.setattr(MemoryEntry, "nak", say_nothing)
                await stack.aclose()
            await eventually(all_left)
    working.cancel()
    ended = [await bench.job(job_id) for job_id in jobs]
    assert all(job.end is not None and job.attempts == 1 for job in ended)
