"""Jobs: finds jobs by id, and ends or erases jobs."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from events.bus.queues import JobQueue
from events.decisions import Cancel, Erase, Quarantine
from events.errors import DatabaseUnavailable, LogUnavailable, ReadTimeout
from events.ids import is_job_id
from events.job import Job, fold, fold_for_submission, fold_readable
from events.log import EventLog, JobWriter
from events.store.records import ApiKey
from events.types import Flavour
from serve_app.refusals import JobNotFound, OtherFlavour

if TYPE_CHECKING:
    from events.store.read_model import ReadModel
    from events.store.removal import Removal


class Jobs:
    """Reads a job from its database row, or from the log if the row is behind the log."""

    def __init__(
        self,
        *,
        log: EventLog,
        writer: JobWriter,
        queue: JobQueue,
        read_model: ReadModel,
        removal: Removal,
    ) -> None:
        self.log = log
        self._writer = writer
        self._queue = queue
        self._read_model = read_model
        self._removal = removal

    async def current(self, job_id: str, *, with_request: bool = True) -> Job | None:
        """Return the job, up to the first event that this version cannot read, or None.

        With `with_request=False`, the request may be missing from the job. If the job has no row,
        raises LogUnavailable, ReadTimeout, JobUnreadable. Raises DatabaseUnavailable if the events
        may no longer be in the log.
        """
        row = await self._row(job_id, with_request=with_request)
        if row is not None and row.end is not None:
            return row
        try:
            if row is not None and await self._is_at_end_of_log(row):
                return row
            events = await self.log.read(job_id)
        except (LogUnavailable, ReadTimeout):
            if row is None:
                raise
            return row
        # If there is neither a readable event nor a row, `fold` raises JobUnreadable, or returns
        # None if there are no events.
        return fold_readable(events) or row or fold(events)

    async def ended(self, job_id: str) -> Job | None:
        """Return the ended job with this id, or None. Call this before submitting a job by id.

        The events of an ended job may have left the log, so the log would accept another job with
        the id. If the database is unavailable, the log is read instead. Raises LogUnavailable,
        ReadTimeout, JobUnreadable, and DatabaseUnavailable if the log does not have the job either.
        """
        try:
            job = await self._read_model.job(job_id)
        except DatabaseUnavailable:
            if await self.log.last(job_id) is None:
                raise
            job = fold_for_submission(await self.log.read(job_id))
        return job if job is not None and job.end is not None else None

    async def owned(
        self,
        job_id: str,
        key: ApiKey,
        *,
        flavour: Flavour | None = None,
        with_request: bool = True,
    ) -> Job:
        """Return a job of this key's owner. `with_request` is as in `current`.

        Raises OtherFlavour, the errors of `current`, and JobNotFound for a job that is unknown,
        erased or of another owner.
        """
        job = await self.owned_or_erased(job_id, key, with_request=with_request)
        if job.erased:
            raise JobNotFound
        if flavour is not None and job.submitted.flavour is not flavour:
            raise OtherFlavour(job.submitted.flavour)
        return job

    async def owned_or_erased(self, job_id: str, key: ApiKey, *, with_request: bool = True) -> Job:
        """Return a job of this key's owner, even if it is erased.

        Raises JobNotFound and the errors of `current`.
        """
        known = is_job_id(job_id)
        job = await self.current(job_id, with_request=with_request) if known else None
        if job is None:
            raise JobNotFound
        if job.submitted.owner != key.owner:
            # For an unknown job, `current` also makes these reads and may raise their errors. The
            # answer must be the same, so that it does not show that the job exists.
            await self._read_model.job(job_id)
            await self.log.last(job_id)
            raise JobNotFound
        return job

    async def end(self, command: Cancel | Quarantine | Erase, job: Job) -> Job:
        """Execute the command, and return the job after it.

        A running job ends shortly after Cancel, and at once after the other commands.
        """
        outcome = await self._writer.execute(command, job)
        ended = job if outcome.job is None else outcome.job
        if job.end is None and ended.end is not None and not job.has_running_attempt:
            # The entry may remain after an error. The dispatcher removes entries of ended jobs.
            with suppress(LogUnavailable):
                await self._queue.remove(job.submitted.endpoint, job.submitted.lane, job.id)
        return ended

    async def erase(self, job: Job) -> bool:
        """End the job and remove its content. See `Removal.hide` for the result."""
        return await self._removal.hide(await self.end(Erase(), job))

    async def _row(self, job_id: str, *, with_request: bool) -> Job | None:
        try:
            return await self._read_model.job(job_id, with_request=with_request)
        except DatabaseUnavailable:
            return None  # `current` reads the log instead.

    async def _is_at_end_of_log(self, row: Job) -> bool:
        """Return whether the row includes every event of the job. Raises LogUnavailable."""
        last = await self.log.last(row.id)
        return last is not None and last.position == row.position
