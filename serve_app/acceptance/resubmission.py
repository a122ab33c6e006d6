"""Resubmission: submits a failed job again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.decisions import Submit
from events.ids import derived_id
from events.job import Job
from events.log import JobWriter, utc_now
from events.types import Failed
from serve_app.endpoints.cache import require_open
from serve_app.jobs import Jobs
from serve_app.refusals import JobNotResubmittable

if TYPE_CHECKING:
    from events.store.endpoints import Endpoints
    from events.store.uploads import Uploads


class Resubmission:
    def __init__(
        self,
        jobs: Jobs,
        writer: JobWriter,
        *,
        endpoints: Endpoints,
        uploads: Uploads,
        secret: bytes,
    ) -> None:
        self._jobs = jobs
        self._writer = writer
        self._endpoints = endpoints
        self._uploads = uploads
        self._secret = secret

    async def resubmit(self, job: Job) -> Job:
        """Return a new job with the request, owner, key and callback of `job`.

        A repeated call returns the same new job. The request is not checked again here: the worker
        checks it by the terms of the old job. The limits of the owner do not apply.

        Raises JobNotResubmittable, EndpointNotFound (also if another owner now has an endpoint with
        the same id), EndpointDraining, LogUnavailable, LogFull, OutcomeUnknown, ReadTimeout,
        DatabaseUnavailable.
        """
        submitted = job.submitted
        if not isinstance(job.end, Failed):
            raise JobNotResubmittable
        endpoint = await self._endpoints.get(submitted.endpoint)
        is_other = endpoint is not None and endpoint.owner not in {None, submitted.owner}
        require_open(None if is_other else endpoint)
        # The janitor keeps uploads that were used recently.
        await self._uploads.use(submitted.owner, list(submitted.input_files or ()), utc_now())
        retry = submitted.model_copy(update={"retry_of": job.id})
        # Idempotency keys contain no control characters, so none of them produces this id.
        retry_id = derived_id(self._secret, submitted.owner, f"\0retry of {job.id}")
        again = await self._jobs.ended(retry_id)
        if again is None:
            outcome = await self._writer.submit(
                retry_id, Submit(retry), traceparent=job.traceparent
            )
            assert outcome.job is not None  # This or an earlier submission has added the job.
            again = outcome.job
        if again.erased:
            raise JobNotResubmittable("The job was submitted again, and the new job was erased.")
        return again
