"""Checks jobs: what log, read model, queues and image store say of each."""

from __future__ import annotations

from collections.abc import Sequence

from events.delivery import fold_delivery
from events.job import Job
from events.store.maintenance.contents import JobRow
from serve_app.operations.disagreements import (
    Disagreement,
    JobHistory,
    Kind,
    decoded,
    in_row,
    job_history,
)
from serve_app.operations.file_check import FileCheck
from serve_app.operations.places import Places, together


class JobCheck:
    """Of jobs that have events."""

    def __init__(self, places: Places, files: FileCheck) -> None:
        self._places = places
        self._files = files

    async def check(self, job_ids: Sequence[str]) -> list[Disagreement]:
        checkpoint = await self._places.read_model.checkpoint()
        rows = await self._places.rows.jobs(job_ids)  # after the checkpoint, before the events
        stored = await self._places.log.stored(job_ids)
        return await together(
            self._check(job_history(job_id, events), rows.get(job_id), checkpoint)
            for job_id, events in stored.items()
        )

    async def _check(
        self, history: JobHistory, row: JobRow | None, checkpoint: int
    ) -> list[Disagreement]:
        job = history.job
        if job is None:
            return list(history.disagreements)
        return [
            *in_row(job.id, row, history.events, checkpoint=checkpoint),
            *await (self._open(job) if job.end is None else self._ended(job)),
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

    async def _ended(self, job: Job) -> list[Disagreement]:
        if job.submitted.callback_url is None:
            return []
        stored = await self._places.deliveries.stored([job.id])
        events, unreadable = decoded(job.id, stored.get(job.id, ()), place="delivery's log")
        if unreadable or fold_delivery(events).ended or await self._places.callbacks.has(job):
            return []
        text = f"It ended, its callback did not ({len(events)} events), and no queue has it."
        return [Disagreement(Kind.CALLBACK_LOST, text, job.id)]
