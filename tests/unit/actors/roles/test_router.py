"""The router puts entries on its queues. The log and the queues are in memory."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from actors.roles.router import SeenJobs
from events.decisions import Cancel, Command, Complete, Erase, FailAttempt, StoreImage
from events.errors import DatabaseUnavailable, LogFull, LogUnavailable, ReadTimeout
from events.ids import CONSUMERS
from events.log import JobWriter
from events.types import Cancelled, Event, Failed, Unknown
from tests.support.events import JOB_ID, START, history_of, image, submitted
from tests.support.polling import eventually
from tests.support.routing.bench import LANE, Bench, start

ADDRESS = "http://example.com/done"
COMPLETED: list[Command] = [start(), Complete("a", images=0)]
FAILED: list[Command] = [start(), FailAttempt("a", message="No.", final=True)]
CANCELLED: list[Command] = [Cancel()]


@pytest.fixture(params=["a minute old", "new"])
def of_any_age(bench: Bench, request: pytest.FixtureRequest) -> Bench:
    """A job that has just come is known to the router, which does not read it."""
    if request.param == "new":
        bench.writer = JobWriter(bench.log)
    return bench


async def test_a_submitted_job_is_queued_once_on_its_endpoint_and_lane(of_any_age: Bench) -> None:
    bench = of_any_age
    job_id = await bench.job(endpoint="fast", lane=9)
    job = await bench.writer.load(job_id)
    assert job is not None
    for _ in range(2):  # a router that starts again is handed the same events
        async with bench.routing():
            await bench.routed()
    assert await bench.waits(job_id)
    assert await bench.queue.depth("fast") == 1
    async with bench.queue.consume("fast", 9 % CONSUMERS) as lane:
        [entry] = await lane.next(most=9, timeout_s=1)
    assert entry.job_id == job_id
    [queued] = await bench.queue.queued("fast", after=0, most=9)
    assert (queued.lane, queued.deadline) == (9, job.deadline)


async def test_a_job_that_has_just_come_is_not_read(bench: Bench) -> None:
    bench.writer = JobWriter(bench.log)
    job_id = await bench.job()
    async with bench.routing():
        await eventually(lambda: bench.waits(job_id))
    assert bench.log.reads[job_id] == 0


@pytest.mark.parametrize(
    "commands",
    [COMPLETED, FAILED, CANCELLED, [Erase()]],
    ids=["completed", "failed", "cancelled", "erased"],
)
async def test_a_job_that_ended_is_not_queued(of_any_age: Bench, commands: list[Command]) -> None:
    await of_any_age.job(*commands)
    async with of_any_age.routing():
        await of_any_age.routed()
    assert await of_any_age.waits()


@pytest.mark.parametrize(
    "commands", [COMPLETED, FAILED, CANCELLED], ids=["completed", "failed", "cancelled"]
)
async def test_an_end_with_a_url_is_called_back_once(bench: Bench, commands: list[Command]) -> None:
    job_id = await bench.job(*commands, callback_url=ADDRESS)
    await bench.job(*commands)
    for _ in range(2):
        async with bench.routing():
            await bench.routed()
    assert await bench.callbacks.job_ids() == {job_id}
    await bench.lose_callback(job_id)
    assert await bench.callbacks.job_ids() == set()


async def test_a_queue_that_is_away_or_full_is_waited_for(bench: Bench) -> None:
    errors = (LogUnavailable(), LogFull(), ReadTimeout())
    jobs = {await bench.job(): error for error in errors}
    bench.queue.errors = {job_id: [error] for job_id, error in jobs.items()}
    async with bench.routing():
        await eventually(lambda: bench.waits(*jobs))
    assert bench.queue.calls == dict.fromkeys(jobs, 2)


async def test_a_job_that_cannot_be_routed_stops_no_other(bench: Bench) -> None:
    unreadable = await bench.job(*COMPLETED, callback_url=ADDRESS)
    bench.log.unreadable.add(unreadable)
    hostile, job_id = await bench.job(), await bench.job()
    bench.queue.errors[hostile] = [TypeError("nobody foresaw this")]
    async with bench.routing():
        await eventually(lambda: bench.waits(job_id))
        later = await bench.job()
        await eventually(lambda: bench.waits(job_id, later))
    assert await bench.callbacks.job_ids() == set()
    assert isinstance((await bench.log.read(hostile))[-1].data, Failed)


async def test_an_open_job_without_an_entry_gets_it_back(bench: Bench) -> None:
    job_id, ended_meanwhile, unreadable = [await bench.job() for _ in range(3)]
    await bench.project()
    await bench.cancel(ended_meanwhile)  # its row lags behind
    bench.log.unreadable.add(unreadable)
    async with bench.routing(requeue_period_s=0.01):
        await bench.routed()
        for _ in range(3):
            await bench.queue.remove("default", LANE, job_id)
            await eventually(lambda: bench.waits(job_id))


async def test_what_cannot_be_put_back_now_is_put_back_later(bench: Bench) -> None:
    job_id = await bench.job()
    await bench.project()
    errors: list[Exception] = [LogUnavailable(), LogFull(), ReadTimeout(), DatabaseUnavailable()]
    async with bench.routing(requeue_period_s=0.01):
        await bench.routed()
        bench.queue.errors_of_listing = errors
        await bench.queue.remove("default", LANE, job_id)
        await eventually(lambda: bench.waits(job_id))
    assert errors == []


async def test_a_job_of_a_later_version_is_queued_once_it_can_be_read(bench: Bench) -> None:
    later, other = await bench.job(), await bench.job()
    await bench.project()
    bench.log.of_later_version.add(later)
    async with bench.routing(requeue_period_s=0.01):
        await eventually(lambda: bench.waits(other))
        bench.log.of_later_version.clear()
        await eventually(lambda: bench.waits(later, other))
    assert len(await bench.log.read(later)) == 1


async def test_what_a_caller_asked_for_is_told_of_as_it_happens(bench: Bench) -> None:
    asked = {"callback_url": ADDRESS, "callback_events": ("started", "image")}
    stored = StoreImage("a", image(0))
    async with bench.routing():
        for commands in ([start()], [start(), stored], COMPLETED):
            job_id = await bench.job(*commands, **asked)
            await eventually(lambda job_id=job_id: bench.callbacks_of(job_id))  # type: ignore[misc]
            await bench.lose_callback(job_id)
            assert await bench.callbacks.job_ids() == set()


async def test_what_nobody_asked_for_is_not_told_of(bench: Bench) -> None:
    await bench.job(start(), callback_url=ADDRESS, callback_events=("image",))
    await bench.job(start(), StoreImage("a", image(0)), callback_url=ADDRESS)
    await bench.job(start(), callback_events=("started",))  # it has no address
    beyond = StoreImage("a", image(8))
    await bench.job(start(), beyond, callback_url=ADDRESS, callback_events=("image",))
    async with bench.routing():
        await bench.routed()
    assert await bench.callbacks.job_ids() == set()


async def test_an_event_that_comes_while_another_is_told_is_told_too(bench: Bench) -> None:
    asked = {"callback_url": ADDRESS, "callback_events": ("started", "image")}
    job_id = await bench.job(start(), **asked)
    async with bench.routing():
        await eventually(lambda: bench.callbacks_of(job_id))
        async with bench.callbacks.due(max_unacknowledged=10, ack_wait_s=60) as due:
            [entry] = await due.next(most=10, timeout_s=5)
            job = await bench.writer.load(job_id)
            assert job is not None
            await bench.writer.execute(StoreImage("a", image(0)), job)
            await bench.routed()
            await entry.ack()  # what it was has been looked at before the image came
        assert await bench.callbacks_of(job_id)


async def test_a_router_that_starts_anew_reads_once_what_a_caller_asked_for(bench: Bench) -> None:
    job_id = await bench.job(callback_url=ADDRESS)
    async with bench.routing():
        await bench.routed()
    job = await bench.writer.load(job_id)
    assert job is not None
    seen = Counter(bench.log.reads)
    async with bench.routing():  # it is handed those that were not acknowledged, and what follows
        await bench.routed()
        for command in (start(), *(StoreImage("a", image(index)) for index in range(5))):
            job = (await bench.writer.execute(command, job)).job
            assert job is not None
        await bench.routed()
    assert (bench.log.reads - seen)[job_id] <= 1


def seen(*events: Event, at: datetime = START) -> SeenJobs:
    jobs = SeenJobs(now=lambda: at)
    for event in events:
        jobs.note(event)
    return jobs


def test_a_first_event_is_given_once() -> None:
    [first] = history_of(submitted())
    jobs = seen(first)
    assert jobs.take_first(JOB_ID) == first
    assert jobs.take_first(JOB_ID) is None


def test_a_first_event_of_long_ago_or_with_another_behind_it_is_not_given() -> None:
    [first] = history_of(submitted())
    assert seen(first, at=START + timedelta(minutes=1)).take_first(JOB_ID) is None
    for later in (Cancelled(), Unknown(original_type="darkroom.job.paused.v1")):
        assert seen(*history_of(submitted(), later)).take_first(JOB_ID) is None


def test_it_is_known_who_wants_no_callback() -> None:
    [quiet] = history_of(submitted())
    [loud] = history_of(submitted(callback_url=ADDRESS))
    assert seen(quiet).forget_ended(JOB_ID)
    for jobs in (seen(), seen(loud), seen(quiet, loud)):
        assert not jobs.forget_ended(JOB_ID)


@pytest.mark.parametrize("asked", [{"callback_url": ADDRESS}, {"image_puts": ("sealed",)}])
async def test_an_end_without_a_delivery_is_not_read(bench: Bench, asked: dict[str, Any]) -> None:
    bench.writer = JobWriter(bench.log)
    async with bench.routing():
        job_ids = [await bench.job(), await bench.job(**asked)]
        await eventually(lambda: bench.waits(*job_ids))
        before = bench.log.reads.copy()
        for job_id in job_ids:
            await bench.cancel(job_id)
        await eventually(lambda: bench.callbacks_of(job_ids[1]))
        reads = [(bench.log.reads - before)[job_id] for job_id in job_ids]
    assert reads == [1, 2]  # one is our own


# Two routers that follow the same log: each event comes to either, or to both, in any order.

TOLD = ("started", "image")


class Dealt:
    """Hands over some events, a few at a time, and then waits."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.all_handled = asyncio.Event()

    async def run(self, handle: Callable[[Event], Awaitable[None]]) -> None:
        while self.events:
            some, self.events = self.events[:3], self.events[3:]
            await asyncio.gather(*map(handle, some))
        self.all_handled.set()
        await asyncio.Event().wait()


OPEN: list[list[Command]] = [[], [start()], [start(), StoreImage("a", image(0))]]
ENDS: list[list[Command]] = [
    [Cancel()],
    [start(), Complete("a", images=0)],
    [start(), StoreImage("a", image(0)), FailAttempt("a", message="No.", final=True)],
]


def deal(events: list[Event], chance: random.Random) -> tuple[Dealt, Dealt]:
    one, two = Dealt(), Dealt()
    for event in events:
        for dealt in chance.choice(((one,), (two,), (one, two))):
            dealt.events.append(event)
    for dealt in (one, two):
        if chance.random() < 0.5:  # what is delivered again comes late
            chance.shuffle(dealt.events)
    return one, two


async def all_events(bench: Bench) -> list[Event]:
    histories = [await bench.log.read(job_id) for job_id in bench.log.job_ids()]
    return sorted((each for events in histories for each in events), key=lambda e: e.position)


@pytest.mark.parametrize("seed", range(25))
async def test_jobs_are_queued_and_callbacks_due_whoever_sees_what(bench: Bench, seed: int) -> None:
    bench.writer = JobWriter(bench.log)  # jobs of this moment
    asked = {"callback_url": ADDRESS}
    open_jobs = {await bench.job(*commands) for commands in OPEN}
    ended = {await bench.job(*commands) for commands in [*ENDS, [Erase()]]}
    called = {await bench.job(*commands, **asked) for commands in ENDS}
    for commands in [*OPEN[1:], *ENDS]:
        job_id = await bench.job(*commands, **asked, callback_events=TOLD)
        (open_jobs if commands in OPEN else ended).add(job_id)
        called.add(job_id)

    one, two = deal(await all_events(bench), random.Random(seed))
    async with bench.routing(one), bench.routing(two):
        for each in (one, two):
            await asyncio.wait_for(each.all_handled.wait(), 30)
    queued = await bench.queue.job_ids()
    # An ended job may have an entry. The dispatcher that fetches it acknowledges it.
    assert open_jobs <= queued <= open_jobs | ended | called
    assert await bench.queue.depth("default") == len(queued)
    assert await bench.callbacks.job_ids() == called
