"""One endpoint's queue and its workers, without Ray and NATS: whose turn it is, what follows."""

from __future__ import annotations

import asyncio
import math

import pytest

from actors.dispatch.names import slot_name
from actors.worker.job import RunOutcome
from events.decisions import Cancel
from events.ids import new_id
from events.job import Job
from events.types import Cancelled, Failed
from tests.support.dispatch import LEASE_S, WORKER, Bench
from tests.support.polling import eventually
from tests.support.workers.cluster import FakeJobActor


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("lanes", [(1, 1, 1), (1, 2, 63)])
async def test_owners_are_served_in_turn(bench: Bench, lanes: tuple[int, int, int]) -> None:
    """Also where their names hash to one lane, and one has sent all its jobs before the others."""
    backlog = [await bench.submit(lane=lanes[0], owner="crowd") for _ in range(40)]
    others = [await bench.submit(lane=lane, owner=f"lane {lane}") for lane in lanes[1:]]
    order: list[str] = []
    async with bench.dispatching():
        for _ in range(6):
            actor = await eventually(lambda: next(iter(bench.cluster.actors.values()), None))
            job_id = await eventually(lambda actor=actor: actor.job_id)
            order.append(job_id)
            await bench.finish(job_id)
            await eventually(lambda job_id=job_id: bench.cluster.running(job_id) is None)
    assert order.index(others[0]) <= 2
    assert order.index(others[1]) <= 3
    assert [job_id for job_id in order if job_id in backlog] == backlog[:4]


async def test_jobs_of_several_lanes_run_at_once_where_there_are_slots(
    bench: Bench,
) -> None:
    jobs = [await bench.submit(lane=lane) for lane in range(3)]
    async with bench.dispatching(slots=3):
        for job_id in jobs:
            await bench.running(job_id)


@pytest.mark.parametrize("is_known", [True, False])
async def test_an_entry_of_a_job_that_ended_or_is_unknown_goes_away(
    bench: Bench, is_known: bool
) -> None:
    if is_known:
        job_id = await bench.submit()
        await bench.writer.execute(Cancel(), await bench.job(job_id))
    else:
        job_id = new_id()
        await bench.queue.add("default", 3, job_id)
    async with bench.dispatching():
        await eventually(lambda: not_queued(bench, job_id))
        assert bench.cluster.running(job_id) is None


async def not_queued(bench: Bench, job_id: str) -> bool:
    return not await bench.is_queued(job_id)


async def test_an_entry_in_hand_stays_ours_while_no_slot_is_free(bench: Bench) -> None:
    bench.cluster.room = 0
    job_id = await bench.submit()
    async with bench.dispatching() as ours, bench.queue.reader("default", 3) as other_dispatcher:
        await eventually(lambda: ours.in_hand)
        assert await other_dispatcher.next(most=1, timeout_s=3 * LEASE_S) == []
        bench.cluster.give_room(1)
        await bench.running(job_id)


async def test_a_job_that_is_cancelled_while_it_waits_leaves_the_queue(
    bench: Bench,
) -> None:
    bench.cluster.room = 0
    job_id = await bench.submit()
    async with bench.dispatching():
        await bench.writer.execute(Cancel(), await bench.job(job_id))
        await eventually(lambda: not_queued(bench, job_id))
    assert isinstance((await bench.job(job_id)).end, Cancelled)


async def test_a_job_that_never_gets_a_slot_fails_at_its_deadline(bench: Bench) -> None:
    bench.cluster.room = 0
    job_id = await bench.submit(deadline_s=0.05)
    async with bench.dispatching():
        await eventually(lambda: not_queued(bench, job_id))
    end = (await bench.job(job_id)).end
    assert isinstance(end, Failed)
    assert "Timed out" in end.message


async def test_every_job_of_a_backlog_fails_at_its_deadline(bench: Bench) -> None:
    bench.cluster.room = 0
    jobs = [await bench.submit(deadline_s=0.05) for _ in range(400)]
    patient = await bench.submit()
    async with bench.dispatching():
        # One at a time, as long as each is in hand, would take 40 s.
        await eventually(lambda: not_queued(bench, jobs[-1]), within_s=20)
        for job_id in jobs:
            await eventually(lambda job_id=job_id: not_queued(bench, job_id))
            assert isinstance((await bench.job(job_id)).end, Failed)
        assert await bench.is_queued(patient)


async def test_a_dispatcher_that_stops_gives_back_what_it_has_in_hand(bench: Bench) -> None:
    bench.cluster.room = 0
    job_id = await bench.submit()
    async with bench.dispatching() as dispatcher:
        await eventually(lambda: dispatcher.in_hand)
    async with bench.queue.reader("default", 3) as successor:
        [entry] = await successor.next(most=1, timeout_s=LEASE_S / 3)
    assert entry.job_id == job_id


@pytest.mark.parametrize("outcome", [RunOutcome.COMPLETED, RunOutcome.RETRY])
async def test_an_actor_is_kept_unless_something_is_wrong_with_it(
    bench: Bench, outcome: RunOutcome
) -> None:
    first, second = await bench.submit(), await bench.submit()
    async with bench.dispatching():
        writer = (await bench.running(first)).writer
        await bench.finish(first, outcome)
        assert (await bench.running(second)).writer == writer
    assert bench.cluster.killed == []


async def test_a_job_that_another_dispatcher_gave_to_an_actor_goes_on(bench: Bench) -> None:
    """Both took it for idle. What it was given second comes again by itself, in its time."""
    async with bench.dispatching():
        actor = await eventually(lambda: next(iter(bench.cluster.actors.values()), None))
        await eventually(lambda: bench.cluster.engines[WORKER].asked)
        actor.begin("a-job-of-another")
        job_id = await bench.submit()
        await asyncio.sleep(2 * LEASE_S)
        assert (actor.job_id, bench.cluster.killed) == ("a-job-of-another", [])
        actor.finish()
        await bench.running(job_id)


@pytest.mark.parametrize("outcome", [RunOutcome.ENDED, RunOutcome.LOST])
async def test_an_actor_is_replaced_after_everything_else(
    bench: Bench, outcome: RunOutcome
) -> None:
    first, second = await bench.submit(), await bench.submit()
    async with bench.dispatching():
        writer = (await bench.running(first)).writer
        await bench.finish(first, outcome)
        assert (await bench.running(second)).writer != writer
    assert bench.cluster.killed == [slot_name(WORKER, 0)]


async def test_after_a_failed_attempt_the_engine_must_answer_before_the_next_job(
    bench: Bench,
) -> None:
    first, second = await bench.submit(), await bench.submit()
    async with bench.dispatching():
        await bench.running(first)
        bench.cluster.engines[WORKER].answers = False
        await bench.finish(first, RunOutcome.RETRY)
        await asyncio.sleep(0.1)
        assert bench.cluster.running(second) is None
        bench.cluster.engines[WORKER].answers = True
        await bench.running(second)


async def test_the_job_of_an_actor_that_died_is_tried_again_at_once(bench: Bench) -> None:
    job_id = await bench.submit()
    async with bench.dispatching():
        actor = await bench.running(job_id)
        await bench.start(job_id, actor)
        actor.die()
        again = await eventually(lambda: another(bench, job_id, actor), within_s=LEASE_S)
        assert again.writer != actor.writer
        assert bench.cluster.engines[WORKER].cancelled == [(job_id, 1)]


def another(bench: Bench, job_id: str, actor: FakeJobActor) -> FakeJobActor | None:
    found = bench.cluster.running(job_id)
    return None if found is actor else found


async def test_a_death_before_the_start_is_told_by_the_lease(bench: Bench) -> None:
    """Nobody knows whether another dispatcher's actor has the job: its lease has to run out."""
    job_id = await bench.submit()
    async with bench.dispatching():
        actor = await bench.running(job_id)
        actor.die()
        again = await eventually(lambda: another(bench, job_id, actor), within_s=10 * LEASE_S)
        assert again.writer != actor.writer
        assert bench.cluster.engines[WORKER].cancelled == []


async def test_a_late_look_at_a_dead_actors_job_leaves_the_next_job_alone(
    bench: Bench,
) -> None:
    first = await bench.submit(lane=1)
    async with bench.dispatching():
        dead = await bench.running(first)
        await bench.start(first, dead)
        load, asked, answer = bench.writer.load, asyncio.Event(), asyncio.Event()

        async def slow_load(job_id: str) -> Job | None:
            job = await load(job_id)
            if job_id == first and not asked.is_set():
                asked.set()
                await answer.wait()
            return job

        bench.writer.load = slow_load  # type: ignore[method-assign]
        dead.die()
        await asked.wait()
        again = await eventually(lambda: another(bench, first, dead), within_s=10 * LEASE_S)
        await bench.start(first, again)
        await bench.finish(first)
        second = await bench.submit(lane=2)
        actor = await bench.running(second)
        answer.set()
        await asyncio.sleep(0.05)
        assert bench.cluster.running(second) is actor


async def test_a_job_that_runs_goes_on_under_a_later_delivery(bench: Bench) -> None:
    job_id = await bench.submit()
    async with bench.dispatching():
        actor = await bench.running(job_id)
        await actor.entries[0].nak()  # as a restarted server does, which forgot the renewals
        await eventually(lambda: len(actor.entries) == 2)
        assert actor.job_id == job_id
    assert bench.cluster.killed == []


async def test_an_actor_that_hangs_is_replaced_and_its_job_tried_again(
    bench: Bench,
) -> None:
    job_id = await bench.submit()
    async with bench.dispatching():
        hung = await bench.running(job_id)
        await bench.start(job_id, hung)
        hung.hangs = True
        again = await eventually(lambda: another(bench, job_id, hung), within_s=10 * LEASE_S)
        assert again.writer != hung.writer
        assert bench.cluster.engines[WORKER].cancelled == [(job_id, 1)]
        # What comes of the hung actor in the end changes nothing any more.
        hung.die()
        await asyncio.sleep(0.05)
        assert bench.cluster.running(job_id) is again


async def test_a_hung_actor_is_replaced_though_others_wait_in_its_lane(bench: Bench) -> None:
    job_id, waiting = await bench.submit(), await bench.submit()
    async with bench.dispatching() as dispatcher:
        hung = await bench.running(job_id)
        await bench.start(job_id, hung)
        await eventually(lambda: dispatcher.in_hand)
        hung.hangs = True
        again = await eventually(lambda: another(bench, job_id, hung), within_s=10 * LEASE_S)
        assert again.writer != hung.writer
        await bench.start(job_id, again)
        await bench.finish(job_id)
        await bench.running(waiting)


async def test_a_successor_finds_the_job_that_still_runs(bench: Bench) -> None:
    job_id = await bench.submit()
    async with bench.dispatching():
        actor = await bench.running(job_id)
    async with bench.dispatching():
        await eventually(lambda: len(actor.entries) == 2, within_s=10 * LEASE_S)
        assert bench.cluster.running(job_id) is actor
    assert bench.cluster.killed == []


async def test_an_entry_that_the_queue_forgot_is_put_there_again(bench: Bench) -> None:
    job_id = await bench.submit(lane=5)
    async with bench.queue.reader("default", 5) as entries:
        [entry] = await entries.next(most=1, timeout_s=1)
        await entry.hold(for_s=math.inf)
    async with bench.dispatching():
        await bench.running(job_id)
