"""`/queue` and `/interrupt`: the caller's jobs that wait or run, and how they are stopped."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from events.decisions import Cancel
from events.job import Job
from events.result import State, state_of
from events.store.records import ApiKey
from serve_app.adapters.comfyui.bodies import ids_in, invalid, members
from serve_app.adapters.comfyui.reading import caught_up, open_jobs, own_jobs, with_requests
from serve_app.adapters.comfyui.records import queue_item
from serve_app.adapters.comfyui.twins import twin
from serve_app.adapters.credentials import CancelAdapterKey, ReadAdapterKey
from serve_app.job_end import end_job
from serve_app.job_state import owned_job
from serve_app.refusals import JobNotFound
from serve_app.replica import Replica, ReplicaDep

router = APIRouter(include_in_schema=False)


@router.get(twin("/queue"))
async def read_queue(key: ReadAdapterKey, replica: ReplicaDep) -> Response:
    await caught_up(replica)
    found = await open_jobs(replica, key.owner)
    async with with_requests(replica, key.owner, found) as jobs:
        running = [queue_item(job) for job in jobs if _is(job, State.RUNNING)]
        pending = [queue_item(job) for job in jobs if _is(job, State.QUEUED)]
        return JSONResponse({"queue_running": running, "queue_pending": pending})


@router.post(twin("/queue"))
async def change_queue(request: Request, key: CancelAdapterKey, replica: ReplicaDep) -> Response:
    """Cancel jobs that wait: the ones that are named, or all that came by this API."""
    said = await members(replica, request, key.owner)
    waiting = await _named(replica, key, ids_in(said, "delete"))
    if said.get("clear") is True:
        waiting += await _own(replica, key)
    for job in waiting:
        if _is(job, State.QUEUED):
            await end_job(replica.services, Cancel(), job)
    return Response()


@router.post(twin("/interrupt"))
async def interrupt(request: Request, key: CancelAdapterKey, replica: ReplicaDep) -> Response:
    """Stop the job that is named; without a name each that runs and came by this API."""
    said = await members(replica, request, key.owner)
    id = said.get("prompt_id")
    if id is not None and not isinstance(id, str):
        raise invalid("prompt_id is no id.")
    jobs = await _own(replica, key) if id is None else await _named(replica, key, [id])
    for job in jobs:
        if _is(job, State.RUNNING):
            await end_job(replica.services, Cancel(), job)
    return Response()


@router.post(twin("/jobs/cancel"))
async def cancel_jobs(
    request: Request, key: CancelAdapterKey, replica: ReplicaDep
) -> dict[str, Any]:
    """Cancel the jobs that are named, whether they wait or run."""
    said = await members(replica, request, key.owner)
    return await _cancel(replica, await _named(replica, key, ids_in(said, "job_ids")))


@router.post(twin("/jobs/{id}/cancel"))
async def cancel_job(id: str, key: CancelAdapterKey, replica: ReplicaDep) -> dict[str, Any]:
    return await _cancel(replica, [await owned_job(replica.services, id, key)])


async def _cancel(replica: Replica, jobs: list[Job]) -> dict[str, Any]:
    cancelled = [job for job in jobs if job.end is None]
    for job in cancelled:
        await end_job(replica.services, Cancel(), job)
    return {"cancelled": [job.id for job in cancelled]}


async def _named(replica: Replica, key: ApiKey, ids: list[str]) -> list[Job]:
    """Those of them that are the caller's. Of others nothing is said, as ComfyUI does."""
    jobs = []
    for id in ids:
        try:
            jobs.append(await owned_job(replica.services, id, key, with_request=False))
        except JobNotFound:
            continue
    return jobs


async def _own(replica: Replica, key: ApiKey) -> list[Job]:
    await caught_up(replica)
    return await own_jobs(replica, key.owner, is_ended=False)


def _is(job: Job, state: State) -> bool:
    return job.end is None and state_of(job) is state
