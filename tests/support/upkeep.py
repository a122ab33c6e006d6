"""The janitor's data: jobs, their images and deliveries, and uploads."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from actors.connections import open_history, open_removal
from actors.upkeep.historian import Historian
from actors.upkeep.janitor import PERIOD_S, UPKEEP_LEASE_S, Janitor
from events.decisions import Cancel, Start, StoreImage, Submit
from events.delivery import Delivery, RequestRedelivery, longest_delivery_s
from events.ids import new_id
from events.job import Job
from events.log import DeliveryWriter, JobWriter
from events.store.database import Database
from events.store.ended_jobs import EndedJobs
from events.store.leases import Leases
from events.store.read_model import ReadModel
from events.store.uploads import Uploads
from events.types import CallbackDelivered, Event, Poster
from settings.settings import Settings
from storage.file_names import history_name
from storage.images import ImageNotFound, ImageStore
from tests.support.database import projected, stored_job
from tests.support.events import image, job_in, new_event, submitted
from tests.support.failing_log import FailingLog
from tests.support.uploads import upload_row

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
ALL = {"image", "poster", "delivery", "log", "row"}
"""Every place where data of a job may remain; see `House.traces`."""


@dataclass
class Clock:
    time: datetime = NOON

    def __call__(self) -> datetime:
        return self.time


class ClockedImages(ImageStore):
    """Stores files at the time of a clock."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        super().__init__(folder.as_uri())
        self._root = folder
        self._clock = clock

    async def put(self, key: str, data: bytes) -> None:
        await super().put(key, data)
        time_s = self._clock().timestamp()
        os.utime(self._root / key, (time_s, time_s))


@dataclass
class House:
    """Everything that the janitor cleans up."""

    folder: Path
    database: Database
    clock: Clock = field(default_factory=Clock)
    log: FailingLog = field(default_factory=FailingLog)
    deliveries: FailingLog = field(default_factory=FailingLog)

    def __post_init__(self) -> None:
        self.read_model = ReadModel(self.database, now=self.clock)
        self.uploads = Uploads(self.database)
        self.images = ClockedImages(self.folder, self.clock)
        self.writer = JobWriter(self.log, now=self.clock)
        self.ended_jobs = EndedJobs(self.database)
        self.history = open_history(
            self.database, self.images, log=self.log, deliveries=self.deliveries
        )
        self.removal = open_removal(
            self.database,
            self.images,
            self.read_model,
            log=self.log,
            deliveries=self.deliveries,
        )

    def janitor(
        self,
        holder: str = "j",
        *,
        batch: int = 500,
        lease_s: float = UPKEEP_LEASE_S,
        period_s: float = PERIOD_S,
        **settings: Any,
    ) -> Janitor:
        given = Settings.load(**({"retention_days": 7} | settings))
        return Janitor(
            holder=holder,
            leases=Leases(self.database),
            log=self.log,
            deliveries=self.history.delivery_log,
            read_model=self.read_model,
            ended_jobs=self.ended_jobs,
            uploads=self.uploads,
            images=self.images,
            removal=self.removal,
            settings=given.retention,
            longest_job_s=given.dispatch.job_timeout_s,
            longest_delivery_s=longest_delivery_s(delays_s=given.callbacks.delays_s),
            batch=batch,
            lease_s=lease_s,
            period_s=period_s,
            now=self.clock,
        )

    def historian(
        self,
        holder: str = "a",
        *,
        batch: int = 500,
        lease_s: float = UPKEEP_LEASE_S,
        period_s: float = PERIOD_S,
        **settings: Any,
    ) -> Historian:
        given = Settings.load(**({"log_hot_s": 3600} | settings))
        return Historian(
            holder=holder,
            leases=Leases(self.database),
            log=self.log,
            deliveries=self.deliveries,
            images=self.images,
            ended_jobs=self.ended_jobs,
            hot_s=given.log.hot_s,
            lease_s=lease_s,
            period_s=period_s,
            batch=batch,
            now=self.clock,
        )

    @contextmanager
    def interrupted(
        self, step: str, act: Callable[[], Awaitable[None]], *, of: str = "", after: bool = False
    ) -> Iterator[None]:
        """Let `act` happen before or after the first call of a step such as "images.put", or the
        first call about a job.
        """
        owner, name, real = self._step(step)
        is_due = True

        async def instead(*args: Any, **named: Any) -> Any:
            nonlocal is_due
            acts = is_due and of in str(args[:1])
            is_due = is_due and not acts
            if acts and not after:
                await act()
            result = await real(*args, **named)
            if acts and after:
                await act()
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, instead)
            yield
        assert not is_due, f"{step} was not called"

    @contextmanager
    def failing(
        self,
        step: str,
        error: BaseException,
        *,
        of: Collection[str] = (),
        after: bool = False,
        spared: int = 0,
    ) -> Iterator[None]:
        """Have the calls of a step fail, before or after its work; only those about the files of
        some jobs, if any are named. The first so many calls are spared.
        """
        owner, name, real = self._step(step)
        left = spared

        async def fail(*args: Any, **named: Any) -> Any:
            nonlocal left
            is_spared = left > 0 or bool(of and str(args[0]).partition("/")[0] not in of)
            left -= 1
            result = await real(*args, **named) if is_spared or after else None
            if not is_spared:
                raise error
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, fail)
            yield

    def _step(self, step: str) -> tuple[object, str, Callable[..., Awaitable[Any]]]:
        part, name = step.split(".")
        owner = getattr(self, part)
        return owner, name, getattr(owner, name)

    async def history_keys(self, job_id: str) -> list[str]:
        """The keys of the history objects in the folder of the job."""
        keys = [file.key async for files in self.images.files(job_id) for file in files]
        return sorted(key for key in keys if history_name(key) is not None)

    async def job(self, **changes: Any) -> str:
        """A job that ended now, with an image and a delivered callback."""
        job_id = await self.ended_job(**changes)
        await self.deliver(job_id)
        return job_id

    async def ended_job(self, **changes: Any) -> str:
        """A job that ended now, with an image and without a delivered callback."""
        job_id = await self.running_job(**changes)
        job = await self.load(job_id)
        await self.writer.execute(Cancel(), job)
        await self.writer.execute(
            Start("b", max_attempts=9, max_attempts_total=9, now=NOON), await self.load(job_id)
        )
        return job_id

    async def deliver(self, job_id: str, *, version: int = 1, expected: int = 0) -> None:
        """Record that the job's callback was delivered."""
        event = new_event(job_id, version, CallbackDelivered(attempt=1), time=self.clock())
        await self.deliveries.append(event, expected=expected)

    async def running_job(self, *, job_id: str | None = None, **changes: Any) -> str:
        job_id = job_id or new_id()
        await self.writer.submit(job_id, Submit(submitted(**changes)))
        start = Start("a", max_attempts=9, max_attempts_total=9, now=self.clock())
        await self.writer.execute(start, await self.load(job_id))
        key, poster_key = f"{job_id}/1/0.png", f"{job_id}/1/0-poster.jpg"
        await self.put(key)
        await self.put(poster_key)
        poster = Poster(key=poster_key, size_bytes=3, digest="sha256:00")
        stored = StoreImage("a", image(0, key=key, poster=poster))
        await self.writer.execute(stored, await self.load(job_id))
        return job_id

    async def jobs(
        self, count: int = 1, *, age: timedelta = timedelta(), **changes: Any
    ) -> list[str]:
        """Jobs that ended so long ago, with rows that know all of their events."""
        ids = [await self.job(**changes) for _ in range(count)]
        await self.project()
        self.clock.time += age
        return ids

    async def moved(self, count: int = 1, **changes: Any) -> list[str]:
        """Jobs that have left the log."""
        ids = await self.jobs(count, age=2 * HOUR, **changes)
        await self.historian().round()
        assert [len(await self.history_keys(job_id)) for job_id in ids] == [1] * count
        return ids

    async def ask_again(self, job_id: str) -> Delivery:
        """Request another delivery of a job, which may have left the log."""
        writer = DeliveryWriter(self.history.delivery_log)
        job = await stored_job(self.read_model, job_id)
        await self.ended_jobs.restart_hot_time(job_id, self.clock())
        await self.read_model.unsettled.reopen(job_id)
        asked = await writer.execute(RequestRedelivery(), job, await writer.load(job_id))
        return asked[0]

    async def deliver_again(self, job_id: str) -> None:
        asked = await self.ask_again(job_id)
        await self.deliver(job_id, version=asked.version + 1, expected=asked.position)

    async def is_in_log(self, job_id: str) -> bool:
        return bool(await self.log.read(job_id) or await self.deliveries.read(job_id))

    async def kept_ids(self) -> list[str]:
        """The ids of the jobs that have a history object, with repeats."""
        keys = [file.key async for files in self.images.files() for file in files]
        return sorted(name.job_id for key in keys if (name := history_name(key)) is not None)

    async def stories(self, *job_ids: str) -> list[tuple[list[Event], list[Event]]]:
        return [
            (await self.history.read(job_id), await self.history.deliveries(job_id))
            for job_id in job_ids
        ]

    async def load(self, job_id: str) -> Job:
        return await job_in(self.log, job_id)

    async def put(self, key: str) -> None:
        await self.images.put(key, b"png")

    async def project(self) -> None:
        await projected(self.log, self.read_model)

    async def has_file(self, key: str) -> bool:
        try:
            return await self.images.get(key) == b"png"
        except ImageNotFound:
            return False

    async def traces(self, job_id: str) -> set[str]:
        """Return the places where data of the job remains."""
        found = {
            "image": await self.has_file(f"{job_id}/1/0.png"),
            "poster": await self.has_file(f"{job_id}/1/0-poster.jpg"),
            "delivery": await self.deliveries.read(job_id),
            "log": await self.log.read(job_id),
            "history": await self.history_keys(job_id),
            "row": await self.read_model.job(job_id),
        }
        return {place for place, left in found.items() if left}

    async def upload(self, name: str) -> str:
        row = upload_row(at=self.clock(), name=name, size_bytes=3)
        await self.put(row.storage_key)
        await self.uploads.add(row)
        return row.storage_key
