"""Two processes route four streams of a real nats-server; one is killed, and the database goes."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from events.bus.bus import Bus
from events.bus.logs.job_log import job_log
from events.bus.queues import JetStreamCallbackQueue, JetStreamJobQueue
from events.decisions import Cancel, Submit
from events.ids import new_id
from events.job import Job
from events.log import JobWriter
from events.store.database import Database
from events.store.tables import LEASES
from serve_app.local.nats_server import NatsServer
from tests.support.bus import connected
from tests.support.database import database_in
from tests.support.events import submitted
from tests.support.polling import eventually

_ROUTE = """
import asyncio
from actors.roles import {role}
from settings.settings import Settings
asyncio.run({role}(Settings.load()))
"""
NOWHERE = "postgresql+asyncpg://nobody:nothing@127.0.0.1:1/none"
ADDRESS = "http://example.com/done"
LANE = 3


async def start(
    role: str, server: NatsServer, data: Path, *, database_url: str | None = None
) -> Process:
    env = os.environ | {
        "DARKROOM_NATS_URL": server.url,
        "DARKROOM_DATA_DIR": str(data),
        "DARKROOM_LOG_STREAMS": "4",
        "DARKROOM_LOG_ROUTERS": "2",
        "DARKROOM_DISPATCHER_LEASE_S": "2",
        "DARKROOM_REQUEUE_PERIOD_S": "3600",  # nothing that was lost is put back
    }
    if database_url is not None:
        env["DARKROOM_DATABASE_URL"] = database_url
    code = _ROUTE.format(role=role)
    return await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=env)


@asynccontextmanager
async def ended(*processes: Process) -> AsyncGenerator[None]:
    """All of them, in the end."""
    try:
        yield
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def shares(database: Database) -> list[int]:
    """How many streams each holder has."""
    of_streams = LEASES.c.name.startswith("router/part/")
    query = sa.select(sa.func.count()).where(of_streams).group_by(LEASES.c.holder)
    return [row[0] for row in await database.fetch(query)]


@dataclass
class Jobs:
    bus: Bus
    open: dict[str, Job] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.queue = JetStreamJobQueue(self.bus, lease_s=30)
        self.callbacks = JetStreamCallbackQueue(self.bus)
        self.writer = JobWriter(job_log(self.bus))

    async def submit(self, count: int) -> None:
        for number in range(count):
            job_id, url = new_id(), ADDRESS if number % 3 else None
            submit = Submit(submitted(lane=LANE, callback_url=url))
            job = (await self.writer.submit(job_id, submit)).job
            assert job is not None
            self.open[job_id] = job

    async def end(self, count: int) -> None:
        """Jobs that are queued, and whose entries are taken off the queue with their ends."""
        for job_id in list(self.open)[:count]:
            job = self.open.pop(job_id)
            await self.writer.execute(Cancel(), job)
            await self.queue.remove("default", LANE, job_id)
            if job.submitted.callback_url is not None:
                self.called.add(job_id)

    async def are_routed(self) -> bool:
        """Exactly as they must be."""
        queued, called = await self.queue.job_ids(), await self.callbacks.job_ids()
        return (queued, called) == (self.open.keys(), self.called)


async def test_the_streams_of_a_killed_router_go_on_and_no_job_is_lost(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with connected(nats_server, log_streams=4) as bus, database_in(tmp_path) as database:
        jobs = Jobs(bus)
        first = await start("run_router", nats_server, tmp_path)
        further = await start("run_further_router", nats_server, tmp_path)

        async def are_shared() -> bool:
            assert [first.returncode, further.returncode] == [None, None]
            return await shares(database) == [2, 2]

        async with ended(first, further):
            await eventually(are_shared)
            await jobs.submit(200)
            await eventually(jobs.are_routed)
            more = asyncio.gather(jobs.end(100), jobs.submit(300))
            await asyncio.sleep(0.2)
            first.kill()
            await first.wait()
            await more
            await eventually(jobs.are_routed)
            assert further.returncode is None


async def test_routers_that_share_nothing_for_want_of_a_database_route_all(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """Each follows all streams, and every event comes to one of them."""
    async with connected(nats_server, log_streams=4) as bus:
        jobs, role = Jobs(bus), "run_further_router"
        both = [await start(role, nats_server, tmp_path, database_url=NOWHERE) for _ in range(2)]
        async with ended(*both):
            await jobs.submit(200)
            await eventually(jobs.are_routed)
            await asyncio.gather(jobs.end(100), jobs.submit(100))
            await eventually(jobs.are_routed)
            assert [each.returncode for each in both] == [None, None]
