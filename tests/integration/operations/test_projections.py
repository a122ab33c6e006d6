"""Two processes project four streams of a real nats-server; one is killed."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import Process
from pathlib import Path

import sqlalchemy as sa

from events.bus.bus import Bus
from events.bus.logs.job_log import job_log
from events.decisions import Submit
from events.ids import new_id
from events.log import JobWriter
from events.store.database import Database
from events.store.read_model import ReadModel
from events.store.tables import LEASES
from serve_app.local.nats_server import NatsServer
from tests.support.bus import connected
from tests.support.database import database_in
from tests.support.events import submitted
from tests.support.polling import eventually

_PROJECT = """
import asyncio
from actors.roles import run_projection
from settings.settings import Settings
asyncio.run(run_projection(Settings.load()))
"""


async def start(server: NatsServer, data: Path) -> Process:
    env = os.environ | {
        "DARKROOM_NATS_URL": server.url,
        "DARKROOM_DATA_DIR": str(data),
        "DARKROOM_LOG_STREAMS": "4",
        "DARKROOM_LOG_PROJECTIONS": "2",
        "DARKROOM_DISPATCHER_LEASE_S": "2",
    }
    return await asyncio.create_subprocess_exec(sys.executable, "-c", _PROJECT, env=env)


async def shares(database: Database) -> list[int]:
    """How many streams each holder has."""
    of_streams = LEASES.c.name.startswith("results/part/")
    query = sa.select(sa.func.count()).where(of_streams).group_by(LEASES.c.holder)
    return [row[0] for row in await database.fetch(query)]


async def new_jobs_are_projected(bus: Bus, database: Database) -> None:
    model, jobs = ReadModel(database, streams=bus.log_streams), [new_id() for _ in range(40)]
    for job_id in jobs:
        await JobWriter(job_log(bus)).submit(job_id, Submit(submitted()))

    async def are_there() -> bool:
        return None not in [await model.job(job_id) for job_id in jobs]

    await eventually(are_there)


async def test_the_streams_of_a_killed_projection_go_on(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with connected(nats_server, log_streams=4) as bus, database_in(tmp_path) as database:
        processes = [await start(nats_server, tmp_path) for _ in range(2)]

        async def are_shared() -> bool:
            assert [each.returncode for each in processes] == [None, None]
            return await shares(database) == [2, 2]

        try:
            await eventually(are_shared)
            await new_jobs_are_projected(bus, database)
            processes[0].kill()
            await processes[0].wait()
            await new_jobs_are_projected(bus, database)
            assert processes[1].returncode is None
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
                await process.wait()
