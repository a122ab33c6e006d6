"""Erasure on a real nats-server: nothing that lags, rebuilds or still runs brings content back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from actors.archiving import open_archive
from actors.assembly import open_deliveries
from actors.upkeep.janitor import Janitor
from actors.upkeep.orphans import Orphans
from actors.upkeep.results import Results
from actors.worker.attempt import AttemptLimits
from actors.worker.job import RunOutcome
from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.bus.queues import JetStreamJobQueue
from events.decisions import Complete, Erase, Start, StoreImage, Submit
from events.ids import new_id
from events.job import Job
from events.log import JobWriter, utc_now
from events.store.archiving.hot_jobs import HotJobs
from events.store.database import Database
from events.store.leases import Leases
from events.store.read_model import ReadModel
from events.store.removal import Removal
from events.store.uploads import Uploads
from events.types import Erased, Event
from settings.retention import RetentionSettings
from storage.images import ImageNotFound, ImageStore
from tests.support.database import database_in
from tests.support.events import image, submitted
from tests.support.polling import eventually
from tests.support.worker import ScriptedEngine, job_runner, picture

PROMPT = "a red circle"


@dataclass
class Bench:
    bus: Bus
    log: JetStreamLog
    writer: JobWriter
    images: ImageStore
    database: Database
    folder: Path

    @property
    def read_model(self) -> ReadModel:
        return ReadModel(self.database)

    @property
    def removal(self) -> Removal:
        archiving = open_archive(self.database, self.images)
        return archiving.removal(
            self.images,
            self.read_model,
            log=self.log,
            deliveries=open_deliveries(self.bus),
        )

    async def load(self, job_id: str) -> Job:
        job = await self.writer.load(job_id)
        assert job is not None
        return job

    async def whole_job(self) -> str:
        job_id = new_id()
        await self.writer.submit(job_id, Submit(submitted(request={"prompt": PROMPT})))
        start = Start("a", max_attempts=3, max_attempts_total=9, now=utc_now())
        key = f"{job_id}/1/0.png"
        await self.images.put(key, b"png")
        store = StoreImage("a", image(0, key=key))
        for command in (start, store, Complete("a", images=1)):
            await self.writer.execute(command, await self.load(job_id))
        return job_id

    async def erase(self, job_id: str) -> None:
        outcome = await self.writer.execute(Erase(), await self.load(job_id))
        assert outcome.job is not None
        assert await self.removal.hide(outcome.job)

    def janitor(self) -> Janitor:
        """A janitor whose clock is a minute ahead, so that an erasure is due again."""
        archiving, settings = open_archive(self.database, self.images), RetentionSettings()
        return Janitor(
            holder="j",
            leases=Leases(self.database),
            deliveries=open_deliveries(self.bus),
            read_model=self.read_model,
            hot_jobs=archiving.hot_jobs,
            segments=archiving.segments,
            uploads=Uploads(self.database),
            images=self.images,
            removal=self.removal,
            orphans=Orphans(
                log=self.log,
                read_model=self.read_model,
                uploads=Uploads(self.database),
                segments=archiving.segments,
                archive=archiving.archive,
                images=self.images,
                grace_s=settings.sweep_grace_s,
                longest_job_s=3600.0,
            ),
            settings=settings,
            longest_job_s=3600.0,
            longest_delivery_s=0.0,
            now=lambda: utc_now() + timedelta(minutes=1),
        )

    async def has_image(self, key: str) -> bool:
        try:
            return bool(await self.images.get(key))
        except ImageNotFound:
            return False


@asynccontextmanager
async def projecting(log: JetStreamLog, database: Database) -> AsyncIterator[None]:
    role = Results(log=log, read_model=ReadModel(database), catch_up_period_s=60)
    results = asyncio.create_task(role.run())
    yield
    results.cancel()
    await asyncio.gather(results, return_exceptions=True)


async def shows_content(database: Database) -> bool:
    async with database.write() as connection:
        states = await connection.exec_driver_sql("SELECT state FROM jobs")
        images = await connection.exec_driver_sql("SELECT storage_key FROM images")
        return PROMPT in "".join(states.scalars()) or bool(images.scalars().all())


@pytest.fixture
async def bench(bus: Bus, tmp_path: Path) -> AsyncIterator[Bench]:
    log = JetStreamLog(bus)
    images = ImageStore((tmp_path / "images").as_uri())
    async with database_in(tmp_path) as database:
        yield Bench(bus, log, JobWriter(log), images, database, tmp_path)


async def test_a_projection_that_lags_does_not_bring_the_content_back(bench: Bench) -> None:
    job_id = await bench.whole_job()
    async with bench.log.reader(after=0) as lagging:
        held: list[Event] = []
        while len(held) < 4:
            held += await lagging.next(5)
        await bench.erase(job_id)
        assert await bench.read_model.apply(held, expected=0)
        assert not await shows_content(bench.database)
        async with projecting(bench.log, bench.database):
            await eventually(lambda: _reached(bench, job_id))
    assert not await shows_content(bench.database)
    assert await bench.read_model.jobs("alice") == []
    assert not await bench.has_image(f"{job_id}/1/0.png")


async def test_a_rebuild_of_the_read_model_does_not_bring_the_content_back(bench: Bench) -> None:
    job_id, kept = await bench.whole_job(), await bench.whole_job()
    async with projecting(bench.log, bench.database):
        await eventually(lambda: _reached(bench, kept))
    await bench.erase(job_id)
    assert [type(event.data) for event in await bench.log.read(job_id)] == [Erased]
    (bench.folder / "anew").mkdir()
    async with database_in(bench.folder / "anew") as anew, projecting(bench.log, anew):
        bench.database = anew
        await eventually(lambda: _reached(bench, job_id))
        assert [job.id for job in await ReadModel(anew).jobs("alice")] == [kept]
        assert await ReadModel(anew).job(job_id) == await bench.load(job_id)


async def _reached(bench: Bench, job_id: str) -> bool:
    last = await bench.log.last(job_id)
    assert last is not None
    return await bench.read_model.checkpoint() >= last.position


async def _has_stored(bench: Bench, job_id: str) -> bool:
    return bool((await bench.load(job_id)).images)


async def test_a_restarted_submission_meets_the_erasure(bench: Bench) -> None:
    job_id = await bench.whole_job()
    await bench.erase(job_id)
    outcome = await bench.writer.submit(job_id, Submit(submitted()))
    assert outcome.added == ()
    assert outcome.job is not None
    assert outcome.job.erased


async def test_an_actor_that_still_runs_writes_nothing_and_its_late_image_is_swept(
    bench: Bench,
) -> None:
    job_id, lane = new_id(), 3
    await bench.writer.submit(job_id, Submit(submitted(lane=lane, images=2)))
    queue = JetStreamJobQueue(bench.bus, lease_s=30)
    await queue.add("default", lane, job_id)
    engine = ScriptedEngine([picture(0), picture(1)], gated=True)
    runner = job_runner(
        engine,
        log=bench.log,
        images=bench.images,
        bus=bench.bus,
        limits=AttemptLimits(silence_s=30),
        lease_renew_s=30,  # it will not notice by itself
    )
    async with queue.reader("default", lane) as entries:
        [entry] = await entries.next(most=1, timeout_s=10)
        run = asyncio.create_task(runner.run(entry))
        engine.advance()
        await eventually(lambda: _has_stored(bench, job_id))
        await bench.erase(job_id)
        assert not await bench.has_image(f"{job_id}/1/0.png")
        engine.advance()
        assert await run is RunOutcome.ENDED

    async def nothing_queued() -> bool:
        return not await queue.job_ids()

    await eventually(nothing_queued)
    assert [type(event.data) for event in await bench.log.read(job_id)] == [Erased]
    assert await bench.has_image(f"{job_id}/1/1.png")
    await bench.janitor().round()
    assert not await bench.has_image(f"{job_id}/1/1.png")


async def test_a_removed_job_leaves_nothing_in_the_log(bench: Bench) -> None:
    job_id, kept = await bench.whole_job(), await bench.whole_job()
    async with projecting(bench.log, bench.database):
        await eventually(lambda: _reached(bench, kept))
    ended = await HotJobs(bench.database).cool(utc_now(), limit=9)
    [job] = [job for job in ended if job.id == job_id]
    await bench.removal.remove(job, found_at=utc_now())
    assert await bench.log.read(job_id) == []
    assert await bench.read_model.job(job_id) is None
    assert [job.id for job in await bench.read_model.jobs("alice")] == [kept]
    assert await bench.has_image(f"{kept}/1/0.png")
