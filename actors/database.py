"""Opens the database of a process, and the objects that read or remove jobs with it.

This module is separate from `connections.py`, because workers import `connections.py` and would
need more memory with SQLAlchemy.
"""

from __future__ import annotations

from events.history import History
from events.log import EventLog
from events.store.database import Database
from events.store.ended_jobs import EndedJobs
from events.store.read_model import ReadModel
from events.store.removal import Removal
from events.store.uploads import Uploads
from settings.stores import StoreSettings
from storage.images import ImageStore


def open_database(settings: StoreSettings) -> Database:
    url = settings.effective_database_url
    return Database(url, connections=settings.database_connections)


async def open_prepared_database(settings: StoreSettings) -> Database:
    """Open the database. Returns when it is available and has its tables."""
    database = open_database(settings)
    await database.prepare_with_retries()
    return database


def open_history(
    database: Database, images: ImageStore, *, log: EventLog, deliveries: EventLog
) -> History:
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
    return Removal(
        log=log,
        deliveries=deliveries,
        images=images,
        read_model=read_model,
        uploads=Uploads(database),
    )
