"""What the death of a job actor says of its job."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from actors.dispatch.cluster import ActorDied, ActorLost
from actors.dispatch.endpoint import EndpointDispatcher
from actors.waiting.choice import Chosen
from tests.support.dispatch import WORKER, Bench
from tests.support.polling import eventually
from tests.support.workers.cluster import FakeJobActor

LOST = ActorLost("its node has died")


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def started(bench: Bench, job_id: str, attempt: int) -> FakeJobActor:
    """The actor that runs the job's next attempt."""

    async def begun() -> FakeJobActor | None:
        actor = bench.cluster.running(job_id)
        if actor is None or (await bench.job(job_id)).attempts >= attempt:
            return None
        await bench.start(job_id, actor)
        return actor

    return await eventually(begun)


async def test_three_lost_nodes_cost_a_job_nothing(bench: Bench) -> None:
    job_id = await bench.submit()
    async with bench.dispatching():
        for attempt in (1, 2, 3):
            (await started(bench, job_id, attempt)).die(LOST)
        await started(bench, job_id, 4)
        job = await bench.job(job_id)
        assert (job.attempts, job.charged_attempts, job.spared_attempts) == (4, 0, 3)
        assert not job.is_suspect
        await bench.finish(job_id)


async def test_a_lost_node_costs_no_dispatch(bench: Bench) -> None:
    job_id = await bench.submit()
    async with bench.dispatching(max_dispatch_failures=1):
        first = await bench.running(job_id)
        first.die(LOST)
        await eventually(lambda: bench.cluster.running(job_id) not in (None, first), within_s=5)
        job = await bench.job(job_id)
        assert (job.dispatch_failures, job.end) == (0, None)


@pytest.mark.parametrize(
    ("had_begun", "charged"), [(True, 1), (False, 0), (None, 1)], ids=["ran", "waited", "unknown"]
)
async def test_a_job_that_waits_for_its_exclusive_attempt_is_not_charged(
    bench: Bench, had_begun: bool | None, charged: int
) -> None:
    job_id = await bench.submit()
    async with bench.dispatching():
        (await started(bench, job_id, 1)).die()
        actor = await started(bench, job_id, 2)
        job = await bench.job(job_id)
        assert (job.is_exclusive, job.charged_attempts) == (True, 0)
        bench.cluster.engines[WORKER].had_begun = had_begun
        actor.die(ActorDied("its process ended"))
        await started(bench, job_id, 3)
        job = await bench.job(job_id)
        assert (job.is_exclusive, job.charged_attempts) == (True, charged)


async def test_a_run_that_is_cancelled_before_it_began_counts_no_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()

    choose = EndpointDispatcher._choose

    async def once(self: EndpointDispatcher) -> Chosen:
        if self._running_jobs.of("alice", self.endpoint):
            ended.set()
            raise RuntimeError("the loop ends right behind the start of a run")
        return await choose(self)

    monkeypatch.setattr(EndpointDispatcher, "_choose", once)
    await bench.submit()
    with suppress(AssertionError):  # the bench sees that its dispatcher has ended
        async with bench.dispatching() as dispatcher:
            counts = dispatcher._running_jobs
            await ended.wait()
    assert not counts.of("alice", dispatcher.endpoint)
