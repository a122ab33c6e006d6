"""Opens the stores of an installation for a tool, while the service may be running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog, LogContents, delivery_contents, log_contents
from events.bus.queues import CallbackQueue, JobQueue
from events.bus.streams import DELIVERIES, delivery_subject
from events.errors import DatabaseUnavailable, HistoryBroken, LogUnavailable
from events.history import StoredHistory, read_history
from events.log import EventLog
from events.store.database import Database
from events.store.database_contents import DatabaseContents
from events.store.read_model import ReadModel
from local.nats_server import last_url
from settings.log import LogSettings
from settings.stores import SQLITE_FILE, StoreSettings
from storage.images import ImageNotFound, ImageStore

T = TypeVar("T")

_CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Stores:
    log: LogContents
    deliveries: LogContents
    event_log: EventLog
    """The same log as `log`, but for writers. So are `delivery_log` and `deliveries`."""
    delivery_log: EventLog
    queue: JobQueue
    callbacks: CallbackQueue
    read_model: ReadModel
    rows: DatabaseContents
    images: ImageStore


@asynccontextmanager
async def open_stores(log: LogSettings, stores: StoreSettings) -> AsyncGenerator[Stores]:
    """Open the stores of the service with these settings. Nothing is created.

    Raises LogUnavailable, DatabaseUnavailable.
    """
    async with open_bus(log, stores) as bus, open_database(stores) as database:
        images = ImageStore(stores.effective_images_url)
        yield Stores(
            log=log_contents(bus),
            deliveries=delivery_contents(bus),
            event_log=JetStreamLog(bus),
            delivery_log=JetStreamLog(bus, stream=DELIVERIES, subject_of=delivery_subject),
            queue=JobQueue(bus),
            callbacks=CallbackQueue(bus),
            read_model=ReadModel(database),
            rows=DatabaseContents(database),
            images=images,
        )


@asynccontextmanager
async def open_bus(
    log: LogSettings, stores: StoreSettings, *, timeout_s: float = _CONNECT_TIMEOUT_S
) -> AsyncGenerator[Bus]:
    """Connect to NATS, without creating or changing streams. Raises LogUnavailable."""
    bus = Bus(
        _nats_url(log, stores),
        name="operator",
        prepares_streams=False,
        ca_file=log.nats_ca_file,
    )
    bus.start()
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await bus.wait_connected()
        if not bus.is_connected:
            raise LogUnavailable(
                f"The event log does not answer within {timeout_s:g} s. Start the service."
            )
        yield bus
    finally:
        await bus.close()


def _nats_url(log: LogSettings, stores: StoreSettings) -> str:
    if log.nats_url is not None:
        return log.nats_url.get_secret_value()
    url = last_url(stores.nats_dir)
    if url is None:
        raise LogUnavailable(
            f"There is no event log in {stores.nats_dir}. Set DARKROOM_DATA_DIR or "
            "DARKROOM_NATS_URL to the value of the service."
        )
    return url


@asynccontextmanager
async def open_database(stores: StoreSettings) -> AsyncGenerator[Database]:
    """Open the database. Raises DatabaseUnavailable if there is none."""
    path = stores.data_dir / SQLITE_FILE
    if stores.database_url is None and not path.exists():
        # Without this check, SQLite would create an empty database.
        raise DatabaseUnavailable(f"There is no database at {path}.")
    database = Database(stores.effective_database_url)
    try:
        yield database
    finally:
        await database.close()


async def stored_in_logs(stores: Stores, job_ids: Collection[str]) -> dict[str, StoredHistory]:
    """Return the events of these jobs in the logs. Jobs without events are left out.

    Raises LogUnavailable.
    """
    events = await stores.log.read_raw(job_ids)
    deliveries = await stores.deliveries.read_raw(job_ids)
    return {
        job_id: StoredHistory(job_id, events.get(job_id, ()), deliveries.get(job_id, ()))
        for job_id in {*events, *deliveries}
    }


async def stored_of(stores: Stores, job_ids: Collection[str]) -> dict[str, StoredHistory]:
    """Return the events of these jobs in the logs and in readable history objects.

    Jobs without events are left out. Raises LogUnavailable, DatabaseUnavailable,
    ImageStoreUnavailable.
    """
    found = await stored_in_logs(stores, job_ids)
    for job_id, key in (await stores.rows.histories(job_ids)).items():
        with suppress(ImageNotFound, HistoryBroken):
            history = await read_history(stores.images, key)
            found[job_id] = history.joined(found.get(job_id, StoredHistory(job_id)))
    return found


async def gather_lists(calls: Iterable[Awaitable[list[T]]]) -> list[T]:
    """Run a few dozen calls together, and join their results. Each call uses a connection."""
    return [found for some in await asyncio.gather(*calls) for found in some]
