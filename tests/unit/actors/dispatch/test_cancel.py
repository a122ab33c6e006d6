"""A job of which its caller was told that it is cancelled ends as cancelled."""

from __future__ import annotations

import pytest

from actors.worker.job import RunOutcome
from events.decisions import Cancel, FailAttempt
from events.job import Job
from events.types import Blame, Cancelled
from tests.support.dispatch import LEASE_S, Bench
from tests.support.polling import eventually


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def ended(bench: Bench, job_id: str) -> Job:
    async def has_ended() -> Job | None:
        job = await bench.job(job_id)
        return job if job.end is not None and not await bench.is_queued(job_id) else None

    return await eventually(has_ended, within_s=10 * LEASE_S)


async def test_while_it_waits_for_another_attempt_it_ends_at_once(bench: Bench) -> None:
    job_id = await bench.submit(deadline_s=2 * LEASE_S)
    async with bench.dispatching():
        actor = await bench.running(job_id)
        await bench.start(job_id, actor)
        failed = FailAttempt(actor.writer, "It died.", final=False, blame=Blame.BYSTANDER)
        await bench.writer.execute(failed, await bench.job(job_id))
        other = await bench.submit(lane=9)
        actor.finish(RunOutcome.RETRY)
        await bench.running(other)
        await actor.entries[-1].nak()
        outcome = await bench.writer.execute(Cancel(), await bench.job(job_id))
        assert outcome.added == (Cancelled(),)
        assert isinstance((await ended(bench, job_id)).end, Cancelled)


async def test_a_request_that_its_dead_actor_did_not_see_is_met_without_a_slot(
    bench: Bench,
) -> None:
    job_id = await bench.submit(deadline_s=3 * LEASE_S)
    async with bench.dispatching():
        actor = await bench.running(job_id)
        await bench.start(job_id, actor)
        await bench.writer.execute(Cancel(), await bench.job(job_id))
        assert (await bench.job(job_id)).cancel_requested
        await bench.submit(lane=9)
        actor.die()
        assert isinstance((await ended(bench, job_id)).end, Cancelled)
