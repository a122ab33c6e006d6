"""A dispatcher that takes over from one that has given jobs to actors."""

from __future__ import annotations

import asyncio

from tests.support.dispatch import LEASE_S, Bench
from tests.support.polling import eventually
from tests.support.workers.cluster import FakeJobActor


async def test_a_job_that_runs_is_not_started_again_before_its_actor_was_heard() -> None:
    """Its entry comes again at once, as where the consumer that delivered it was removed."""
    bench = Bench()
    job_id = await bench.submit()
    async with bench.dispatching(slots=2):
        actor = await bench.running(job_id)
        await bench.start(job_id, actor)
    answers = asyncio.Event()

    async def ready() -> str:
        await answers.wait()
        return actor.writer

    actor.ready = ready  # type: ignore[method-assign]
    await actor.entries[-1].nak()
    async with bench.dispatching(slots=2):
        other = await bench.submit()
        await bench.running(other)  # there is a slot
        await bench.finish(other)
        await asyncio.sleep(LEASE_S)
        assert given(bench, job_id) == [actor]
        answers.set()
        await eventually(lambda: given(bench, job_id) == [actor, actor])
        await bench.finish(job_id)
    assert (await bench.job(job_id)).attempts == 1


def given(bench: Bench, job_id: str) -> list[FakeJobActor]:
    """Who was given an entry of the job, as often as that was so."""
    return [
        actor
        for actor in bench.cluster.actors.values()
        for entry in actor.entries
        if entry.job_id == job_id
    ]
