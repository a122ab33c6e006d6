"""One endpoint with its queue and workers, without Ray and NATS: order, deaths, take-over."""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack, suppress
from itertools import pairwise

import pytest

from actors.scheduler.cluster import ActorDied, ActorLost
from actors.scheduler.endpoint_dispatcher import EndpointDispatcher, Placed
from actors.scheduler.names import slot_name
from actors.worker.engine_process import EngineState
from actors.worker.job_actor import RunOutcome
from events.bus.queues import QueueEntry
from events.decisions import Cancel, GiveUp, Start
from events.errors import ReadTimeout
from events.ids import new_id
from events.job import Job
from events.log import utc_now
from events.types import DeadLetter, Failed
from storage.service_secret import sealed
from tests.support.events import LATER
from tests.support.polling import eventually
from tests.support.scheduler.bench import LEASE_S, SECRET, WORKER, Bench
from tests.support.scheduler.cluster import FakeJobActor

LONG_LEASE_S = 1000.0
TIMED_OUT = "Timed out: the job did not end within 0.05 s."


async def next_job(bench: Bench, actor: FakeJobActor) -> str:
    """The next one that the actor is given; it is ended."""
    job_id = await eventually(lambda: actor.job_id)
    await bench.finish(job_id)
    return job_id


def given(bench: Bench, job_id: str) -> list[FakeJobActor]:
    """The holders of entries of the job, once for each delivery."""
    return [
        actor
        for actor in bench.cluster.actors.values()
        for entry in actor.entries
        if entry.job_id == job_id
    ]


@pytest.mark.parametrize("lanes", [(1, 1, 1), (1, 2, 63)])
async def test_owners_are_served_in_turn(bench: Bench, lanes: tuple[int, int, int]) -> None:
    """Also where their names hash to one lane, and one has sent all its jobs before the others."""
    backlog = [await bench.submit(lane=lanes[0], owner="crowd") for _ in range(40)]
    others = [await bench.submit(lane=lane, owner=f"lane {lane}") for lane in lanes[1:]]
    async with bench.dispatching():
        actor = await eventually(lambda: next(iter(bench.cluster.actors.values()), None))
        order = [await next_job(bench, actor) for _ in range(6)]
    assert order.index(others[0]) <= 2
    assert order.index(others[1]) <= 3
    assert [job_id for job_id in order if job_id in backlog] == backlog[:4]


async def test_a_job_is_given_with_its_decrypted_extra_data(bench: Bench) -> None:
    text = '{"api_key_comfy_org": "a key"}'
    sent = await bench.submit(sealed_extra_data=sealed(SECRET, text))
    async with bench.dispatching():
        extra_data = (await bench.running(sent)).extra_data
        assert extra_data is not None
        assert extra_data.get_secret_value() == text
        await bench.finish(sent)
        without = await bench.submit()
        assert (await bench.running(without)).extra_data is None


async def test_a_job_whose_extra_data_cannot_be_decrypted_fails(bench: Bench) -> None:
    job_id = await bench.submit(sealed_extra_data=sealed(b"the secret of before", "{}"))
    async with bench.dispatching():
        assert isinstance((await bench.ended(job_id)).end, Failed)


@pytest.mark.parametrize("is_known", [True, False])
async def test_an_entry_of_an_ended_or_unknown_job_goes_away(bench: Bench, is_known: bool) -> None:
    if is_known:
        job_id = await bench.submit()
        await bench.writer.execute(Cancel(), await bench.job(job_id))
    else:
        job_id = new_id()
        await bench.queue.add("default", 3, job_id, deadline=LATER)
    async with bench.dispatching():
        await bench.is_gone(job_id)
        assert bench.cluster.running(job_id) is None


async def test_every_job_of_a_backlog_fails_at_its_deadline(bench: Bench) -> None:
    bench.cluster.room = 0
    jobs = [await bench.submit(deadline_s=0.05) for _ in range(400)]
    patient = await bench.submit()
    async with bench.dispatching():
        # One at a time, as long as each is in hand, would take 40 s.
        async with asyncio.timeout(20):
            for job_id in jobs:
                await bench.is_gone(job_id)
        message = {(await bench.failure(job_id)).message for job_id in jobs}
        assert message == {f"{TIMED_OUT} No worker is ready: the cluster has no room for a worker."}
        assert await bench.is_queued(patient)


async def test_prefetched_jobs_that_end_get_no_actor_and_cost_owners_nothing(bench: Bench) -> None:
    first = await bench.submit(owner="other")
    async with bench.dispatching() as dispatcher:
        actor = await bench.running(first)
        waiting = [await bench.submit(owner="owner") for _ in range(20)]
        others = [await bench.submit(owner="other") for _ in range(5)]
        await eventually(lambda: len(dispatcher.prefetch) == 25)
        held = dispatcher.prefetch._jobs.values()
        await eventually(lambda: all(each.job is None for each in held))  # each is read again
        for job_id in waiting[:-1]:
            await bench.writer.execute(Cancel(), await bench.job(job_id))
        order = [await next_job(bench, actor) for _ in range(7)]
    assert order.index(waiting[-1]) <= 2
    assert [job_id for job_id in order if job_id != waiting[-1]] == [first, *others]
    assert bench.cluster.killed == []


async def test_an_entry_that_the_queue_forgot_is_put_there_again(bench: Bench) -> None:
    job_id = await bench.submit(lane=5)
    async with bench.queue.consume("default", 5) as entries:
        [entry] = await entries.next(most=1, timeout_s=1)
        await entry.redeliver_in(math.inf)
    async with bench.dispatching():
        await bench.running(job_id)


@pytest.mark.parametrize(
    ("outcome", "is_kept"),
    [
        (RunOutcome.COMPLETED, True),
        (RunOutcome.RETRY, True),
        (RunOutcome.ENDED, False),
        (RunOutcome.LOST, False),
    ],
)
async def test_an_actor_is_replaced_unless_its_job_completed_or_is_tried_again(
    bench: Bench, outcome: RunOutcome, *, is_kept: bool
) -> None:
    first, second = await bench.submit(), await bench.submit()
    async with bench.dispatching():
        writer = (await bench.running(first)).writer
        await bench.finish(first, outcome)
        assert ((await bench.running(second)).writer == writer) is is_kept
    assert bench.cluster.killed == ([] if is_kept else [slot_name(WORKER, 0)])


async def test_an_actor_is_replaced_after_its_number_of_jobs(bench: Bench) -> None:
    writers: list[str] = []
    async with bench.dispatching(jobs_per_actor=2):
        for _ in range(4):
            job_id = await bench.submit()
            writers.append((await bench.running(job_id)).writer)
            await bench.finish(job_id)
    name = slot_name(WORKER, 0)
    assert writers == [f"{name}@1", f"{name}@1", f"{name}@2", f"{name}@2"]


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


async def test_after_a_failed_attempt_the_engine_answers_before_the_next_job(bench: Bench) -> None:
    first, second = await bench.submit(), await bench.submit()
    async with bench.dispatching():
        await bench.running(first)
        engine, answers = bench.cluster.engines[WORKER], asyncio.Event()
        check = engine.check

        async def slow_check() -> EngineState:
            await answers.wait()
            return await check()

        engine.check = slow_check  # type: ignore[method-assign]
        await bench.finish(first, RunOutcome.RETRY)
        await asyncio.sleep(LEASE_S / 3)
        assert bench.cluster.running(second) is None
        answers.set()
        await bench.running(second)


async def test_the_job_of_an_actor_that_died_is_tried_again_before_its_lease_is_over() -> None:
    bench = Bench(lease_s=LONG_LEASE_S)
    job_id = await bench.submit()
    async with bench.dispatching(max_dispatch_failures=1):
        actor = await bench.begun(job_id)
        actor.die()
        again = await bench.next_actor(job_id, actor)
        assert bench.cluster.engines[WORKER].cancelled == [(job_id, 1)]
        await bench.start(job_id, again)
        job = await bench.job(job_id)
        assert (job.attempts, job.dispatch_failures, job.end) == (2, 0, None)


async def test_a_late_look_at_a_dead_actors_job_leaves_the_next_job_alone(bench: Bench) -> None:
    first = await bench.submit(lane=1)
    async with bench.dispatching():
        dead = await bench.begun(first)
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
        again = await bench.next_actor(first, dead)
        await bench.start(first, again)
        await bench.finish(first)
        second = await bench.submit(lane=2)
        actor = await bench.running(second)
        answer.set()
        await bench.settled()
        assert bench.cluster.running(second) is actor


async def test_a_hung_actor_is_replaced_though_others_wait_in_its_lane(bench: Bench) -> None:
    job_id, waiting = await bench.submit(), await bench.submit()
    async with bench.dispatching() as dispatcher:
        hung = await bench.begun(job_id)
        await eventually(lambda: dispatcher.prefetch)
        hung.hangs = True
        again = await bench.next_actor(job_id, hung)
        assert bench.cluster.engines[WORKER].cancelled == [(job_id, 1)]
        hung.die()  # which changes nothing any more
        await bench.settled()
        assert bench.cluster.running(job_id) is again
        await bench.start(job_id, again)
        await bench.finish(job_id)
        await bench.running(waiting)


async def test_a_second_look_at_a_hung_job_leaves_the_actor_that_has_it_anew(bench: Bench) -> None:
    job_id = await bench.submit()
    async with bench.dispatching():
        actor = await bench.begun(job_id)
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
        second = await bench.next_actor(job_id, actor)
        await bench.start(job_id, second)
        for _ in range(20):
            await second.entries[-1].renew()
            await asyncio.sleep(LEASE_S / 4)
        assert second in bench.cluster.actors.values()
        await bench.finish(job_id)


async def test_an_entry_on_its_way_when_its_job_was_given_out_ends_no_actor(bench: Bench) -> None:
    async with bench.dispatching() as dispatcher:
        dispatcher.prefetch._answer_s = 1000  # longer than the machine may take for this test
        job_id = await bench.submit()
        actor = await bench.running(job_id)
        actor.hangs = True  # as one that connects first
        await actor.entries[0].nak()
        await asyncio.sleep(LEASE_S)
        assert bench.cluster.running(job_id) is actor
        await bench.start(job_id, actor)
        await actor.entries[0].nak()
        await eventually(lambda: bench.cluster.running(job_id) not in {actor, None})


async def test_a_job_that_kills_every_actor_before_it_starts_is_given_up(bench: Bench) -> None:
    """Its tries are a lease apart, so a node that is broken for a while gives up no job at once.

    Nobody knows whether another dispatcher's actor has the job: its lease has to run out.
    """
    job_id = await bench.submit()
    seen: list[FakeJobActor] = []
    async with bench.dispatching(max_dispatch_failures=3):
        for _ in range(3):
            seen.append(await bench.next_actor(job_id, *seen))
            seen[-1].die()
        end = (await bench.ended(job_id)).end
        await bench.running(await bench.submit())
    assert bench.cluster.engines[WORKER].cancelled == []
    assert isinstance(end, Failed)
    assert end.dead_letter is DeadLetter.UNDISPATCHABLE
    assert "could not be dispatched 3 times" in end.message
    times = [event.time for event in await bench.log.read(job_id)]
    tries = list(pairwise(times[1:]))
    assert len(tries) == 2
    assert all((after - before).total_seconds() > LEASE_S / 2 for before, after in tries)


async def test_a_death_that_may_be_told_wrongly_gives_up_no_job(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log shows too little for a while, and then that another actor has begun the job."""
    job_id = await bench.submit()

    async def fail_once(*_: object) -> None:
        monkeypatch.undo()
        raise ReadTimeout

    async with bench.dispatching(max_dispatch_failures=1):
        first = await bench.running(job_id)
        monkeypatch.setattr(bench.writer, "execute", fail_once)
        first.die()
        second = await bench.next_actor(job_id, first)
        assert (await bench.job(job_id)).end is None
        await bench.start(job_id, FakeJobActor("of another dispatcher", 1))
        second.die()
        await bench.next_actor(job_id, first, second)
        assert (await bench.job(job_id)).end is None


LOST = ActorLost("its node has died")


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
    async with bench.dispatching(max_dispatch_failures=1):
        before_its_start = await bench.running(job_id)
        before_its_start.die(LOST)
        await bench.next_actor(job_id, before_its_start)
        for attempt in (1, 2, 3):
            (await started(bench, job_id, attempt)).die(LOST)
        await started(bench, job_id, 4)
        job = await bench.job(job_id)
        assert (job.attempts, job.blamed_attempts, job.bystander_attempts) == (4, 0, 3)
        assert (job.is_suspect, job.dispatch_failures) == (False, 0)
        await bench.finish(job_id)


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
        assert (job.is_exclusive, job.blamed_attempts) == (True, 0)
        bench.cluster.engines[WORKER].had_begun = had_begun
        actor.die(ActorDied("its process ended"))
        await started(bench, job_id, 3)
        job = await bench.job(job_id)
        assert (job.is_exclusive, job.blamed_attempts) == (True, charged)


async def test_a_run_that_is_cancelled_before_it_began_counts_no_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()

    take_next = EndpointDispatcher._take_next

    async def once(self: EndpointDispatcher) -> Placed:
        if self._running_jobs.count("alice", self.endpoint):
            ended.set()
            raise RuntimeError("the loop ends right behind the start of a run")
        return await take_next(self)

    monkeypatch.setattr(EndpointDispatcher, "_take_next", once)
    await bench.submit()
    with suppress(AssertionError):  # the bench sees that its dispatcher has ended
        async with bench.dispatching() as dispatcher:
            counts = dispatcher._running_jobs
            await ended.wait()
    assert not counts.count("alice", dispatcher.endpoint)


async def test_a_job_that_runs_goes_on_under_a_later_delivery_and_a_successor(bench: Bench) -> None:
    job_id = await bench.submit()
    async with bench.dispatching():
        actor = await bench.running(job_id)
        await actor.entries[0].nak()  # as a restarted server does, which forgot the renewals
        await eventually(lambda: len(actor.entries) == 2)
        assert actor.job_id == job_id
    async with bench.dispatching():
        await eventually(lambda: len(actor.entries) == 3)
        assert bench.cluster.running(job_id) is actor
    assert bench.cluster.killed == []


async def left_running(bench: Bench) -> tuple[str, FakeJobActor]:
    """A job whose dispatcher has ended, and the actor that runs it."""
    job_id = await bench.submit()
    async with bench.dispatching(slots=2):
        actor = await bench.begun(job_id)
    return job_id, actor


async def test_a_running_job_is_not_started_again_before_its_actor_was_heard(bench: Bench) -> None:
    """Its entry comes again at once, as where the consumer that delivered it was removed."""
    job_id, actor = await left_running(bench)
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
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry comes again at once, since the consumers of that release were removed."""
    job_id, actor = await left_running(bench)
    await actor.entries[-1].nak()
    monkeypatch.setattr("tests.support.scheduler.bench.PREFIX", "worker:default:s-1:")
    async with bench.dispatching(slots=2):
        await bench.running(await bench.submit())
        await asyncio.sleep(2 * LEASE_S)
        assert given(bench, job_id) == [actor]
        await bench.finish(job_id)
        await eventually(lambda: WORKER in bench.cluster.removed)
    assert (await bench.job(job_id)).attempts == 1


async def work(bench: Bench) -> None:
    """Job actors: each start expects the version of the job that the dispatcher knew."""
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
                outcome = await bench.writer.execute(GiveUp("done"), outcome.job)
            has_ended = outcome.job is not None and outcome.job.end is not None
            if actor.job_id != job_id:
                continue  # The actor was replaced during the awaits above.
            if has_ended:
                await actor.entries[-1].ack()
            actor.finish(RunOutcome.ENDED if has_ended else RunOutcome.LOST)


async def test_of_two_dispatchers_one_of_which_is_killed_no_job_is_lost_or_run_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [await bench.submit(owner=f"owner {number % 7}") for number in range(60)]

    async def say_nothing(_: QueueEntry) -> None: ...

    async def all_left() -> bool:
        return not await bench.queue.job_ids()

    working = asyncio.create_task(work(bench))
    async with AsyncExitStack() as stack:
        killed = await stack.enter_async_context(bench.dispatching(slots=3))
        await eventually(lambda: len(killed.prefetch) > 40)
        async with bench.dispatching(slots=3):
            await eventually(lambda: len(killed.prefetch) < 40)
            with monkeypatch.context() as patch:
                patch.setattr(QueueEntry, "nak", say_nothing)
                await stack.aclose()
            await eventually(all_left)
    working.cancel()
    ended = [await bench.job(job_id) for job_id in jobs]
    assert all(job.end is not None and job.attempts == 1 for job in ended)
