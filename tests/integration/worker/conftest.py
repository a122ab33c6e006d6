"""A bench on a real nats-server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actors.worker.attempt import AttemptLimits
from actors.worker.job_actor import JobRunner
from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.bus.queues import EntryConsumer, JobQueue, QueueEntry
from events.log import RetryingLog
from tests.support.runners import RunnersBench
from tests.support.worker import LANE, ScriptedEngine

LEASE_S = 1.0
QUICK = AttemptLimits(silence_s=1, heartbeat_s=0.1)


class Bench(RunnersBench):
    """A queue with one lane, and job runners that read it."""

    lane: EntryConsumer

    @property
    def runners_log(self) -> RetryingLog:
        return RetryingLog(self.log, longest_pause_s=0.2)

    async def entry(self, *, within_s: float = 30.0) -> QueueEntry:
        entries = await self.lane.next(most=1, timeout_s=within_s)
        assert entries, "no entry was delivered"
        return entries[0]

    async def nothing_queued(self) -> bool:
        return not await self.queue.job_ids()

    async def events(self, job_id: str) -> list[type]:
        return [type(event.data) for event in await self.log.read(job_id)]

    def runner(self, engine: ScriptedEngine, **options: Any) -> JobRunner:
        return super().runner(engine, **({"limits": QUICK, "lease_renew_s": LEASE_S / 5} | options))


@pytest.fixture
async def bench(bus: Bus, tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path, log=JetStreamLog(bus), queue=JobQueue(bus, lease_s=LEASE_S))
    async with bench.queue.consume("default", LANE) as bench.lane:
        yield bench
