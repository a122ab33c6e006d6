"""`darkroom rebuild` on a real nats-server and a database in a file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import sqlalchemy as sa
from click.testing import Result
from typer.testing import CliRunner

from events.bus.jetstream_log import JetStreamLog
from events.decisions import Submit
from events.ids import new_id
from events.log import JobWriter
from events.store.leases import Leases
from events.store.read_model import ReadModel
from events.store.tables import JOBS
from serve_app.cli.main import app
from serve_app.local.nats_server import NatsServer
from tests.support.bus import connected
from tests.support.database import database_in
from tests.support.events import submitted


async def test_wrong_rows_are_mended_while_another_rebuild_waits(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async def rebuild() -> Result:
        call = CliRunner(env={"DARKROOM_DATA_DIR": str(tmp_path)}).invoke
        return await asyncio.to_thread(call, app, ["rebuild"])

    job_id = new_id()
    async with connected(nats_server) as bus, database_in(tmp_path) as database:
        log, model = JetStreamLog(bus), ReadModel(database)
        await JobWriter(log).submit(job_id, Submit(submitted()))
        assert await model.apply(await log.read(job_id), expected=0)
        before = await model.job(job_id)
        await database.execute(sa.update(JOBS).values(state="{}", owner="mallory"))

        leases = Leases(database)
        assert await leases.acquire("rebuild", "another", ttl_s=60)
        result = await rebuild()
        assert (result.exit_code, "Another rebuild" in result.stderr) == (1, True)
        await leases.release("rebuild", "another")

        result = await rebuild()
        assert (result.exit_code, result.stderr) == (0, "")
        assert "1 jobs of the log and 0 of 0 segments" in result.stdout
        assert await model.job(job_id) == before
        assert len(await model.jobs("alice")) == 1
        assert await leases.acquire("rebuild", "the next", ttl_s=60)
