"""An installation in memory and one folder: jobs of every kind, in every store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from events.cloud_events import decode
from events.history import StoredHistory, write_history
from events.ids import new_id
from events.job import Job
from events.log import StoredEvent
from events.store.database import Database
from events.store.database_contents import DatabaseContents
from events.store.ended_jobs import moved_bytes
from events.store.read_model import ReadModel
from events.store.tables import JOBS
from events.store.uploads import Uploads
from events.types import (
    AttemptFailed,
    CallbackAttempted,
    CallbackDelivered,
    Cancelled,
    Completed,
    EventData,
    Failed,
    ImageStored,
    Poster,
    Started,
)
from operations.stores import Stores
from operations.verification import Verification
from storage.file_names import HistoryName, poster_name
from storage.images import ImageStore
from tests.support.database import projected
from tests.support.events import LATER, appended, erased, image, job_in, new_event, submitted
from tests.support.memory.contents import MemoryLogContents
from tests.support.memory.log import MemoryLog
from tests.support.memory.queues import MemoryCallbackQueue, MemoryJobQueue
from tests.support.uploads import upload_row

NOW = datetime.fromisoformat("2026-03-01T12:00:00+00:00")
CALLBACK = {"callback_url": "https://receiver.example/ended"}


class PatchedContents(MemoryLogContents):
    """The content of a log in memory, with changed events for some jobs."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.instead: dict[str, tuple[StoredEvent, ...]] = {}

    async def read_raw(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        patched = {each: self.instead[each] for each in job_ids if each in self.instead}
        return await super().read_raw(job_ids) | patched

    async def of(self, job_id: str) -> list[StoredEvent]:
        return [*(await self.read_raw([job_id]))[job_id]]


@dataclass
class Installation:
    folder: Path
    database: Database
    log: MemoryLog = field(default_factory=MemoryLog)
    deliveries: MemoryLog = field(default_factory=MemoryLog)
    queue: MemoryJobQueue = field(default_factory=MemoryJobQueue)
    callbacks: MemoryCallbackQueue = field(default_factory=MemoryCallbackQueue)

    def __post_init__(self) -> None:
        self.read_model = ReadModel(self.database, now=lambda: NOW)
        self.uploads = Uploads(self.database)
        self.images = ImageStore(self.folder.as_uri())
        self.log_contents = PatchedContents(self.log)
        self.delivery_contents = PatchedContents(self.deliveries)
        self.ids: dict[str, str] = {}
        """The ids of the jobs that `fill` creates, by their special property."""

    @property
    def stores(self) -> Stores:
        return Stores(
            log=self.log_contents,
            deliveries=self.delivery_contents,
            event_log=self.log,
            delivery_log=self.deliveries,
            queue=self.queue,
            callbacks=self.callbacks,
            read_model=self.read_model,
            rows=DatabaseContents(self.database),
            images=self.images,
        )

    def verification(self, **options: Any) -> Verification:
        async def no_pause(_: float) -> None:
            await self.project()

        return Verification(self.stores, **({"sleep": no_pause, "now": lambda: NOW} | options))

    async def disagreements(self, **options: Any) -> list[tuple[str, str | None]]:
        """Return kind and job of each disagreement."""
        found = [each async for each in self.verification(**options).run()]
        return [(each.kind.value, each.job_id) for each in found]

    # Jobs.

    async def fill(self) -> None:
        """Create jobs of every kind, projected and with all their data, and an upload."""
        failed = AttemptFailed(attempt=1, message="Out of memory.")
        begun = Started(attempt=1, actor="a")
        self.ids = {
            "waiting": await self.job(),
            "running": await self.job(begun, self.stored_image(0)),
            "completed": await self.job(
                begun, self.stored_image(0), self.stored_video(1), Completed(images=2), **CALLBACK
            ),
            "failed": await self.job(
                begun, failed, Started(attempt=2, actor="b"), Failed(message="No."), **CALLBACK
            ),
            "cancelled": await self.job(Cancelled()),
            "erased": await self.job(Cancelled(), erased(NOW)),
        }
        delivered = [CallbackAttempted(attempt=1, latency_s=0.1, status=200)]
        await self.deliver(self.ids["completed"], *delivered, CallbackDelivered(attempt=1))
        await self.deliver(self.ids["failed"], CallbackAttempted(attempt=1, latency_s=9.0))
        await self.callbacks.add(self.ids["failed"])
        await self.upload()
        await self.project()

    async def job(self, *events: EventData, **changes: Any) -> str:
        """Create a job with these events after its submission, its files, and its entry if it is
        open.
        """
        job_id = new_id()
        await self.append(job_id, submitted(**changes), *events)
        job = await self.load(job_id)
        if job.end is None:
            await self.queue.add(job.submitted.endpoint, job.submitted.lane, job_id, deadline=LATER)
        return job_id

    async def append(self, job_id: str, *events: EventData, log: MemoryLog | None = None) -> None:
        log = log or self.log
        for data in events:
            last = await log.last(job_id)
            version, position = (last.version, last.position) if last else (0, 0)
            if isinstance(data, ImageStored):
                data = await self._with_file(job_id, data)  # noqa: PLW2901
            at = NOW - timedelta(hours=1) + timedelta(seconds=version)
            await appended(log, new_event(job_id, version + 1, data, time=at), position)

    async def deliver(self, job_id: str, *events: EventData) -> None:
        await self.append(job_id, *events, log=self.deliveries)

    async def load(self, job_id: str) -> Job:
        return await job_in(self.log, job_id)

    async def project(self) -> None:
        await projected(self.log, self.read_model)

    async def move(self, job_id: str) -> str:
        """Move an ended job to a history object as the historian does; return the object's key."""
        events = (await self.log.read_raw([job_id]))[job_id]
        deliveries = (await self.deliveries.read_raw([job_id])).get(job_id, ())
        version = decode(events[-1].payload).version
        key = HistoryName(job_id, version, len(deliveries)).key
        await self.put_history(key, StoredHistory(job_id, events, deliveries))
        mine = sa.update(JOBS).where(JOBS.c.id == job_id)
        settled_at = sa.func.coalesce(JOBS.c.settled_at, JOBS.c.ended_at)
        cold = {"history": key, "hot_since": None, "settled_at": settled_at, **moved_bytes()}
        await self.database.execute(mine.values(cold))
        await self.log.purge(job_id)
        await self.deliveries.purge(job_id)
        return key

    async def put_history(self, key: str, history: StoredHistory) -> None:
        """Store a history object that is older than the time for which new files are protected."""
        await write_history(self.images, key, history)
        at = (NOW - timedelta(days=1)).timestamp()
        os.utime(self.folder / key, (at, at))

    async def upload(self) -> str:
        data = b"an upload"
        row = upload_row(at=NOW, name="in.png", digest=digest_of(data), size_bytes=len(data))
        await self.put(row.storage_key, data)
        await self.uploads.add(row)
        return row.storage_key

    # Files.

    def stored_image(self, index: int) -> ImageStored:
        """Return an event that gets its file, key, size and digest when it is appended."""
        return image(index)

    def stored_video(self, index: int) -> ImageStored:
        """Return such an event about a video with a poster."""
        poster = Poster(key="", size_bytes=0, digest="")
        return image(index, media_type="video/mp4", duration_s=2.5, poster=poster)

    async def _with_file(self, job_id: str, stored: ImageStored) -> ImageStored:
        folder, data = f"{job_id}/{stored.attempt}", f"{job_id}".encode()
        members = {"size_bytes": len(data), "digest": digest_of(data)}
        changes: dict[str, Any] = {"key": f"{folder}/{stored.name}", **members}
        await self.put(changes["key"], data)
        if stored.poster is not None:
            changes["poster"] = Poster(key=f"{folder}/{poster_name(stored.index)}", **members)
            await self.put(changes["poster"].key, data)
        return stored.model_copy(update=changes)

    async def put(self, key: str, data: bytes, *, at: datetime = NOW - timedelta(days=1)) -> None:
        await self.images.put(key, data)
        os.utime(self.folder / key, (at.timestamp(), at.timestamp()))


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
