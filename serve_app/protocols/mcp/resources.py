"""The resources for agents: the jobs of the caller's owner."""

from __future__ import annotations

import mcp_types as types
from mcp.shared.exceptions import MCPError

from events.result import result_of, state_of
from serve_app.protocols.mcp.tools import Caller
from serve_app.refusals import JobNotFound

_PREFIX = "darkroom://jobs/"
_JSON = "application/json"
_LISTED_JOBS = 50


async def list_jobs(caller: Caller) -> list[types.Resource]:
    """Return the newest 50 jobs of the owner."""
    access = caller.replica.job_access
    jobs = await access.read_model.jobs(caller.key.owner, limit=_LISTED_JOBS)
    return [
        types.Resource(
            uri=f"{_PREFIX}{job.id}",
            name=job.id,
            description=f"A {job.submitted.flavour} job of {job.submitted_at:%Y-%m-%d %H:%M} UTC, "
            f"{state_of(job)}",
            mime_type=_JSON,
        )
        for job in jobs
    ]


def list_templates() -> list[types.ResourceTemplate]:
    """Return the form of the addresses of jobs, also of jobs that `list_jobs` leaves out."""
    return [
        types.ResourceTemplate(
            uri_template=f"{_PREFIX}{{request_id}}",
            name="job",
            description="The state and the result of a job",
            mime_type=_JSON,
        )
    ]


async def read_job(caller: Caller, uri: str) -> types.TextResourceContents:
    """Return the state and the result of a job. Raises MCPError if the caller has no such job."""
    access = caller.replica.job_access
    try:
        job = await access.jobs.owned(uri.removeprefix(_PREFIX), caller.key, with_request=False)
    except JobNotFound as error:
        raise MCPError(types.INVALID_PARAMS, f"There is no resource {uri[:120]!r}.") from error
    text = result_of(job, access.files.url_for).body().decode()
    return types.TextResourceContents(uri=uri, mime_type=_JSON, text=text)
