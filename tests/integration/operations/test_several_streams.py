"""What operators do, with a log of several streams on a real nats-server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import Result
from pydantic import SecretStr
from typer.testing import CliRunner

from actors.upkeep.results import Results
from events.bus.bus import Bus
from events.bus.contents import log_contents
from events.bus.health import JetStreamHealth
from events.bus.logs.job_log import job_log
from events.bus.queues import JetStreamJobQueue
from events.bus.streams import JOBS, log_stream_names
from events.bus.telemetry.streams import stored_after, stream_states
from events.decisions import Submit
from events.errors import LogDiffers
from events.ids import new_id
from events.log import JobWriter
from events.store.database import Database
from events.store.read_model import ReadModel
from events.store.tables import JOBS as ROWS
from events.streams.log_streams import LogStreams
from serve_app.cli.main import app
from serve_app.local.nats_server import NatsServer
from serve_app.operations.diagnosis.findings import Finding, Level
from serve_app.operations.diagnosis.log_check import LogCheck
from serve_app.operations.places import prepare_log
from settings.log import LogSettings
from settings.stores import StoreSettings
from telemetry.store_metrics import LogMetrics
from telemetry.streams import Streams
from tests.support.bus import connected, operator
from tests.support.database import database_in
from tests.support.events import submitted
from tests.support.polling import eventually

COUNT = 40


@asynccontextmanager
async def projected(bus: Bus, database: Database) -> AsyncIterator[ReadModel]:
    model = ReadModel(database, streams=bus.log_streams)
    log = job_log(bus)
    role = asyncio.create_task(Results(log=log, read_model=model, catch_up_period_s=60).run())
    try:
        yield model
    finally:
        role.cancel()
        await asyncio.wait({role})


async def add_jobs(bus: Bus, count: int) -> list[str]:
    """That wait, with their entries."""
    ids, writer, queue = (
        [new_id() for _ in range(count)],
        JobWriter(job_log(bus)),
        JetStreamJobQueue(bus, lease_s=30),
    )
    for job_id in ids:
        await writer.submit(job_id, Submit(submitted()))
        await queue.add("default", 3, job_id)
    return ids


async def is_behind(bus: Bus, model: ReadModel) -> bool:
    return await model.checkpoint() != await log_contents(bus).last_sequence()


async def darkroom(data: Path, *words: str, streams: int = 4) -> Result:
    env = {"DARKROOM_DATA_DIR": str(data), "DARKROOM_LOG_STREAMS": str(streams), "COLUMNS": "240"}
    return await asyncio.to_thread(CliRunner(env=env).invoke, app, list(words))


async def test_all_agree_then_a_stream_is_not_projected_then_rows_are_wrong(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with (
        connected(nats_server, log_streams=4) as bus,
        database_in(tmp_path) as database,
    ):
        async with projected(bus, database) as model:
            ids = await add_jobs(bus, COUNT)
            await eventually(lambda: is_projected(bus, model))
        verified = await darkroom(tmp_path, "verify", "--json", "--settle-s", "0")
        assert (verified.exit_code, json.loads(verified.stdout)) == (0, [])
        [late] = await add_jobs(bus, 1)
        verified = await darkroom(tmp_path, "verify", "--json", "--settle-s", "0")
        assert [each["kind"] for each in json.loads(verified.stdout)] == ["projection_stopped"]

        before = {job_id: await model.job(job_id) for job_id in ids}
        await database.execute(sa.update(ROWS).values(state="{}", owner="mallory"))
        rebuilt = await darkroom(tmp_path, "rebuild")
        assert (rebuilt.exit_code, rebuilt.stderr) == (0, "")
        assert {job_id: await model.job(job_id) for job_id in ids} == before
        assert await model.job(late) is not None
        assert not await is_behind(bus, model)
        verified = await darkroom(tmp_path, "verify", "--settle-s", "0")
        assert (verified.exit_code, verified.stderr) == (0, "No disagreement.\n")

        inspected = await darkroom(tmp_path, "inspect", late)
        assert (inspected.exit_code, inspected.stderr) == (0, "")

        async with projected(bus, database) as model:  # it goes on behind the rebuild
            [later] = await add_jobs(bus, 1)
            await eventually(lambda: is_projected(bus, model))
            assert await model.job(later) is not None


async def is_projected(bus: Bus, model: ReadModel) -> bool:
    return not await is_behind(bus, model)


async def test_rows_that_the_log_lost_are_ahead_of_it(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with (
        connected(nats_server, log_streams=4) as bus,
        database_in(tmp_path) as database,
        operator(nats_server) as client,
    ):
        async with projected(bus, database) as model:
            [job_id] = await add_jobs(bus, 1)
            await eventually(lambda: is_projected(bus, model))
        index = LogStreams(4).of_job(job_id)
        await client.jetstream().delete_stream(f"{JOBS}_{index}")
    async with connected(nats_server, log_streams=4):
        verified = await darkroom(tmp_path, "verify", "--json", "--settle-s", "0")
    assert "projection_ahead" in [each["kind"] for each in json.loads(verified.stdout)]


async def test_fill_lag_and_size_are_those_of_all_streams(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    bus = Bus(nats_server.url, name="test", log_max_bytes=400_000, log_streams=LogStreams(4))
    bus.start()
    await asyncio.wait_for(bus.wait_connected(), 10)
    async with database_in(tmp_path) as database:
        model = ReadModel(database, streams=bus.log_streams)
        names = log_stream_names(bus.log_streams)
        streams = Streams(lambda: stream_states(bus), names, lambda place: stored_after(bus, place))
        metrics = LogMetrics(streams, model)
        assert (await values(metrics))["darkroom_projection_lag_events"] == 0
        await add_jobs(bus, 25)
        found = await values(metrics)
        assert found["darkroom_projection_lag_events"] == 25
        assert found["darkroom_projection_lag_seconds"] > 0
        states = await stream_states(bus)
        fullest = max(states[name].size_bytes for name in names) / 100_000
        assert found["darkroom_log_fill_ratio"] == pytest.approx(fullest)
        health = JetStreamHealth(bus, ready_period_s=1, known_s=1)
        assert await health.fill() == pytest.approx(fullest)
        assert await health.ready() is None
    await bus.close()


async def values(metrics: LogMetrics) -> dict[str, float]:
    return {metric.name: metric.samples[0].value for metric in await metrics.look()}


async def look(server: NatsServer, folder: Path, streams: int) -> list[Finding]:
    log = LogSettings(nats_url=SecretStr(server.url), streams=streams)
    stores = StoreSettings(data_dir=folder)
    return await LogCheck(log, stores, is_up=False, full_ratio=0.85, timeout_s=5).run()


async def test_the_doctor_says_whether_the_streams_are_as_set(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with connected(nats_server):
        [found] = await look(nats_server, tmp_path, 4)
        assert found.level is Level.ERROR
        assert "the event log is one stream still: start the service" in found.what
    async with connected(nats_server, log_streams=4) as bus:
        found, _ = await look(nats_server, tmp_path, 4)
        assert (found.level, "all 8 streams" in found.what) == (Level.OK, True)
        await add_jobs(bus, 1)
        [found] = await look(nats_server, tmp_path, 1)
        assert (found.level, found.remedy is not None) == (Level.ERROR, True)
        assert (
            "DARKROOM_LOG_STREAMS is 1, but the event log is 4 streams: set it to 4" in found.what
        )


@pytest.mark.parametrize("command", ["verify", "rebuild", "backup"])
async def test_commands_refuse_a_log_of_another_number_of_streams(
    nats_server: NatsServer, tmp_path: Path, command: str
) -> None:
    async with connected(nats_server, log_streams=4), database_in(tmp_path):
        words = [command, str(tmp_path / "saved")] if command == "backup" else [command]
        result = await darkroom(tmp_path, *words, streams=2)
    assert result.exit_code != 0
    assert "DARKROOM_LOG_STREAMS is 2, but the event log is 4 streams" in result.stderr


async def test_a_start_refuses_a_log_of_another_number_of_streams(nats_server: NatsServer) -> None:
    async def prepare(streams: int) -> None:
        log = LogSettings(nats_url=SecretStr(nats_server.url), streams=streams)
        await prepare_log(log, StoreSettings())

    await prepare(1)
    await prepare(4)  # nothing is in it
    for streams in (1, 2):
        with pytest.raises(LogDiffers, match="set it to 4"):
            await prepare(streams)
    await prepare(4)


async def test_a_start_does_not_wait_for_a_nats_that_is_away(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.operations.places._PREPARE_TIMEOUT_S", 0.5)
    nats_server.stop()
    await prepare_log(LogSettings(nats_url=SecretStr(nats_server.url)), StoreSettings())
