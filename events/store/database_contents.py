"""Reads all rows of jobs and uploads, for checks of the whole service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from events.delivery import has_delivery
from events.job import Job
from events.store.database import Database
from events.store.read_model import from_state, image_rows, job_row
from events.store.tables import IMAGES, JOBS, UPLOADS
from events.types import Event

_PAGE = 500


@dataclass(frozen=True, slots=True)
class JobRow:
    """The row of a job, and the rows of its images."""

    columns: Mapping[str, Any]
    images: Sequence[Mapping[str, Any]]
    """The rows of the images, sorted by index."""

    @property
    def version(self) -> int:
        return int(self.columns["version"])

    def differences(self, job: Job, events: Sequence[Event]) -> list[str]:
        """Return the names of the columns that differ from the row that `events` and `job` require.

        `job` is folded from `events`.
        """
        expected = job_row(job)
        if self.columns["history"] is not None and self.columns["log_bytes"] == 0:
            expected["result_bytes"] += expected["log_bytes"]  # `moved_bytes` explains this sum.
            expected["log_bytes"] = 0
        is_delivered = has_delivery(job.submitted) and job.end is not None
        if is_delivered or job.erased:
            # In these rows, `settled_at` does not follow from the events of the job.
            del expected["settled_at"]
        wrong = [name for name, value in expected.items() if not self._agrees(name, value)]
        if list(self.images) != sorted(image_rows(events, [job]), key=_index):
            wrong.append("images")
        return wrong

    def _agrees(self, name: str, expected: Any) -> bool:
        here = self.columns[name]
        if name not in ("state", "summary"):
            return bool(here == expected)
        return _read(here) == from_state(expected)


def _read(state: str) -> Job | None:
    try:
        return from_state(state)
    except (ValueError, KeyError, TypeError):
        return None


def _index(row: Mapping[str, Any]) -> int:
    return int(row["index"])


@dataclass(frozen=True, slots=True)
class StoredUpload:
    key: str
    digest: str
    size_bytes: int


class DatabaseContents:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def jobs(self, ids: Collection[str]) -> dict[str, JobRow]:
        """Return the rows of the jobs, by id. Jobs without a row are left out.

        Raises DatabaseUnavailable.
        """
        rows = await self._database.fetch(sa.select(JOBS).where(JOBS.c.id.in_(ids)))
        files = sa.select(IMAGES).where(IMAGES.c.job_id.in_(ids)).order_by(IMAGES.c.index)
        images: dict[str, list[Mapping[str, Any]]] = {}
        for image in await self._database.fetch(files):
            images.setdefault(image.job_id, []).append(dict(image._mapping))
        return {row.id: JobRow(dict(row._mapping), images.get(row.id, [])) for row in rows}

    async def job_ids(self) -> AsyncGenerator[list[str]]:
        """Yield the ids of all jobs, in pages, oldest first. Raises DatabaseUnavailable."""
        order = (JOBS.c.created_at, JOBS.c.id)
        page = query = sa.select(*order).order_by(*order).limit(_PAGE)
        while rows := await self._database.fetch(page):
            yield [row.id for row in rows]
            page = query.where(sa.tuple_(*order) > sa.tuple_(*rows[-1]))

    async def histories(self, job_ids: Collection[str]) -> dict[str, str]:
        """Return the keys of the history objects of these jobs, by job id.

        Raises DatabaseUnavailable.
        """
        mine = (JOBS.c.id.in_(job_ids), JOBS.c.history.is_not(None))
        rows = await self._database.fetch(sa.select(JOBS.c.id, JOBS.c.history).where(*mine))
        return {row.id: row.history for row in rows}

    async def upload_keys(self) -> AsyncGenerator[list[str]]:
        """Yield the storage keys of all uploads, in pages. Raises DatabaseUnavailable."""
        query = sa.select(UPLOADS.c.id, UPLOADS.c.storage_key).order_by(UPLOADS.c.id).limit(_PAGE)
        last = ""
        while rows := await self._database.fetch(query.where(UPLOADS.c.id > last)):
            last = rows[-1].id
            yield [row.storage_key for row in rows]

    async def uploads_of(self, keys: Collection[str]) -> dict[str, StoredUpload]:
        """Return the uploads with these storage keys, by key. Unknown keys are left out.

        Raises DatabaseUnavailable.
        """
        columns = (UPLOADS.c.storage_key, UPLOADS.c.digest, UPLOADS.c.size_bytes)
        query = sa.select(*columns).where(UPLOADS.c.storage_key.in_(keys))
        rows = await self._database.fetch(query)
        return {row.storage_key: StoredUpload(*row) for row in rows}
