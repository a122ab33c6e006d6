"""The database and the archive, put together.

Not in `assembly.py`, since workers load no SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from events.archive.archive import Archive
from events.archive.history import History
from events.log import EventLog, utc_now
from events.store.archiving.hot_jobs import HotJobs
from events.store.archiving.segments import Segments
from events.store.archiving.writer import ArchiveWriter
from events.store.database import Database
from events.store.read_model import ReadModel
from events.store.removal import Removal
from events.store.uploads import Uploads
from settings.stores import StoreSettings
from storage.images import ImageStore


def open_database(settings: StoreSettings) -> Database:
    url = settings.effective_database_url
    return Database(url, connections=settings.database_connections)


@dataclass(frozen=True, slots=True)
class Archiving:
    """The archive, the tables that it goes by, and who writes to both."""

    archive: Archive
    segments: Segments
    hot_jobs: HotJobs
    writer: ArchiveWriter
    uploads: Uploads

    def history(self, *, log: EventLog, deliveries: EventLog) -> History:
        return History(
            log=log, deliveries=deliveries, archive=self.archive, find=self.segments.find
        )

    def removal(
        self, images: ImageStore, read_model: ReadModel, *, log: EventLog, deliveries: EventLog
    ) -> Removal:
        return Removal(
            log=log,
            deliveries=deliveries,
            images=images,
            read_model=read_model,
            archive=self.archive,
            segments=self.segments,
            archive_writer=self.writer,
            uploads=self.uploads,
        )


def open_archive(
    database: Database, images: ImageStore, *, now: Callable[[], datetime] = utc_now
) -> Archiving:
    archive, segments, hot_jobs = Archive(images), Segments(database), HotJobs(database)
    writer = ArchiveWriter(archive=archive, segments=segments, hot_jobs=hot_jobs, now=now)
    return Archiving(archive, segments, hot_jobs, writer, Uploads(database))
