"""A job whose actors die before an attempt begins is given up, and the others go on."""

from __future__ import annotations

from itertools import pairwise

import pytest

from actors.worker.job import RunOutcome
from events.errors import ReadTimeout
from events.types import DeadLetter, Failed
from tests.support.dispatch import LEASE_S, Bench
from tests.support.polling import eventually
from tests.support.workers.cluster import FakeJobActor

LONG_S = 20 * LEASE_S


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def next_actor(bench: Bench, job_id: str, seen: list[FakeJobActor]) -> FakeJobActor:
    def another() -> FakeJobActor | None:
        found = bench.cluster.running(job_id)
        return None if found in seen else found

    return await eventually(another, within_s=LONG_S)


async def end_of(bench: Bench, job_id: str) -> Failed:
    async def ended() -> bool:
        return (await bench.job(job_id)).end is not None

    await eventually(ended, within_s=LONG_S)
    end = (await bench.job(job_id)).end
    assert isinstance(end, Failed)
    return end


async def test_a_job_that_kills_every_actor_before_it_starts_is_given_up(bench: Bench) -> None:
    job_id = await bench.submit()
    seen: list[FakeJobActor] = []
    async with bench.dispatching(max_dispatch_failures=3):
        for _ in range(3):
            seen.append(await next_actor(bench, job_id, seen))
            seen[-1].die()
        end = await end_of(bench, job_id)
        assert end.dead_letter is DeadLetter.UNDISPATCHABLE
        assert "failed to be dispatched 3 times" in end.message

        async def is_gone() -> bool:
            return not await bench.is_queued(job_id)

        await eventually(is_gone, within_s=LONG_S)
        neighbour = await bench.submit()
        await bench.running(neighbour)


async def test_its_tries_are_a_lease_apart(bench: Bench) -> None:
    """So a node that is broken for a while gives up no job within moments."""
    job_id = await bench.submit()
    seen: list[FakeJobActor] = []
    async with bench.dispatching(max_dispatch_failures=3):
        for _ in range(3):
            seen.append(await next_actor(bench, job_id, seen))
            seen[-1].die()
        await end_of(bench, job_id)
    times = [event.time for event in await bench.log.read(job_id)]
    tries = list(pairwise(times[1:]))
    assert len(tries) == 2
    assert all((after - before).total_seconds() > LEASE_S / 2 for before, after in tries)


async def test_a_log_that_shows_too_little_for_a_while_gives_up_no_job(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await bench.submit()

    async def fail_once(*_: object) -> None:
        monkeypatch.undo()
        raise ReadTimeout

    async with bench.dispatching():
        actor = await bench.running(job_id)
        monkeypatch.setattr(bench.writer, "execute", fail_once)
        actor.die()
        await next_actor(bench, job_id, [actor])
        assert (await bench.job(job_id)).end is None


async def test_a_death_after_the_start_is_no_failed_dispatch(bench: Bench) -> None:
    job_id = await bench.submit()
    async with bench.dispatching(max_dispatch_failures=1):
        actor = await bench.running(job_id)
        await bench.start(job_id, actor)
        actor.die()
        again = await next_actor(bench, job_id, [actor])
        await bench.start(job_id, again)
        job = await bench.job(job_id)
        assert (job.attempts, job.dispatch_failures, job.end) == (2, 0, None)


async def test_a_job_that_another_actor_has_begun_is_left_alone(bench: Bench) -> None:
    job_id = await bench.submit()
    async with bench.dispatching(max_dispatch_failures=1):
        actor = await bench.running(job_id)
        await bench.start(job_id, FakeJobActor("of another dispatcher", 1))
        actor.die()
        await next_actor(bench, job_id, [actor])
        assert (await bench.job(job_id)).end is None


async def test_an_attempt_that_failed_is_no_failed_dispatch(bench: Bench) -> None:
    job_id = await bench.submit()
    async with bench.dispatching(max_dispatch_failures=1):
        actor = await bench.running(job_id)
        await bench.start(job_id, actor)
        await actor.entries[-1].nak()
        actor.finish(RunOutcome.RETRY)
        await bench.running(job_id)
        assert (await bench.job(job_id)).dispatch_failures == 0
