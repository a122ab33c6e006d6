"""What the tables hold of jobs and uploads, as it is stored: for whoever checks it all."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from events.archive.archive import SegmentRef
from events.delivery import is_wanted
from events.job import Job
from events.store.database import Database
from events.store.job_rows import from_state, image_rows, job_row
from events.store.tables import IMAGES, JOBS, SEGMENTS, UPLOADS
from events.types import Event

_PAGE = 500
_ADDED = {"key_id", "dead_letter", "summary", "log_bytes", "result_bytes", "settled_at"}
"""Columns that the first version did not have; null in the rows that it wrote."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """The row of a job and those of its images."""

    columns: Mapping[str, Any]
    images: Sequence[Mapping[str, Any]]
    """By index."""

    @property
    def version(self) -> int:
        return int(self.columns["version"])

    @property
    def is_older(self) -> bool:
        """Whether an older version wrote it, which knew no summaries and no sizes."""
        return self.columns["summary"] is None and self.columns["result_bytes"] is None

    def differences(self, job: Job, events: Sequence[Event]) -> list[str]:
        """The columns that are not those of `job`, which is folded from `events`.

        What an older version could not write is no difference.
        """
        expected = job_row(job)
        is_archived = self.columns["segment"] or self.columns["archived_at"]
        if is_archived and self.columns["log_bytes"] == 0:
            expected["result_bytes"] += expected["log_bytes"]  # as `archived_bytes`
            expected["log_bytes"] = 0
        has_delivery = is_wanted(job.submitted) and job.end is not None
        if self.is_older or has_delivery or job.erased:
            del expected["settled_at"]  # noted by whoever found it so, which no event of it says
        if self.is_older:
            nulls = {name for name in _ADDED if self.columns[name] is None}
            expected = {name: value for name, value in expected.items() if name not in nulls}
        wrong = [name for name, value in expected.items() if not self._agrees(name, value)]
        if list(self.images) != sorted(image_rows(events, {job.id: job}), key=_index):
            wrong.append("images")
        return wrong

    def _agrees(self, name: str, expected: Any) -> bool:
        here = self.columns[name]
        if name not in ("state", "summary"):
            return bool(here == expected)
        job, whole = _read(here), from_state(expected)
        if job is None or not self.is_older:
            return job == whole
        # It says nothing but what it knew; why an attempt failed, later versions know of more.
        stored = json.loads(here)
        stored["job"].pop("last_failure", None)
        return _is_part(stored, json.loads(expected))


def _is_part(part: Any, whole: Any) -> bool:
    """Whether a JSON value is `whole`, but for members that it lacks or has as null."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(_is_part(value, whole.get(name)) for name, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) == len(whole) and all(map(_is_part, part, whole))
    return part is None or bool(part == whole)


def _read(state: str | None) -> Job | None:
    """None for what is no state of a job."""
    try:
        return from_state(state or "")
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
        """The rows of these jobs, as far as there are any. Raises DatabaseUnavailable."""
        rows = await self._database.fetch(sa.select(JOBS).where(JOBS.c.id.in_(ids)))
        files = sa.select(IMAGES).where(IMAGES.c.job_id.in_(ids)).order_by(IMAGES.c.index)
        images: dict[str, list[Mapping[str, Any]]] = {}
        for image in await self._database.fetch(files):
            images.setdefault(image.job_id, []).append(dict(image._mapping))
        return {row.id: JobRow(dict(row._mapping), images.get(row.id, [])) for row in rows}

    async def job_ids(self) -> AsyncGenerator[list[str]]:
        """Of every row, some at a time, oldest first. Raises DatabaseUnavailable."""
        place = (JOBS.c.created_at, JOBS.c.id)
        page = query = sa.select(*place).order_by(*place).limit(_PAGE)
        while rows := await self._database.fetch(page):
            yield [row.id for row in rows]
            page = query.where(sa.tuple_(*place) > sa.tuple_(*rows[-1]))

    async def segments_of(self, job_ids: Collection[str]) -> dict[str, SegmentRef | None]:
        """The segments of those of these jobs whose rows name one; None: it is not known.

        Raises DatabaseUnavailable.
        """
        first, now = SEGMENTS.alias("first"), SEGMENTS.alias("now")
        at = sa.func.coalesce(first.c.moved_to, first.c.id)
        is_here, is_now = first.c.id == JOBS.c.segment, now.c.id == at
        query = (
            sa.select(JOBS.c.id.label("job_id"), now.c.day, now.c.partition, now.c.id)
            .select_from(JOBS.outerjoin(first, is_here).outerjoin(now, is_now))
            .where(JOBS.c.id.in_(job_ids), JOBS.c.segment.is_not(None))
        )
        return {
            row.job_id: None if row.id is None else SegmentRef(row.day, row.partition, row.id)
            for row in await self._database.fetch(query)
        }

    async def segment_states(self, ids: Collection[str]) -> dict[str, str]:
        """The states of those of these segments that have a row. Raises DatabaseUnavailable."""
        query = sa.select(SEGMENTS.c.id, SEGMENTS.c.state).where(SEGMENTS.c.id.in_(ids))
        return {row.id: row.state for row in await self._database.fetch(query)}

    async def upload_keys(self) -> AsyncGenerator[list[str]]:
        """The storage key of every upload, some at a time. Raises DatabaseUnavailable."""
        query = sa.select(UPLOADS.c.id, UPLOADS.c.storage_key).order_by(UPLOADS.c.id).limit(_PAGE)
        last = ""
        while rows := await self._database.fetch(query.where(UPLOADS.c.id > last)):
            last = rows[-1].id
            yield [row.storage_key for row in rows]

    async def uploads_of(self, keys: Collection[str]) -> dict[str, StoredUpload]:
        """The uploads of these storage keys, as far as there are any."""
        columns = (UPLOADS.c.storage_key, UPLOADS.c.digest, UPLOADS.c.size_bytes)
        query = sa.select(*columns).where(UPLOADS.c.storage_key.in_(keys))
        rows = await self._database.fetch(query)
        return {row.storage_key: StoredUpload(*row) for row in rows}
