"""A backup that is taken while jobs come and end, restored to a new folder."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from click.testing import Result
from pydantic import SecretStr
from typer.testing import CliRunner

from actors.dispatch.router import Router
from actors.upkeep.results import Results
from events.bus.bus import Bus
from events.bus.consumer import JobEvents
from events.bus.logs.job_log import job_log
from events.bus.queues import JetStreamCallbackQueue, JetStreamJobQueue
from events.bus.streams import JOBS, is_log_stream
from events.decisions import Complete, Start, StoreImage, Submit
from events.errors import LogDiffers, LogUnavailable
from events.ids import new_id
from events.log import JobWriter, utc_now
from events.store.database import Database
from events.store.read_model import ReadModel
from serve_app.cli.main import app
from serve_app.local.nats_server import NatsServer
from serve_app.operations.places import prepare_log
from settings.log import LogSettings
from settings.stores import StoreSettings
from storage.images import ImageStore
from tests.support.bus import connected, operator
from tests.support.database import database_in
from tests.support.events import image, submitted
from tests.support.polling import eventually

Darkroom = Callable[..., Awaitable[Result]]


async def darkroom(data: Path, *words: str, streams: int = 1) -> Result:
    env = {"DARKROOM_DATA_DIR": str(data), "DARKROOM_LOG_STREAMS": str(streams), "COLUMNS": "240"}
    return await asyncio.to_thread(CliRunner(env=env).invoke, app, list(words))


async def complete_jobs(writer: JobWriter, images: ImageStore, ended: list[str]) -> None:
    """One after the other, until cancelled; one in two waits."""
    while True:
        job_id = new_id()
        job = (await writer.submit(job_id, Submit(submitted()))).job
        if len(ended) % 2 == 0 and job is not None:
            start = Start("a", max_attempts=9, max_attempts_total=9, now=utc_now())
            job = (await writer.execute(start, job)).job or job
            key, data = f"{job_id}/1/0.png", job_id.encode()
            await images.put(key, data)
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            stored = image(0, key=key, size_bytes=len(data), digest=digest)
            job = (await writer.execute(StoreImage("a", stored), job)).job or job
            await writer.execute(Complete("a", images=1), job)
        ended.append(job_id)


async def project(bus: Bus, database: Database) -> None:
    model = ReadModel(database, streams=bus.log_streams)
    await Results(log=job_log(bus), read_model=model, catch_up_period_s=60).run()


@pytest.mark.parametrize(("before_streams", "streams"), [(1, 1), (4, 4), (1, 4)])
async def test_what_was_stored_before_a_backup_is_there_after_a_restore(
    nats_server: NatsServer, tmp_path: Path, before_streams: int, streams: int
) -> None:
    """Into as many streams of the log, or of one into several."""
    (tmp_path / "secret").write_text("a secret of this installation")
    images, saved, new = (
        ImageStore((tmp_path / "images").as_uri()),
        tmp_path / "saved",
        tmp_path / "n",
    )
    ended: list[str] = []
    async with (
        connected(nats_server, log_streams=before_streams) as bus,
        database_in(tmp_path) as database,
    ):
        work = [
            asyncio.create_task(complete_jobs(JobWriter(job_log(bus)), images, ended)),
            asyncio.create_task(project(bus, database)),
        ]
        await eventually(lambda: len(ended) > 30)
        before = list(ended)
        result = await darkroom(tmp_path, "backup", str(saved), streams=before_streams)
        assert (result.exit_code, result.stderr) == (0, "")
        assert len(ended) > len(before)
        await cancel(work)
    nats_server.stop()

    result = await darkroom(new, "restore", str(saved), streams=streams)
    assert (result.exit_code, result.stderr) == (0, "")
    assert (new / "secret").read_text() == "a secret of this installation"
    server = NatsServer(new / "nats", preferred_port=0)
    server.start()
    try:
        await run_until_all_agrees(server, new, streams)
        await check(server, new, before)
        if before_streams != streams:
            await check_dealt(server, streams)
    finally:
        server.stop()


async def run_until_all_agrees(server: NatsServer, data: Path, streams: int) -> None:
    """Router and projection, as a start of the service has them."""
    async with connected(server, log_streams=streams) as bus, database_in(data) as database:
        router = Router(
            events=JobEvents(bus),
            writer=JobWriter(job_log(bus)),
            queue=JetStreamJobQueue(bus, lease_s=30),
            callbacks=JetStreamCallbackQueue(bus),
            read_model=ReadModel(database, streams=bus.log_streams),
            requeue_period_s=1,
            most_images_told=8,
        )
        work = [asyncio.create_task(router.run()), asyncio.create_task(project(bus, database))]

        async def all_agree() -> bool:
            words = ("verify", "--images", "--settle-s", "1")
            return (await darkroom(data, *words, streams=streams)).exit_code == 0

        await eventually(all_agree)
        await cancel(work)


async def cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def check(server: NatsServer, data: Path, ids: list[str]) -> None:
    images = ImageStore((data / "images").as_uri())
    async with operator_bus(server) as bus, database_in(data) as database:
        queued = await JetStreamJobQueue(bus, lease_s=30).job_ids()
        for number, job_id in enumerate(ids):
            job = await ReadModel(database).job(job_id)
            assert job is not None
            if number % 2:
                assert job_id in queued
            else:
                assert job.end is not None
                assert await images.get(job.images[0].key) == job_id.encode()


@asynccontextmanager
async def operator_bus(server: NatsServer) -> AsyncIterator[Bus]:
    """It takes the streams as they are; the queues alone are looked at."""
    async with connected(server, log_streams=await streams_of(server)) as bus:
        yield bus


async def streams_of(server: NatsServer) -> int:
    async with operator(server) as client:
        infos = await client.jetstream().streams_info()
    return sum(is_log_stream(info.config.name or "") for info in infos)


async def check_dealt(server: NatsServer, streams: int) -> None:
    """Every stream has events, behind all positions that there were, with the ids they had."""
    async with operator(server) as client:
        js = client.jetstream()
        infos = {info.config.name: info for info in await js.streams_info()}
        assert JOBS not in infos
        dealt = [infos[f"{JOBS}_{index}"] for index in range(streams)]
        assert min(info.state.messages for info in dealt) > 0
        first = min(info.state.first_seq for info in dealt)
        assert first * streams > sum(info.state.messages for info in dealt)
        assert {info.config.max_bytes for info in dealt} == {-1}
        message = await js.get_msg(f"{JOBS}_0", dealt[0].state.first_seq)
        assert message.headers is not None
        assert message.headers["Nats-Msg-Id"] == json.loads(message.data or b"")["id"]


async def test_a_log_of_several_streams_is_restored_as_many_alone(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    saved, new = tmp_path / "saved", tmp_path / "new"
    async with connected(nats_server, log_streams=4), database_in(tmp_path):
        pass
    assert (await darkroom(tmp_path, "backup", str(saved), streams=4)).exit_code == 0
    for streams in (1, 8):
        result = await darkroom(new, "restore", str(saved), streams=streams)
        assert result.exit_code == 1
        assert "is 4 streams: set DARKROOM_LOG_STREAMS to 4" in result.stderr
        assert not new.exists()


async def test_a_log_whose_restore_broke_off_is_refused(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: object) -> None:
        raise LogUnavailable("the restore dies here")

    saved, new = tmp_path / "saved", tmp_path / "new"
    async with connected(nats_server) as bus, database_in(tmp_path):
        await JobWriter(job_log(bus)).submit(new_id(), Submit(submitted()))
        assert (await darkroom(tmp_path, "backup", str(saved))).exit_code == 0
    nats_server.stop()
    monkeypatch.setattr("events.bus.logs.dealing._store", die)
    result = await darkroom(new, "restore", str(saved), streams=4)
    assert (result.exit_code, "the restore dies here" in result.stderr) == (1, True)
    server = NatsServer(new / "nats", preferred_port=0)
    server.start()
    try:
        for streams in (1, 4):
            log = LogSettings(nats_url=SecretStr(server.url), streams=streams)
            with pytest.raises(LogDiffers, match="of a restore that has not come to its end"):
                await prepare_log(log, StoreSettings(data_dir=new))
            result = await darkroom(new, "verify", streams=streams)
            assert "of a restore that has not come to its end" in result.stderr
    finally:
        server.stop()


async def test_a_folder_that_is_in_use_is_refused(nats_server: NatsServer, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    async with connected(nats_server), database_in(tmp_path):
        pass
    assert (await darkroom(tmp_path, "backup", str(saved))).exit_code == 0
    again = await darkroom(tmp_path, "backup", str(saved))
    assert (again.exit_code, "is not empty" in again.stderr) == (1, True)
    onto = await darkroom(tmp_path, "restore", str(saved))
    assert (onto.exit_code, "is not empty" in onto.stderr) == (1, True)


@pytest.mark.parametrize("lacks", ["manifest.json", "format"])
async def test_what_is_no_whole_backup_is_refused(
    nats_server: NatsServer, tmp_path: Path, lacks: str
) -> None:
    saved, new = tmp_path / "saved", tmp_path / "new"
    async with connected(nats_server), database_in(tmp_path):
        pass
    await darkroom(tmp_path, "backup", str(saved))
    if lacks == "format":
        (saved / "manifest.json").write_text(json.dumps({"format": "another"}))
    else:
        (saved / "manifest.json").unlink()
    result = await darkroom(new, "restore", str(saved))
    assert (result.exit_code, "Not restored" in result.stderr) == (1, True)
    assert not new.exists()
