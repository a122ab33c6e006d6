"""Leases on a real nats-server: who renews and acknowledges an entry, and who no longer may."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

from actors.worker.job_actor import RunOutcome
from engine.reports import Progress
from events.bus.queues import JobQueue
from events.decisions import Start
from events.ids import new_id
from events.log import JobWriter, RetryingLog, utc_now
from tests.integration.worker.conftest import LEASE_S, Bench
from tests.support.polling import eventually
from tests.support.worker import ScriptedEngine, pictures


async def test_the_lease_is_renewed_while_the_job_runs(bench: Bench) -> None:
    await bench.submit()
    entry = await bench.entry()
    engine = ScriptedEngine([Progress(n, 30) for n in range(30)] + pictures(1), gated=True)
    run = asyncio.create_task(bench.runner(engine).run(entry.job_id, entry.ack_subject))
    for _ in range(5):
        engine.advance()
        assert not await bench.lane.next(most=1, timeout_s=LEASE_S / 2)
    engine.advance(50)
    assert await run is RunOutcome.COMPLETED


async def test_a_job_whose_lease_ran_out_goes_on_under_the_next_delivery(bench: Bench) -> None:
    job_id = (await bench.submit()).id
    entry = await bench.entry()
    engine = ScriptedEngine([Progress(n, 30) for n in range(30)] + pictures(1), gated=True)
    runner = bench.runner(engine)
    run = asyncio.create_task(runner.run(entry.job_id, entry.ack_subject))
    await eventually(lambda: engine.requests)
    await entry.nak()  # as a restarted server does, which forgot the renewals
    again = await bench.entry()
    assert await runner.take_delivery(job_id, again.ack_subject)
    assert not await runner.take_delivery(new_id(), again.ack_subject)
    for _ in range(4):
        engine.advance()
        assert not await bench.lane.next(most=1, timeout_s=LEASE_S / 2)
    engine.advance(50)
    assert await run is RunOutcome.COMPLETED
    assert (await bench.job(job_id)).attempts == 1
    await eventually(bench.nothing_queued)


class Stoppable:
    """A runner's view of the log or of its entry that can be stopped, as SIGSTOP would."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.going = asyncio.Event()
        self.going.set()

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._inner, name)
        if not asyncio.iscoroutinefunction(member):
            return member

        async def wait_first(*args: Any, **options: Any) -> Any:
            await self.going.wait()
            return await member(*args, **options)

        return wait_first


async def test_a_zombie_neither_ends_nor_acks_nor_renews(bench: Bench) -> None:
    job_id = (await bench.submit(images=1)).id
    entry = await bench.entry()
    engine = ScriptedEngine(pictures(1), gated=True)
    runner = bench.runner(engine, actor="zombie")
    held, log = Stoppable(entry), Stoppable(RetryingLog(bench.log))
    runner._queue = cast(JobQueue, SimpleNamespace(entry=lambda *_: held))
    runner._log, runner._writer = log, JobWriter(log)
    engine.advance()
    zombie = asyncio.create_task(runner.run(job_id, entry.ack_subject))
    await eventually(lambda: engine.requests)
    held.going.clear()
    log.going.clear()

    again = await bench.entry()  # the lease ran out
    assert again.job_id == entry.job_id
    start = Start("heir", max_attempts=3, max_attempts_total=9, now=utc_now() + timedelta())
    await bench.writer.execute(start, await bench.job(job_id))
    before = await bench.events(job_id)
    engine.advance(10)
    held.going.set()
    log.going.set()
    assert await zombie is RunOutcome.LOST
    assert await bench.events(job_id) == before
    assert await bench.queue.job_ids() == {job_id}
    # Neither renewed nor acked: the heir's own lease runs out on time.
    third = await bench.entry(within_s=2 * LEASE_S)
    assert len({entry.ack_subject, again.ack_subject, third.ack_subject}) == 3
