"""What is removed, when, and what never is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from actors.upkeep.janitor import Janitor
from events.decisions import Cancel, Erase, Start, StoreImage, Submit
from events.errors import LogUnavailable
from events.ids import new_id
from events.job import Job, fold
from events.log import JobWriter
from events.store.database import Database
from events.store.leases import Leases
from events.store.read_model import ReadModel
from events.store.records import Upload
from events.store.removal import Removal
from events.store.uploads import Uploads
from events.types import CallbackDelivered, Event
from settings.settings import Settings
from storage.images import ImageNotFound, ImageStore
from tests.support.database import database_in
from tests.support.events import image, submitted
from tests.support.failing_log import FailingLog
from tests.support.polling import eventually

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


@dataclass
class Clock:
    time: datetime = NOON

    def __call__(self) -> datetime:
        return self.time


@dataclass
class House:
    """Everything that a janitor looks after."""

    folder: Path
    database: Database
    clock: Clock = field(default_factory=Clock)
    log: FailingLog = field(default_factory=FailingLog)
    deliveries: FailingLog = field(default_factory=FailingLog)

    def __post_init__(self) -> None:
        self.read_model = ReadModel(self.database)
        self.uploads = Uploads(self.database)
        self.images = ImageStore(self.folder.as_uri())
        self.writer = JobWriter(self.log, now=self.clock)
        self.removal = Removal(
            log=self.log,
            deliveries=self.deliveries,
            images=self.images,
            read_model=self.read_model,
        )

    def janitor(self, holder: str = "j", *, batch: int = 500, **settings: Any) -> Janitor:
        given = Settings.load(**({"retention_days": 7, "sweep_grace_s": 3600} | settings))
        return Janitor(
            holder=holder,
            leases=Leases(self.database),
            log=self.log,
            read_model=self.read_model,
            uploads=self.uploads,
            images=self.images,
            removal=self.removal,
            settings=given.retention,
            longest_job_s=given.dispatch.job_timeout_s,
            longest_pauses_s=given.callbacks.longest_pauses_s,
            batch=batch,
            now=self.clock,
        )

    async def job(self) -> str:
        """A job that ended now, with an image and a delivered callback."""
        job_id = await self.running_job()
        job = await self.load(job_id)
        await self.writer.execute(Cancel(), job)
        await self.writer.execute(Start("b", max_attempts=9, now=NOON), await self.load(job_id))
        delivered = CallbackDelivered(attempt=1)
        event = Event(id=new_id(), job_id=job_id, version=1, time=self.clock(), data=delivered)
        await self.deliveries.append(event, expected=0)
        return job_id

    async def running_job(self) -> str:
        job_id = new_id()
        await self.writer.submit(job_id, Submit(submitted()))
        start = Start("a", max_attempts=9, now=self.clock())
        await self.writer.execute(start, await self.load(job_id))
        key = f"{job_id}/1/0.png"
        await self.put(key)
        await self.writer.execute(StoreImage("a", image(0, key=key)), await self.load(job_id))
        return job_id

    async def load(self, job_id: str) -> Job:
        job = await self.writer.load(job_id)
        assert job is not None
        return job

    async def put(self, key: str) -> None:
        await self.images.put(key, b"png")
        time_s = self.clock().timestamp()
        os.utime(self.folder / key, (time_s, time_s))

    async def project(self) -> None:
        at = await self.read_model.checkpoint()
        async with self.log.reader(after=at) as reader:
            assert await self.read_model.apply(await reader.next(0.05), expected=at)

    async def has_file(self, key: str) -> bool:
        try:
            return await self.images.get(key) == b"png"
        except ImageNotFound:
            return False

    async def traces(self, job_id: str) -> set[str]:
        """Where something of the job is left."""
        found = {
            "image": await self.has_file(f"{job_id}/1/0.png"),
            "delivery": await self.deliveries.read(job_id),
            "log": await self.log.read(job_id),
            "row": await self.read_model.job(job_id),
        }
        return {place for place, left in found.items() if left}

    async def upload(self, name: str) -> str:
        upload_id = new_id()
        key = f"uploads/{upload_id}.png"
        await self.put(key)
        await self.uploads.add(
            Upload(
                id=upload_id,
                owner="alice",
                name=name,
                digest="sha256:0",
                storage_key=key,
                width=1,
                height=1,
                size_bytes=3,
                created_at=self.clock(),
                used_at=self.clock(),
            )
        )
        return key


ALL = {"image", "delivery", "log", "row"}


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    (tmp_path / "images").mkdir()
    async with database_in(tmp_path) as database:
        yield House(tmp_path / "images", database)


async def test_a_job_goes_when_its_time_is_over(house: House) -> None:
    old = await house.job()
    house.clock.time += DAY
    new = await house.job()
    running = await house.running_job()
    await house.project()
    house.clock.time = NOON + 7 * DAY
    await house.janitor().round()
    assert await house.traces(old) == ALL
    house.clock.time += HOUR
    await house.janitor().round()
    assert await house.traces(old) == set()
    assert await house.traces(new) == ALL
    assert await house.traces(running) == ALL - {"delivery"}


async def test_zero_days_keep_a_job_for_good(house: House) -> None:
    job_id = await house.job()
    await house.project()
    house.clock.time += 10_000 * DAY
    await house.janitor(retention_days=0).round()
    assert await house.traces(job_id) == ALL


async def test_a_job_outlives_the_tries_of_its_callback(house: House) -> None:
    job_id = await house.job()
    await house.project()
    janitor = house.janitor(retention_days=0.001, callback_delays_s=(0, 86400), callback_jitter=0.5)
    house.clock.time += 1.5 * DAY
    await janitor.round()
    assert await house.traces(job_id) == ALL
    house.clock.time += HOUR
    await janitor.round()
    assert await house.traces(job_id) == set()


@pytest.mark.parametrize("log", ["log", "deliveries"])
async def test_a_removal_that_was_cut_short_is_taken_up_again(house: House, log: str) -> None:
    job_id, other = await house.job(), await house.job()
    await house.project()
    house.clock.time += 8 * DAY
    broken: FailingLog = getattr(house, log)
    broken.purge_error = LogUnavailable()
    assert not await house.janitor(batch=2).round()  # trouble is no reason to hurry
    assert "row" in await house.traces(job_id)
    broken.recover()
    assert await house.janitor(batch=2).round()
    assert await house.traces(job_id) == await house.traces(other) == set()


async def test_a_round_is_bounded(house: House) -> None:
    ids = [await house.job() for _ in range(5)]
    await house.project()
    house.clock.time += 8 * DAY
    janitor = house.janitor(batch=2)
    more = [await janitor.round() for _ in range(3)]
    assert more == [True, True, False]
    assert [await house.traces(job_id) for job_id in ids] == [set()] * 5


async def test_an_erased_job_is_looked_after_until_its_writer_is_surely_gone(
    house: House,
) -> None:
    job_id = await house.running_job()
    await house.writer.execute(Erase(), await house.load(job_id))
    await house.project()  # whoever asked for it died before anything was removed
    assert await house.traces(job_id) == {"image", "log", "row"}
    await house.janitor().round()
    [left] = await house.log.read(job_id)
    assert fold([left]) == await house.read_model.job(job_id)
    assert not await house.has_file(f"{job_id}/1/0.png")

    await house.put(f"{job_id}/1/1.png")  # the actor was still at it
    house.clock.time += HOUR
    await house.janitor().round()
    assert not await house.has_file(f"{job_id}/1/1.png")
    assert await house.read_model.due_erasures(house.clock(), limit=9) == []
    house.clock.time += 8 * DAY
    await house.janitor().round()
    assert await house.traces(job_id) == set()


async def test_an_erasure_that_fails_is_tried_again(house: House) -> None:
    job_id = await house.job()
    await house.writer.execute(Erase(), await house.load(job_id))
    await house.project()
    house.log.purge_error = LogUnavailable()
    await house.janitor().round()
    assert len(await house.log.read(job_id)) > 1
    house.log.recover()
    await house.janitor().round()
    assert len(await house.log.read(job_id)) == 1


async def test_orphans_are_swept_when_they_are_old(house: House) -> None:
    ended, running = await house.job(), await house.running_job()
    kept = [f"{ended}/1/0.png", f"{running}/1/0.png", f"{running}/1/1.png", "notes/about.txt"]
    orphans = [f"{ended}/2/0.png", f"{new_id()}/1/0.png", "uploads/nobody/knows.png"]
    for key in (*kept, *orphans):
        await house.put(key)
    upload = await house.upload("cat.png")
    janitor = house.janitor()
    await sweep(janitor)
    assert [await house.has_file(key) for key in orphans] == [True] * 3
    house.clock.time += 2 * HOUR
    await sweep(janitor)
    assert [await house.has_file(key) for key in orphans] == [False] * 3
    assert [await house.has_file(key) for key in (*kept, upload)] == [True] * 5


async def test_an_image_in_the_read_model_needs_no_log(house: House) -> None:
    """A log that was lost does not take the images with it."""
    job_id = await house.job()
    await house.project()
    await house.log.purge(job_id)
    house.clock.time += 2 * HOUR
    await sweep(house.janitor())
    assert await house.has_file(f"{job_id}/1/0.png")


async def test_a_sweep_goes_on_where_it_stopped(house: House) -> None:
    orphans = [f"{new_id()}/1/0.png" for _ in range(7)]
    for key in orphans:
        await house.put(key)
    house.clock.time += 2 * HOUR
    janitor = house.janitor(batch=2)
    left = []
    for _ in range(4):
        await janitor.round()
        left.append(sum([await house.has_file(key) for key in orphans]))
    assert left == [5, 3, 1, 0]


async def sweep(janitor: Janitor) -> None:
    """More rounds than a walk through all files takes, and the one that begins anew."""
    for _ in range(5):
        await janitor.round()


async def test_uploads_go_when_nobody_needs_them(house: House) -> None:
    unused, used, replaced = [await house.upload(name) for name in ("a", "b", "c")]
    current = await house.upload("c")
    janitor = house.janitor(upload_retention_days=7, job_timeout_s=3600)
    house.clock.time += HOUR
    await janitor.round()
    assert await house.has_file(replaced)  # a job may have been accepted with it just before
    house.clock.time += timedelta(seconds=1)
    await janitor.round()
    assert not await house.has_file(replaced)
    house.clock.time += 6 * DAY
    await house.uploads.use("alice", ["b", "c"], house.clock())
    house.clock.time += DAY
    await janitor.round()
    assert [await house.has_file(key) for key in (unused, used, current)] == [False, True, True]
    assert await house.uploads.use("alice", ["a"], house.clock()) == {}


async def test_zero_days_keep_an_upload_for_good(house: House) -> None:
    key = await house.upload("a")
    house.clock.time += 10_000 * DAY
    await house.janitor(upload_retention_days=0).round()
    assert await house.has_file(key)


async def test_an_upload_outlives_the_jobs_that_name_it(house: House) -> None:
    key = await house.upload("a")
    house.clock.time += DAY
    await house.janitor(upload_retention_days=0.1, job_timeout_s=90_000).round()
    assert await house.has_file(key)


async def test_one_of_two_janitors_works(house: House) -> None:
    job_id = await house.job()
    await house.project()
    house.clock.time += 8 * DAY
    assert await Leases(house.database).acquire("janitor", "other", ttl_s=1.0)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(house.janitor(janitor_period_s=0.05).run())
        assert await house.traces(job_id) == ALL

        async def is_gone() -> bool:
            return not await house.traces(job_id)

        await eventually(is_gone)  # the other's lease ran out
        running.cancel()
