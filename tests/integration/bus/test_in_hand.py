"""What a dispatcher has in hand of a real queue, after it or the server was killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from actors.waiting.classes import WaitingJobs
from actors.waiting.in_hand import InHand
from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.bus.queue_entries import JetStreamEntry
from events.bus.queues import JetStreamJobQueue
from events.bus.streams import QUEUE
from events.decisions import Submit
from events.errors import LogUnavailable
from events.ids import new_id
from events.job import Job
from events.log import JobWriter
from events.persistent_log import PersistentLog
from events.queue import QueueEntry
from serve_app.local.nats_server import NatsServer
from tests.support.bus import operator
from tests.support.events import submitted
from tests.support.polling import eventually

HOLD_S = 3.0
LANE = 3
JOBS = 40


async def fill(bus: Bus) -> list[str]:
    writer, jobs = JobWriter(PersistentLog(JetStreamLog(bus))), [new_id() for _ in range(JOBS)]
    for job_id in jobs:
        await writer.submit(job_id, Submit(submitted(lane=LANE)))
        await JetStreamJobQueue(bus, lease_s=600).add("default", LANE, job_id)
    return jobs


@asynccontextmanager
async def dispatching(bus: Bus) -> AsyncGenerator[tuple[InHand, WaitingJobs]]:
    waiting = WaitingJobs(turn_cost=10, runs_some=lambda _: False)

    async def runs_nowhere(_: Job, __: QueueEntry) -> bool:
        return False

    in_hand = InHand(
        "default",
        queue=JetStreamJobQueue(bus, lease_s=600),
        writer=JobWriter(PersistentLog(JetStreamLog(bus))),
        waiting=waiting,
        is_running=runs_nowhere,
        on_new=lambda: None,
        most=1000,
        hold_s=HOLD_S,
    )
    task = asyncio.create_task(in_hand.run())
    try:
        yield in_hand, waiting
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait({task})


def take_all(in_hand: InHand, waiting: WaitingJobs) -> list[str]:
    """In the order of their turns."""
    found: list[str] = []
    while job := next(waiting.candidates(1), None):
        waiting.take(job)
        found.append(in_hand.take(job.job_id).job_id)
    return found


async def test_what_a_killed_dispatcher_held_comes_again_to_the_next_one(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await fill(bus)

    async def say_nothing(_: JetStreamEntry) -> None: ...

    async with dispatching(bus) as (killed, _):
        await eventually(lambda: len(killed) == JOBS)
        await asyncio.sleep(HOLD_S)
        monkeypatch.setattr(JetStreamEntry, "nak", say_nothing)
    async with dispatching(bus) as (in_hand, waiting):
        await eventually(lambda: len(in_hand) == JOBS)
        assert take_all(in_hand, waiting) == jobs


async def test_what_is_in_hand_stays_there_while_the_server_is_killed(
    nats_server: NatsServer, bus: Bus
) -> None:
    jobs = await fill(bus)
    async with dispatching(bus) as (in_hand, waiting):
        await eventually(lambda: len(in_hand) == JOBS)
        os.kill(nats_server.pid, signal.SIGKILL)
        await asyncio.sleep(HOLD_S)
        nats_server.start()
        await eventually(lambda: bus.is_connected)
        await asyncio.sleep(2 * HOLD_S)
        assert (len(in_hand), len(waiting)) == (JOBS, JOBS)
        assert take_all(in_hand, waiting) == jobs


async def test_entries_of_a_queue_that_was_made_again_take_the_place_of_those_in_hand(
    nats_server: NatsServer, bus: Bus
) -> None:
    jobs = await fill(bus)
    queue = JetStreamJobQueue(bus, lease_s=600)

    async def is_back() -> bool:
        try:
            return await queue.job_ids() == set()
        except LogUnavailable:
            return False

    async with dispatching(bus) as (in_hand, waiting):
        await eventually(lambda: len(in_hand) == JOBS)
        before = {job_id: in_hand._held[job_id].entry for job_id in jobs}
        async with operator(nats_server) as client:
            await client.jetstream().delete_stream(QUEUE)
        await eventually(is_back)
        for job_id in reversed(jobs):
            await queue.add("default", LANE, job_id)
        await eventually(
            lambda: all(in_hand._held[job_id].entry != before[job_id] for job_id in jobs)
        )
        held = [in_hand._held[job_id] for job_id in jobs]
        assert take_all(in_hand, waiting) == jobs
        for each in held:
            await each.entry.ack()
        assert await queue.job_ids() == set()
