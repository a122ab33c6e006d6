"""`/history` and `/jobs`: what became of the caller's workflow jobs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from events.decisions import Erase
from events.types import Flavour
from serve_app.adapters.comfyui.bodies import ids_in, invalid, members
from serve_app.adapters.comfyui.reading import (
    MOST_IN_HISTORY,
    MOST_LISTED,
    caught_up,
    ended_jobs,
    open_jobs,
    own_jobs,
    with_requests,
)
from serve_app.adapters.comfyui.records import history_item, job_item
from serve_app.adapters.comfyui.twins import twin
from serve_app.adapters.credentials import CancelAdapterKey, ReadAdapterKey
from serve_app.job_end import end_job
from serve_app.job_state import owned_job
from serve_app.refusals import JobNotFound
from serve_app.replica import ReplicaDep

_OPEN, _ENDED = {"pending", "in_progress"}, {"completed", "failed", "cancelled"}
_MOST_PASSED = 10_000

Offset = Annotated[int, Query(ge=0, le=_MOST_PASSED)]

router = APIRouter(include_in_schema=False)


@router.get(twin("/history"))
async def read_history(
    key: ReadAdapterKey,
    replica: ReplicaDep,
    *,
    max_items: Annotated[int, Query(ge=-1)] = MOST_IN_HISTORY,
    offset: Annotated[int, Query(ge=-1, le=_MOST_PASSED)] = -1,
) -> Response:
    """The newest that have ended, oldest first; `offset` passes over so many of the newest."""
    limit = MOST_IN_HISTORY if max_items < 0 else min(max_items, MOST_IN_HISTORY)
    await caught_up(replica)
    found = await ended_jobs(replica, key.owner, limit=limit, offset=max(offset, 0))
    async with with_requests(replica, key.owner, found) as jobs:
        return JSONResponse({job.id: history_item(job) for job in reversed(jobs)})


@router.get(twin("/history/{id}"))
async def read_job_history(id: str, key: ReadAdapterKey, replica: ReplicaDep) -> dict[str, Any]:
    """Empty until the job has ended; and for an id that is no job of the caller's."""
    try:
        job = await owned_job(replica.services, id, key, flavour=Flavour.WORKFLOW)
    except JobNotFound:
        return {}
    return {} if job.end is None else {job.id: history_item(job)}


@router.post(twin("/history"))
async def change_history(request: Request, key: CancelAdapterKey, replica: ReplicaDep) -> Response:
    """Erase jobs that have ended: the ones that are named, or those that came by this API.

    Prompt and pictures are gone for good, as by `DELETE /v1/jobs/{id}`.
    """
    said = await members(replica, request, key.owner)
    jobs = []
    for id in ids_in(said, "delete"):
        try:
            job = await owned_job(
                replica.services, id, key, flavour=Flavour.WORKFLOW, with_request=False
            )
        except JobNotFound:
            continue
        jobs.append(job)
    if said.get("clear") is True:
        await caught_up(replica)
        jobs += await own_jobs(replica, key.owner, is_ended=True)
    for job in jobs:
        if job.end is not None:
            await replica.services.removal.hide(await end_job(replica.services, Erase(), job))
    return Response()


@router.get(twin("/jobs"))
async def list_jobs(
    key: ReadAdapterKey,
    replica: ReplicaDep,
    *,
    status: str | None = None,
    limit: Annotated[int, Query(ge=1)] = MOST_LISTED,
    offset: Offset = 0,
) -> dict[str, Any]:
    """The newest first, those that wait or run before those that have ended."""
    wanted = _OPEN | _ENDED if status is None else set(status.split(","))
    if unknown := wanted - _OPEN - _ENDED:
        raise invalid(f"There is no status {min(unknown)[:40]!r}.")
    limit = min(limit, MOST_LISTED)
    await caught_up(replica)
    still_open = (await open_jobs(replica, key.owner))[::-1] if wanted & _OPEN else []
    page = still_open[offset : offset + limit + 1]
    if wanted & _ENDED:
        passed = max(offset - len(still_open), 0)
        page += await ended_jobs(replica, key.owner, limit=limit + 1 - len(page), offset=passed)
    shown = [item for item in map(job_item, page[:limit]) if item["status"] in wanted]
    return {
        "jobs": shown,
        "pagination": {
            "offset": offset,
            "limit": limit,
            "total": offset + len(page),  # as far as it was read
            "has_more": len(page) > limit,
        },
    }


@router.get(twin("/jobs/{id}"))
async def show_job(id: str, key: ReadAdapterKey, replica: ReplicaDep) -> dict[str, Any]:
    job = await owned_job(replica.services, id, key, flavour=Flavour.WORKFLOW)
    return job_item(job, with_request=True)
