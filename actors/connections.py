"""Connections of a process: the logs and the queues on NATS, the database, and the image store.

Job actors import this module. To save memory in these processes, only the functions that need the
database import SQLAlchemy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.bus.queues import CallbackQueue, JobQueue
from events.bus.streams import DELIVERIES, delivery_subject
from events.log import EventLog
from events.result import UrlFor
from settings.http import HttpSettings
from settings.log import LogSettings
from settings.stores import StoreSettings
from storage.images import ImageStore
from storage.service_secret import url_for

if TYPE_CHECKING:
    from events.history import History
    from events.store.database import Database
    from events.store.read_model import ReadModel
    from events.store.removal import Removal


@dataclass(frozen=True, slots=True)
class Connections:
    """The logs and the queues of one process, over one connection to NATS."""

    bus: Bus
    log: EventLog
    deliveries: EventLog
    queue: JobQueue
    callback_queue: CallbackQueue


def open_connections(
    settings: LogSettings, name: str, *, max_staleness_s: float = 10.0
) -> Connections:
    """Make the connections of a process. `bus.start()` begins to connect.

    While NATS does not answer, the known depth of a queue is used for `max_staleness_s` seconds.
    """
    if settings.nats_url is None:
        raise ValueError("DARKROOM_NATS_URL is not set")
    bus = Bus(
        settings.nats_url.get_secret_value(),
        name=name,
        replicas=settings.replicas,
        log_max_bytes=settings.max_bytes,
        ca_file=settings.nats_ca_file,
    )
    return Connections(
        bus=bus,
        log=JetStreamLog(bus),
        deliveries=open_deliveries(bus),
        queue=JobQueue(bus, max_staleness_s=max_staleness_s),
        callback_queue=CallbackQueue(bus),
    )


def connect(settings: LogSettings, name: str) -> Connections:
    """Make connections under `name` and begin to connect. Needs a running event loop."""
    connections = open_connections(settings, name)
    connections.bus.start()
    return connections


def open_deliveries(bus: Bus) -> JetStreamLog:
    return JetStreamLog(bus, stream=DELIVERIES, subject_of=delivery_subject)


def open_images(stores: StoreSettings) -> ImageStore:
    return ImageStore(stores.effective_images_url)


def image_urls(http: HttpSettings, stores: StoreSettings) -> UrlFor:
    """Return a function that makes URLs of images. Raises ValueError without a secret."""
    return url_for(http.effective_public_url, stores.secret_bytes, ttl_s=http.image_url_ttl_s)


def open_database(settings: StoreSettings) -> Database:
    from events.store.database import Database

    url = settings.effective_database_url
    return Database(url, connections=settings.database_connections)


async def open_prepared_database(settings: StoreSettings) -> Database:
    """Open the database, and wait until it is available and has its tables."""
    database = open_database(settings)
    await database.prepare_with_retries()
    return database


def open_history(
    database: Database, images: ImageStore, *, log: EventLog, deliveries: EventLog
) -> History:
    from events.history import History
    from events.store.ended_jobs import EndedJobs

    find = EndedJobs(database).find_history
    return History(log=log, deliveries=deliveries, images=images, find=find)


def open_removal(
    database: Database,
    images: ImageStore,
    read_model: ReadModel,
    *,
    log: EventLog,
    deliveries: EventLog,
) -> Removal:
    from events.store.removal import Removal
    from events.store.uploads import Uploads

    return Removal(
        log=log,
        deliveries=deliveries,
        images=images,
        read_model=read_model,
        uploads=Uploads(database),
    )
