"""Dispatchers in processes of their own divide four endpoints; workers outlive each of them."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from events.bus.bus import Bus
from events.bus.dispatching.endpoint_status import ask_status
from events.bus.queues import JetStreamJobQueue
from events.decisions import Submit
from events.ids import LANES, new_id
from events.job import Job
from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.records import Endpoint
from events.store.tables import LEASES
from events.types import Completed
from serve_app.local.nats_server import NatsServer
from tests.support.bus import connected
from tests.support.database import database_in
from tests.support.events import submitted
from tests.support.polling import eventually
from tests.support.workers.far_cluster import Workers

ENDPOINTS = ["a", "b", "c", "default"]
LEASE_S = "15"
LONG_LEASE_S = "90"
"""Nobody renews the lease of a simulated job."""
_DISPATCH = """
import asyncio, sys
from actors.roles import run_dispatcher
from settings.settings import Settings
from tests.support.workers.far_cluster import FarCluster
asyncio.run(run_dispatcher(Settings.load(), open_cluster=lambda _: FarCluster(sys.argv[1])))
"""


class Bench:
    """Dispatchers on a nats-server and a database; the workers are in this process."""

    def __init__(self, bus: Bus, database: Database, folder: Path, nats_url: str) -> None:
        self.bus = bus
        self.database = database
        self.workers = Workers(bus, job_s=0.2)
        self.socket = folder / "workers"
        self.processes: list[Process] = []
        self._folder = folder
        self._nats_url = nats_url
        self._queue = JetStreamJobQueue(bus, lease_s=float(LEASE_S))
        self._submitted = 0

    async def start(self, **settings: str) -> Process:
        env = os.environ | {
            "DARKROOM_NATS_URL": self._nats_url,
            "DARKROOM_DATA_DIR": str(self._folder),
            "DARKROOM_DISPATCHERS": "2",
            "DARKROOM_DISPATCHER_LEASE_S": "2",
            "DARKROOM_ENDPOINTS_PERIOD_S": "0.5",
            "DARKROOM_LEASE_S": LEASE_S,
            "DARKROOM_SECRET": "a secret of sixteen",
            "DARKROOM_JOBS_PER_WORKER": "2",
            **settings,
        }
        arguments = ("-c", _DISPATCH, str(self.socket))
        process = await asyncio.create_subprocess_exec(sys.executable, *arguments, env=env)
        self.processes.append(process)
        return process

    async def shares(self) -> list[list[str]]:
        """The endpoints of each holder."""
        prefix = "dispatcher/part/"
        query = sa.select(LEASES.c.name, LEASES.c.holder).where(LEASES.c.name.startswith(prefix))
        held: dict[str, list[str]] = {}
        for row in await self.database.fetch(query.order_by(LEASES.c.name)):
            held.setdefault(row.holder, []).append(row.name.removeprefix(prefix))
        return sorted(held.values())

    async def are_divided(self) -> bool:
        """By the leases, and by who answers."""
        assert all(each.returncode is None for each in self.processes)
        shares = await self.shares()
        is_fair = [len(each) for each in shares] == [2, 2]
        return is_fair and None not in [await ask_status(self.bus, id) for id in ENDPOINTS]

    async def submit(self, endpoint: str, *, owner: str = "alice") -> str:
        job_id, lane = new_id(), self._submitted % LANES
        self._submitted += 1
        command = Submit(submitted(endpoint=endpoint, owner=owner, lane=lane))
        job = (await self.workers.writer.submit(job_id, command)).job
        assert job is not None
        await self._queue.add(endpoint, lane, job_id, deadline=job.due_at)
        return job_id

    async def submit_to_all(self, count: int) -> list[str]:
        return [await self.submit(ENDPOINTS[number % 4]) for number in range(count)]

    async def job(self, job_id: str) -> Job:
        job = await self.workers.writer.load(job_id)
        assert job is not None
        return job

    async def completed(self, jobs: Sequence[str]) -> None:
        """Each of them, at one attempt; it was run once."""

        async def have_ended() -> bool:
            return all([(await self.job(job_id)).end is not None for job_id in jobs])

        await eventually(have_ended)
        for job_id in jobs:
            job = await self.job(job_id)
            assert (type(job.end), job.attempts) == (Completed, 1)
        assert {job_id: self.workers.runs[job_id] for job_id in jobs} == dict.fromkeys(jobs, 1)

    async def stop(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.fixture
async def bench(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Bench]:
    async with connected(nats_server) as bus, database_in(tmp_path) as database:
        for id in ENDPOINTS[:-1]:
            await Endpoints(database).put(Endpoint(id, jobs_per_worker=2))
        bench = Bench(bus, database, tmp_path, nats_server.url)
        async with bench.workers.listening(bench.socket):
            try:
                yield bench
            finally:
                await bench.stop()


async def test_the_endpoints_of_a_killed_dispatcher_go_on(bench: Bench) -> None:
    first, _ = await bench.start(), await bench.start()
    await eventually(bench.are_divided)
    jobs = await bench.submit_to_all(40)
    await bench.completed(jobs)
    jobs = await bench.submit_to_all(80)
    await eventually(lambda: sum(job_id in bench.workers.runs for job_id in jobs) > 10)
    first.kill()
    await first.wait()
    bench.processes.remove(first)
    jobs += await bench.submit_to_all(40)
    await bench.completed(jobs)
    assert await bench.shares() == [ENDPOINTS]
    assert max(Counter(bench.workers.runs).values()) == 1


async def test_endpoints_are_handed_to_one_that_comes_while_jobs_run(bench: Bench) -> None:
    await bench.start(DARKROOM_LEASE_S=LONG_LEASE_S)

    async def has_all() -> bool:
        return await bench.shares() == [ENDPOINTS]

    await eventually(has_all)
    jobs = await bench.submit_to_all(80)
    await eventually(lambda: len(bench.workers.runs) > 10)
    bench.workers.writer.open.clear()  # what runs now runs through the change of hands
    await bench.start(DARKROOM_LEASE_S=LONG_LEASE_S)
    await eventually(bench.are_divided)
    bench.workers.writer.open.set()
    await bench.completed(jobs)


async def test_the_running_jobs_of_an_owner_are_bounded_over_both(bench: Bench) -> None:
    for _ in range(2):
        await bench.start(DARKROOM_LEASE_S=LONG_LEASE_S, DARKROOM_OWNER_MAX_RUNNING_JOBS="1")
    await eventually(bench.are_divided)
    [here, *_], [there, *_] = await bench.shares()
    bench.workers.writer.open.clear()
    first = await bench.submit(here)
    await eventually(lambda: first in bench.workers.runs)
    await asyncio.sleep(1.5)  # more than it takes until the other one knows
    second, others = await bench.submit(there), await bench.submit(there, owner="bob")
    await eventually(lambda: others in bench.workers.runs)
    await asyncio.sleep(0.5)
    assert second not in bench.workers.runs
    bench.workers.writer.open.set()
    await bench.completed([first, second, others])
