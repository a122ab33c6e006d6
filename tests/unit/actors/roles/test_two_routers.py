"""Two routers that follow the same log: each event comes to either, or to both, in any order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from events.decisions import Cancel, Command, Complete, Erase, FailAttempt, StoreImage
from events.log import JobWriter
from events.types import Event
from tests.support.events import image
from tests.support.routing.bench import Bench, start

ADDRESS = "http://example.com/done"
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
    # An ended job may have an entry, which whoever takes it takes off the queue.
    assert open_jobs <= queued <= open_jobs | ended | called
    assert await bench.queue.depth("default") == len(queued)
    assert await bench.callbacks.job_ids() == called
