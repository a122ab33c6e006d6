"""Checks jobs: what log, read model, queues and image store say of each."""

from __future__ import annotations

from collections.abc import Sequence

from events.archive.segment import ArchivedJob
from events.delivery import fold_delivery, is_wanted
from events.job import Job
from events.log import StoredEvent
from events.store.maintenance.contents import JobRow
from events.streams.log_streams import LogPlace
from serve_app.operations.disagreements import (
    Disagreement,
    Kind,
    decoded,
    in_row,
    job_history,
)
from serve_app.operations.file_check import FileCheck
from serve_app.operations.places import Places, stored_of, together


class JobCheck:
    """Of jobs that have events."""

    def __init__(self, places: Places, files: FileCheck) -> None:
        self._places = places
        self._files = files

    async def in_log(self, job_ids: Sequence[str]) -> list[Disagreement]:
        """Jobs of which the log has something."""
        checkpoint = await self._places.read_model.checkpoint()
        rows = await self._places.rows.jobs(job_ids)  # after the checkpoint, before the events
        stored = await stored_of(self._places, job_ids)
        return await together(
            self.job(stored[job_id], rows.get(job_id), checkpoint=checkpoint)
            for job_id in job_ids
            if job_id in stored and stored[job_id].events
        )

    async def job(
        self, stored: ArchivedJob, row: JobRow | None, *, checkpoint: LogPlace
    ) -> list[Disagreement]:
        """`stored` was read after `row`, and `row` after `checkpoint`."""
        history = job_history(stored.job_id, stored.events)
        job = history.job
        if job is None:
            return list(history.disagreements)
        return [
            *in_row(job.id, row, history.events, checkpoint=checkpoint),
            *await (self._open(job) if job.end is None else self._ended(job, stored.deliveries)),
            *await together(
                self._files.named(
                    image.key, size_bytes=image.size_bytes, digest=image.digest, job_id=job.id
                )
                for image in job.images
            ),
        ]

    async def _open(self, job: Job) -> list[Disagreement]:
        if await self._places.queue.has(job):
            return []
        text = "It has not ended, and no queue has it."
        return [Disagreement(Kind.OPEN_WITHOUT_ENTRY, text, job.id)]

    async def _ended(self, job: Job, deliveries: Sequence[StoredEvent]) -> list[Disagreement]:
        if not is_wanted(job.submitted):
            return []
        events, unreadable = decoded(job.id, deliveries, place="delivery's log")
        if unreadable or fold_delivery(events).ended or await self._places.callbacks.has(job):
            return []
        text = f"It ended, its callback did not ({len(events)} events), and no queue has it."
        return [Disagreement(Kind.CALLBACK_LOST, text, job.id)]
