"""The appends of submissions, which go on when their callers hang up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from events.decisions import Submit
from events.errors import OutcomeUnknown
from events.job import Job
from events.types import Submitted
from serve_app.acceptance.generate_request import GenerateRequest
from serve_app.acceptance.withdrawals import Withdrawals
from serve_app.access.kept_bytes import OwnedBytes
from serve_app.access.open_jobs import OpenJobs
from serve_app.access.unprojected import NoteStored
from serve_app.job_state import ended_job
from serve_app.services import Services
from telemetry.tracing.log_fields import about

logger = logging.getLogger(__name__)


class Appends:
    def __init__(
        self,
        services: Services,
        withdrawals: Withdrawals,
        *,
        open_jobs: OpenJobs,
        owned_bytes: OwnedBytes,
    ) -> None:
        self._services = services
        self._withdrawals = withdrawals
        self._open_jobs = open_jobs
        self._owned_bytes = owned_bytes
        self._tasks: set[asyncio.Task[Job]] = set()

    async def join(self) -> None:
        """Wait for those whose callers have hung up."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def store(self, job_id: str, submitted: Submitted, request: GenerateRequest) -> Job:
        """The job, stored now or by the same request before.

        A caller who hangs up cancels the handler of the request, but not the append.
        """
        append = asyncio.create_task(
            self._append(job_id, submitted, request), name=f"append {job_id}"
        )
        self._tasks.add(append)
        append.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(append)
        except asyncio.CancelledError:
            if not request.is_repeatable:
                append.add_done_callback(partial(self._withdraw, job_id))
            raise

    def _withdraw(self, job_id: str, append: asyncio.Task[Job]) -> None:
        """The caller never learns of this job. `_append` handles an unknown outcome itself."""
        if not append.cancelled() and append.exception() is None:
            self._withdrawals.schedule(job_id)

    @asynccontextmanager
    async def _place(
        self, request: GenerateRequest, submitted: Submitted
    ) -> AsyncGenerator[NoteStored]:
        """Hold what the job takes of the limits; call the given function once it is stored."""
        # A longer body has images, which are no part of what is stored.
        most_bytes = self._services.http_settings.max_body_bytes
        key, body_bytes = request.key, min(len(request.body), most_bytes)
        result_bytes = submitted.cost.result_bytes if submitted.cost is not None else 0
        async with (
            self._open_jobs.place(key) as note_job,
            self._owned_bytes.room(key.owner, body_bytes, result_bytes=result_bytes) as note_bytes,
        ):

            def stored(position: int) -> None:
                note_job(position)
                note_bytes(position)

            yield stored

    async def _append(self, job_id: str, submitted: Submitted, request: GenerateRequest) -> Job:
        command = Submit(submitted)
        if request.is_repeatable:
            # Directly before the append: it must come while the log would still know the job.
            earlier = await ended_job(self._services, job_id)
            if earlier is not None:
                return earlier
        try:
            async with self._place(request, submitted) as stored:
                outcome = await self._services.writer.submit(
                    job_id, command, traceparent=request.traceparent
                )
                assert outcome.job is not None  # it was added, or it was there
                if outcome.added:
                    stored(outcome.job.position)
        except OutcomeUnknown as error:
            if request.is_repeatable:
                raise
            self._withdrawals.schedule(job_id)
            message = (
                "The event log did not answer in time. If the job was stored, it is cancelled."
            )
            raise OutcomeUnknown(message) from error
        if outcome.added:
            fields = {"action": "accept", "job_id": job_id, "flavour": submitted.flavour}
            with about(outcome.job):
                logger.info("job accepted", extra=fields)
        return outcome.job
