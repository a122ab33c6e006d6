"""A dispatcher that takes over from one that has given jobs to actors."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.dispatch import LEASE_S, WORKER, Bench
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


async def test_a_job_that_runs_on_a_worker_of_another_release_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its entry comes again at once, since the consumers of that release were removed."""
    bench = Bench()
    job_id = await bench.submit()
    async with bench.dispatching(slots=2):
        actor = await bench.running(job_id)
        await bench.start(job_id, actor)
    await actor.entries[-1].nak()
    monkeypatch.setattr("tests.support.dispatch.PREFIX", "worker:default:s-1:")
    async with bench.dispatching(slots=2):
        other = await bench.submit()
        await bench.running(other)
        await asyncio.sleep(2 * LEASE_S)
        assert given(bench, job_id) == [actor]
        await bench.finish(job_id)
        await eventually(lambda: WORKER in bench.cluster.removed)
    assert (await bench.job(job_id)).attempts == 1


async def test_a_second_look_at_a_job_that_hangs_leaves_the_actor_that_has_it_anew() -> None:
    bench = Bench()
    job_id = await bench.submit()
    async with bench.dispatching():
        actor = await bench.running(job_id)
        await bench.start(job_id, actor)
        actor.hangs = True
        looks = 0

        async def cancel(_: str, __: int) -> bool:
            """The first look lasts until the entry has come again, the second one longer."""
            nonlocal looks
            looks += 1
            await asyncio.sleep(2 * LEASE_S if looks == 1 else 3 * LEASE_S)
            return True

        bench.cluster.engines[WORKER].cancel = cancel  # type: ignore[method-assign]
        await eventually(lambda: looks >= 2)
        second = await eventually(lambda: _another(bench, job_id, actor))
        await bench.start(job_id, second)
        for _ in range(20):
            await second.entries[-1].renew()
            await asyncio.sleep(LEASE_S / 4)
        assert second in bench.cluster.actors.values()
        await bench.finish(job_id)


def _another(bench: Bench, job_id: str, actor: FakeJobActor) -> FakeJobActor | None:
    others = (each for each in bench.cluster.actors.values() if each is not actor)
    return next((each for each in others if each.job_id == job_id), None)


def given(bench: Bench, job_id: str) -> list[FakeJobActor]:
    """Who was given an entry of the job, as often as that was so."""
    return [
        actor
        for actor in bench.cluster.actors.values()
        for entry in actor.entries
        if entry.job_id == job_id
    ]
