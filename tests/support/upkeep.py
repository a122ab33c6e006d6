"""What the janitor looks after: jobs, their images and deliveries, and uploads."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from actors.archiving import open_archive
from actors.upkeep.archiver import Archiver
from actors.upkeep.janitor import Janitor
from actors.upkeep.orphans import Orphans
from events.decisions import Cancel, Start, StoreImage, Submit
from events.delivery_policy import longest_delivery_s
from events.ids import new_id
from events.job import Job
from events.log import JobWriter
from events.store.database import Database
from events.store.leases import Leases
from events.store.read_model import ReadModel
from events.store.records import Upload
from events.store.uploads import Uploads
from events.types import CallbackDelivered, Event
from settings.settings import Settings
from storage.images import ImageNotFound, ImageStore
from tests.support.events import image, submitted
from tests.support.failing_log import FailingLog

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
ALL = {"image", "delivery", "log", "row"}
"""Every place where something of a job may be left; see `House.traces`."""


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
        self.read_model = ReadModel(self.database, now=self.clock)
        self.uploads = Uploads(self.database)
        self.images = ImageStore(self.folder.as_uri())
        self.writer = JobWriter(self.log, now=self.clock)
        archiving = open_archive(self.database, self.images, now=self.clock)
        self.archive, self.segments = archiving.archive, archiving.segments
        self.hot_jobs, self.archive_writer = archiving.hot_jobs, archiving.writer
        self.history = archiving.history(log=self.log, deliveries=self.deliveries)
        self.removal = archiving.removal(
            self.images, self.read_model, log=self.log, deliveries=self.deliveries
        )

    def janitor(self, holder: str = "j", *, batch: int = 500, **settings: Any) -> Janitor:
        given = Settings.load(**({"retention_days": 7, "sweep_grace_s": 3600} | settings))
        return Janitor(
            holder=holder,
            leases=Leases(self.database),
            deliveries=self.deliveries,
            read_model=self.read_model,
            hot_jobs=self.hot_jobs,
            segments=self.segments,
            uploads=self.uploads,
            images=self.images,
            removal=self.removal,
            orphans=Orphans(
                log=self.log,
                read_model=self.read_model,
                uploads=self.uploads,
                segments=self.segments,
                archive=self.archive,
                images=self.images,
                grace_s=given.retention.sweep_grace_s,
                longest_job_s=given.dispatch.job_timeout_s,
                now=self.clock,
            ),
            settings=given.retention,
            longest_job_s=given.dispatch.job_timeout_s,
            longest_delivery_s=longest_delivery_s(
                delays_s=given.callbacks.delays_s,
                jitter=given.callbacks.jitter,
                withheld_s=given.callbacks.withheld_s,
            ),
            batch=batch,
            now=self.clock,
        )

    def archiver(self, holder: str = "a", *, batch: int = 500, **settings: Any) -> Archiver:
        given = Settings.load(**({"log_hot_s": 3600} | settings))
        return Archiver(
            holder=holder,
            leases=Leases(self.database),
            log=self.log,
            deliveries=self.deliveries,
            hot_jobs=self.hot_jobs,
            segments=self.segments,
            archive=self.archive,
            writer=self.archive_writer,
            settings=given.log,
            lease_s=given.retention.upkeep_lease_s,
            period_s=given.retention.janitor_period_s,
            batch=batch,
            now=self.clock,
        )

    async def job(self, **changes: Any) -> str:
        """A job that ended now, with an image and a delivered callback."""
        job_id = await self.ended_job(**changes)
        await self.deliver(job_id)
        return job_id

    async def ended_job(self, **changes: Any) -> str:
        """A job that ended now, with an image; nobody has called anybody back."""
        job_id = await self.running_job(**changes)
        job = await self.load(job_id)
        await self.writer.execute(Cancel(), job)
        await self.writer.execute(
            Start("b", max_attempts=9, max_attempts_total=9, now=NOON), await self.load(job_id)
        )
        return job_id

    async def deliver(self, job_id: str, *, version: int = 1, expected: int = 0) -> None:
        """Say that the job's callback was delivered."""
        event = Event(
            id=new_id(),
            job_id=job_id,
            version=version,
            time=self.clock(),
            data=CallbackDelivered(attempt=1),
        )
        await self.deliveries.append(event, expected=expected)

    async def running_job(self, *, job_id: str | None = None, **changes: Any) -> str:
        job_id = job_id or new_id()
        await self.writer.submit(job_id, Submit(submitted(**changes)))
        start = Start("a", max_attempts=9, max_attempts_total=9, now=self.clock())
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
