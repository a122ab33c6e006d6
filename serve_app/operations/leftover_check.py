"""Checks what is kept beside the events of a job: whether there is such a job, and it needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from events.job import Job
from events.log import utc_now
from serve_app.operations.disagreements import Disagreement, Kind, decoded, gap, job_history
from serve_app.operations.places import Places, stored_of, together

_ENTRY_OUTLIVES_JOB = timedelta(seconds=60)
"""An entry is acknowledged after the end is stored, at the latest when it is delivered again."""


class LeftoverCheck:
    def __init__(self, places: Places, *, now: Callable[[], datetime] = utc_now) -> None:
        self._places = places
        self._now = now

    async def rows(self, job_ids: Sequence[str]) -> list[Disagreement]:
        """Jobs that have a row; `ArchiveCheck` is about those whose rows name a segment."""
        stored = await self._places.log.stored(job_ids)
        archived = await self._places.rows.segments_of(job_ids)
        elsewhere = stored.keys() | archived.keys()
        rows = await self._places.rows.jobs([each for each in job_ids if each not in elsewhere])
        text = "The read model has a row of it, and it has no events."
        return [Disagreement(Kind.ROW_WITHOUT_EVENTS, text, job_id) for job_id in rows]

    async def deliveries(self, job_ids: Sequence[str]) -> list[Disagreement]:
        """Jobs of whose delivery the log has something."""
        unknown = await self._unknown(job_ids)
        found = []
        for job_id, stored in (await stored_of(self._places, job_ids)).items():
            messages = stored.deliveries
            if messages and job_id in unknown:
                text = f"Its delivery has {len(messages)} events, and there is no such job."
                found.append(Disagreement(Kind.DELIVERY_OF_UNKNOWN_JOB, text, job_id))
                continue
            events, unreadable = decoded(job_id, messages, place="delivery's log")
            found += unreadable or gap(job_id, events, place="delivery's log")
        return found

    async def entries(self, job_ids: Sequence[str]) -> list[Disagreement]:
        """Jobs that have an entry on the job queue."""
        found = (await stored_of(self._places, job_ids)).values()
        jobs = [job_history(each.job_id, each.events).job for each in found]
        return [
            *await self._unknown_entries(job_ids, queue="job queue"),
            *await together(self._entry(job) for job in jobs if job is not None),
        ]

    async def _entry(self, job: Job) -> list[Disagreement]:
        if job.ended_at is None or job.ended_at > self._now() - _ENTRY_OUTLIVES_JOB:
            return []
        if not await self._places.queue.has(job):
            return []
        text = f"It ended at {job.ended_at:%Y-%m-%d %H:%M:%S} UTC, and the job queue has it."
        return [Disagreement(Kind.ENTRY_OF_ENDED_JOB, text, job.id)]

    async def callback_entries(self, job_ids: Sequence[str]) -> list[Disagreement]:
        """Jobs that have an entry on the callback queue."""
        return await self._unknown_entries(job_ids, queue="callback queue")

    async def _unknown_entries(self, job_ids: Sequence[str], *, queue: str) -> list[Disagreement]:
        text = f"The {queue} has it, and there is no such job."
        unknown = await self._unknown(job_ids)
        return [Disagreement(Kind.ENTRY_OF_UNKNOWN_JOB, text, job_id) for job_id in unknown]

    async def _unknown(self, job_ids: Sequence[str]) -> list[str]:
        """Those that have neither events nor a row."""
        stored = await self._places.log.stored(job_ids)
        rows = await self._places.rows.jobs(job_ids)
        return [each for each in job_ids if each not in stored and each not in rows]
