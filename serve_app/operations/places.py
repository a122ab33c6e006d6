"""Every place that keeps something of jobs, opened beside the running service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from events.archive.archive import Archive, SegmentRef
from events.archive.segment import ArchivedJob
from events.bus.bus import Bus
from events.bus.contents import (
    JetStreamCallbackEntries,
    JetStreamJobEntries,
    delivery_contents,
    log_contents,
)
from events.bus.jetstream_log import JetStreamLog
from events.bus.logs.job_log import job_log
from events.bus.streams import DELIVERIES, delivery_subject
from events.errors import DatabaseUnavailable, LogDiffers, LogUnavailable
from events.log import EventLog
from events.queue import QueueContents
from events.store.archiving.hot_jobs import HotJobs
from events.store.archiving.segments import Segments
from events.store.archiving.writer import ArchiveWriter
from events.store.database import Database
from events.store.maintenance.contents import DatabaseContents
from events.store.read_model import ReadModel
from events.streams.contents import LogContents
from events.streams.log_streams import LogStreams
from serve_app.local.nats_server import last_url
from settings.log import LogSettings
from settings.stores import SQLITE_FILE, StoreSettings
from storage.images import ImageNotFound, ImageStore

T = TypeVar("T")

_CONNECT_TIMEOUT_S = 10.0
_PREPARE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Places:
    log: LogContents
    deliveries: LogContents
    event_log: EventLog
    """The same as `log`, for commands that change it; so is `delivery_log`."""
    delivery_log: EventLog
    queue: QueueContents
    callbacks: QueueContents
    read_model: ReadModel
    rows: DatabaseContents
    images: ImageStore
    archive: Archive
    segments: Segments


@asynccontextmanager
async def open_places(log: LogSettings, stores: StoreSettings) -> AsyncGenerator[Places]:
    """Those of the service with these settings. Nothing is made where something is missing.

    Raises LogUnavailable, DatabaseUnavailable.
    """
    async with open_bus(log, stores) as bus, open_database(stores) as database:
        images = ImageStore(stores.effective_images_url, retry_s=stores.images_retry_s)
        yield Places(
            log=log_contents(bus),
            deliveries=delivery_contents(bus),
            event_log=job_log(bus),
            delivery_log=JetStreamLog(bus, stream=DELIVERIES, subject_of=delivery_subject),
            queue=JetStreamJobEntries(bus),
            callbacks=JetStreamCallbackEntries(bus),
            read_model=ReadModel(database, streams=bus.log_streams),
            rows=DatabaseContents(database),
            images=images,
            archive=Archive(images),
            segments=Segments(database),
        )


@asynccontextmanager
async def open_bus(
    log: LogSettings, stores: StoreSettings, *, timeout_s: float = _CONNECT_TIMEOUT_S
) -> AsyncGenerator[Bus]:
    """The connection of a command; streams are taken as they are. Raises LogUnavailable."""
    bus = Bus(
        _nats_url(log, stores),
        name="operator",
        prepares_streams=False,
        ca_file=log.nats_ca_file,
        log_streams=LogStreams(log.streams),
    )
    bus.start()
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await bus.wait_known()
        if bus.refusal is not None:
            raise LogDiffers(bus.refusal)
        if not bus.is_connected:
            raise LogUnavailable(
                f"The event log does not answer within {timeout_s:g} s. Start the service."
            )
        yield bus
    finally:
        await bus.close()


async def prepare_log(log: LogSettings, stores: StoreSettings) -> None:
    """Make the streams of the log, before anything else is started in vain. Raises LogDiffers.

    A NATS that is away is nobody's fault here: each process waits for it.
    """
    bus = Bus(
        _nats_url(log, stores),
        name="up",
        replicas=log.replicas,
        log_max_bytes=log.max_bytes,
        ca_file=log.nats_ca_file,
        log_streams=LogStreams(log.streams),
    )
    bus.start()
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PREPARE_TIMEOUT_S):
                await bus.wait_known()
        if bus.refusal is not None:
            raise LogDiffers(bus.refusal)
    finally:
        await bus.close()


def _nats_url(log: LogSettings, stores: StoreSettings) -> str:
    if log.nats_url is not None:
        return log.nats_url.get_secret_value()
    url = last_url(stores.nats_dir)
    if url is None:
        raise LogUnavailable(
            f"There is no event log in {stores.nats_dir}. Set DARKROOM_DATA_DIR or "
            "DARKROOM_NATS_URL as the service has it."
        )
    return url


@asynccontextmanager
async def open_database(stores: StoreSettings) -> AsyncGenerator[Database]:
    """Raises DatabaseUnavailable where there is none."""
    path = stores.data_dir / SQLITE_FILE
    if stores.database_url is None and not path.exists():
        raise DatabaseUnavailable(f"There is no database at {path}.")  # SQLite would make one
    database = Database(stores.effective_database_url)
    try:
        yield database
    finally:
        await database.close()


def archive_writer(places: Places, database: Database) -> ArchiveWriter:
    """For a command that changes the archive beside the running service."""
    hot_jobs = HotJobs(database)
    return ArchiveWriter(archive=places.archive, segments=places.segments, hot_jobs=hot_jobs)


async def stored_of(places: Places, job_ids: Collection[str]) -> dict[str, ArchivedJob]:
    """All that log and archive have of these jobs; one of which they have nothing is left out.

    Raises LogUnavailable, DatabaseUnavailable, ImageStoreUnavailable, SegmentBroken.
    """
    events = await places.log.stored(job_ids)
    deliveries = await places.deliveries.stored(job_ids)
    found = {
        job_id: ArchivedJob(job_id, events.get(job_id, ()), deliveries.get(job_id, ()))
        for job_id in {*events, *deliveries}
    }
    for job_id, ref in (await places.rows.segments_of(job_ids)).items():
        if ref is not None and (archived := await archived_in(places, ref, job_id)) is not None:
            found[job_id] = archived.joined(found.get(job_id, archived))
    return found


async def archived_in(places: Places, ref: SegmentRef, job_id: str) -> ArchivedJob | None:
    """None where the segment does not have it, or is gone."""
    with suppress(ImageNotFound):
        return await places.archive.read(ref, job_id)
    return None


async def together(looks: Iterable[Awaitable[list[T]]]) -> list[T]:
    """What all of them found. A few dozen at a time: each keeps a connection busy."""
    return [found for some in await asyncio.gather(*looks) for found in some]
