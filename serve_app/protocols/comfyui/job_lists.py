"""`/queue`, `/history` and `/jobs`, which list, cancel and erase the caller's workflow jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from events.decisions import Cancel
from events.job import Job
from events.result import State, Status, state_of
from events.store.records import ApiKey
from events.types import Cancelled, Completed, End, Failed, Flavour
from serve_app.answers import json_answer
from serve_app.protocols.comfyui.bodies import ids_in, invalid, members, twin
from serve_app.protocols.comfyui.records import (
    STATUSES,
    history_item,
    history_v2_item,
    job_item,
    outputs_of,
    queue_item,
)
from serve_app.protocols.credentials import CancelProtocolKey, ReadProtocolKey
from serve_app.refusals import JobNotFound
from serve_app.replica import JobAccess, JobAccessDep

MOST_LISTED = 200
"""The largest number of jobs in a list. Reading one job takes about 0.1 ms."""
MOST_IN_HISTORY = 100
_MOST_PAGES = 50
_MOST_REQUEST_BYTES = 2 * 1024**2
"""The largest total size of the requests of the jobs in one list, in bytes."""
_MEMORY_FACTOR = 4
"""Bytes of memory for each byte of a request that is parsed and encoded."""
_ENDS: dict[State, type[End]] = {
    State.COMPLETED: Completed,
    State.FAILED: Failed,
    State.CANCELLED: Cancelled,
}
_MOST_PASSED = 10_000

router = APIRouter(include_in_schema=False)


async def open_jobs(access: JobAccess, owner: str) -> list[Job]:
    """Return the jobs that wait or run, oldest first, without their requests."""
    newest = await access.read_model.jobs(
        owner, status=Status.RUNNING, flavour=Flavour.WORKFLOW, limit=MOST_LISTED
    )
    return newest[::-1]


async def own_jobs(access: JobAccess, owner: str, *, is_ended: bool) -> list[Job]:
    """Return the owner's jobs that were submitted through this protocol, newest first."""
    every = await _all_jobs(access, owner, is_ended=is_ended)
    return [job for job in every if job.submitted.client_id is not None]


async def _all_jobs(access: JobAccess, owner: str, *, is_ended: bool) -> list[Job]:
    """Return the jobs of the owner, newest first, without their requests."""
    found: list[Job] = []
    before = None
    for _ in range(_MOST_PAGES):
        page = await access.read_model.jobs(
            owner,
            # With a status, the database finds the few open jobs by an index.
            status=None if is_ended else Status.RUNNING,
            flavour=Flavour.WORKFLOW,
            is_ended=is_ended,
            limit=MOST_LISTED,
            before=before,
        )
        found += page
        if len(page) < MOST_LISTED:
            break
        before = page[-1].id
    return found


async def ended_jobs(access: JobAccess, owner: str, *, limit: int, offset: int = 0) -> list[Job]:
    """Return jobs that have ended, newest first, without their requests."""
    return await access.read_model.jobs(
        owner, flavour=Flavour.WORKFLOW, is_ended=True, limit=limit, offset=offset
    )


@asynccontextmanager
async def with_requests(
    access: JobAccess, owner: str, jobs: list[Job]
) -> AsyncGenerator[list[Job]]:
    """Yield the first of `jobs` with their requests, up to `_MOST_REQUEST_BYTES`.

    The context reserves memory for the requests, so the answer must be built inside it. Raises
    Busy, DatabaseUnavailable.
    """
    ids, size_bytes = _first(jobs)
    async with access.bodies.reserve_memory(owner, size_bytes * _MEMORY_FACTOR):
        found = await access.read_model.jobs_of_ids(ids)
        yield [job for job in found if not job.erased]


def _first(jobs: list[Job]) -> tuple[list[str], int]:
    """Return the ids of the first jobs within the limit, at least one, and their size in bytes."""
    ids: list[str] = []
    size_bytes = 0
    for job in jobs:
        if ids and size_bytes + job.log_bytes > _MOST_REQUEST_BYTES:
            break
        ids.append(job.id)
        size_bytes += job.log_bytes
    return ids, size_bytes


async def wait_for_read_model(access: JobAccess, offset: int | None = None) -> None:
    """Wait until the read model has all events up to `offset`; None means all events.

    The wait ends after about one second in any case. Raises LogUnavailable, DatabaseUnavailable.
    """
    await access.projected.reach(offset)


async def remaining(access: JobAccess, owner: str) -> int:
    """Return the number of the owner's open jobs. Raises DatabaseUnavailable."""
    return await access.read_model.usage.open_jobs(owner)


@router.get(twin("/queue"))
async def read_queue(key: ReadProtocolKey, access: JobAccessDep) -> Response:
    await wait_for_read_model(access)
    async with access.list_turns.acquire(key.owner):
        found = await open_jobs(access, key.owner)
        async with with_requests(access, key.owner, found) as jobs:
            return await json_answer(lambda: _queue(jobs))


def _queue(jobs: list[Job]) -> dict[str, Any]:
    return {
        "queue_running": [queue_item(job) for job in jobs if _is(job, State.RUNNING)],
        "queue_pending": [queue_item(job) for job in jobs if _is(job, State.QUEUED)],
    }


@router.post(twin("/queue"))
async def change_queue(request: Request, key: CancelProtocolKey, access: JobAccessDep) -> Response:
    """Cancel waiting jobs: the named jobs, or all jobs that were submitted by this API."""
    body = await members(access.bodies, request, key.owner)
    waiting = await _named(access, key, ids_in(body, "delete"))
    if body.get("clear") is True:
        waiting += await _own(access, key)
    for job in waiting:
        if _is(job, State.QUEUED):
            await access.jobs.end(Cancel(), job)
    return Response()


@router.post(twin("/interrupt"))
async def interrupt(request: Request, key: CancelProtocolKey, access: JobAccessDep) -> Response:
    """Cancel the named job if it runs, or all running jobs that were submitted by this API."""
    body = await members(access.bodies, request, key.owner)
    id = body.get("prompt_id")
    if id is not None and not isinstance(id, str):
        raise invalid("prompt_id is not a valid id.")
    jobs = await _own(access, key) if id is None else await _named(access, key, [id])
    for job in jobs:
        if _is(job, State.RUNNING):
            await access.jobs.end(Cancel(), job)
    return Response()


@router.post(twin("/jobs/cancel"))
async def cancel_jobs(
    request: Request, key: CancelProtocolKey, access: JobAccessDep
) -> dict[str, Any]:
    """Cancel the named jobs, waiting or running."""
    body = await members(access.bodies, request, key.owner)
    return await _cancel(access, await _named(access, key, ids_in(body, "job_ids")))


@router.post(twin("/jobs/{id}/cancel"))
async def cancel_job(id: str, key: CancelProtocolKey, access: JobAccessDep) -> dict[str, Any]:
    return await _cancel(access, [await access.jobs.owned(id, key)])


async def _cancel(access: JobAccess, jobs: list[Job]) -> dict[str, Any]:
    cancelled = [job for job in jobs if job.end is None]
    for job in cancelled:
        await access.jobs.end(Cancel(), job)
    return {"cancelled": [job.id for job in cancelled]}


async def _named(access: JobAccess, key: ApiKey, ids: list[str]) -> list[Job]:
    """Return the named jobs that belong to the caller. Other ids are ignored, as in ComfyUI."""
    jobs = []
    for id in ids:
        try:
            jobs.append(await access.jobs.owned(id, key, with_request=False))
        except JobNotFound:
            continue
    return jobs


async def _own(access: JobAccess, key: ApiKey) -> list[Job]:
    await wait_for_read_model(access)
    return await own_jobs(access, key.owner, is_ended=False)


def _is(job: Job, state: State) -> bool:
    return job.end is None and state_of(job) is state


Offset = Annotated[int, Query(ge=0, le=_MOST_PASSED)]


MaxItems = Annotated[int, Query(ge=-1)]
HistoryOffset = Annotated[int, Query(ge=-1, le=_MOST_PASSED)]


@asynccontextmanager
async def _history(
    access: JobAccess, owner: str, *, max_items: int = -1, offset: int = -1
) -> AsyncGenerator[list[Job]]:
    """Yield the newest ended jobs with their requests. The newest `offset` jobs are skipped."""
    limit = MOST_IN_HISTORY if max_items < 0 else min(max_items, MOST_IN_HISTORY)
    await wait_for_read_model(access)
    async with access.list_turns.acquire(owner):
        found = await ended_jobs(access, owner, limit=limit, offset=max(offset, 0))
        async with with_requests(access, owner, found) as jobs:
            yield jobs


@router.get(twin("/history"))
async def read_history(
    key: ReadProtocolKey,
    access: JobAccessDep,
    *,
    max_items: MaxItems = -1,
    offset: HistoryOffset = -1,
) -> Response:
    """List the newest ended jobs, oldest first."""
    async with _history(access, key.owner, max_items=max_items, offset=offset) as jobs:
        return await json_answer(lambda: {job.id: history_item(job) for job in reversed(jobs)})


@router.get(twin("/history_v2"))
async def read_history_v2(
    key: ReadProtocolKey,
    access: JobAccessDep,
    *,
    max_items: MaxItems = -1,
    offset: HistoryOffset = -1,
) -> Response:
    """List the newest ended jobs, newest first, in the format of Comfy Cloud."""
    async with _history(access, key.owner, max_items=max_items, offset=offset) as jobs:
        return await json_answer(lambda: {"history": [history_v2_item(job) for job in jobs]})


@router.get(twin("/internal/files/{folder}"))
async def list_files(
    folder: Literal["output", "temp", "input"], key: ReadProtocolKey, access: JobAccessDep
) -> Response:
    """List the names of uploads, or of the results of the jobs in `/history`, newest first."""
    if folder == "input":
        uploads = await access.uploads.page(key.owner, limit=MOST_LISTED)
        return await json_answer(lambda: [upload.name for upload in uploads])
    async with _history(access, key.owner) as jobs:
        return await json_answer(lambda: _file_names(jobs, folder))


def _file_names(jobs: list[Job], folder: str) -> list[str]:
    return [
        file["filename"]
        for job in jobs
        for output in outputs_of(job).values()
        for files in output.values()
        for file in files
        if isinstance(file, dict) and file["type"] == folder
    ]


@router.get(twin("/history/{id}"))
async def read_job_history(id: str, key: ReadProtocolKey, access: JobAccessDep) -> Response:
    """Return the history of a job; empty if the job is open or does not belong to the caller."""
    async with access.list_turns.acquire(key.owner):
        job = await _ended(access, key, id)
        return await json_answer(lambda: {} if job is None else {job.id: history_item(job)})


@router.get(twin("/history_v2/{id}"))
async def read_job_history_v2(id: str, key: ReadProtocolKey, access: JobAccessDep) -> Response:
    async with access.list_turns.acquire(key.owner):
        job = await _ended(access, key, id)
        return await json_answer(
            lambda: {} if job is None else {job.id: history_v2_item(job, with_graph=True)}
        )


async def _ended(access: JobAccess, key: ApiKey, id: str) -> Job | None:
    """Return a job of the caller that has ended; None if there is no such job."""
    try:
        job = await access.jobs.owned(id, key, flavour=Flavour.WORKFLOW)
    except JobNotFound:
        return None
    return None if job.end is None else job


@router.post(twin("/history"))
async def change_history(
    request: Request, key: CancelProtocolKey, access: JobAccessDep
) -> Response:
    """Erase ended jobs: the named jobs, or all jobs that were submitted by this API.

    Their prompts and images are deleted permanently, as by `DELETE /v1/jobs/{id}`.
    """
    body = await members(access.bodies, request, key.owner)
    jobs = []
    for id in ids_in(body, "delete"):
        try:
            job = await access.jobs.owned(id, key, flavour=Flavour.WORKFLOW, with_request=False)
        except JobNotFound:
            continue
        jobs.append(job)
    if body.get("clear") is True:
        await wait_for_read_model(access)
        jobs += await own_jobs(access, key.owner, is_ended=True)
    for job in jobs:
        if job.end is not None:
            await access.jobs.erase(job)
    return Response()


@router.get(twin("/jobs"))
async def list_jobs(
    key: ReadProtocolKey,
    access: JobAccessDep,
    *,
    status: str = "",
    limit: Annotated[int, Query(ge=1)] = MOST_LISTED,
    offset: Offset = 0,
) -> Response:
    """List jobs, newest first. Open jobs precede jobs that have ended."""
    wanted = {*STATUSES.values()} if not status else set(status.split(","))
    if unknown := wanted.difference(STATUSES.values()):
        raise invalid(f"There is no status {min(unknown)[:40]!r}.")
    states = [state for state, name in STATUSES.items() if name in wanted]
    ends = [end for state, end in _ENDS.items() if state in states]
    limit = min(limit, MOST_LISTED)
    await wait_for_read_model(access)
    async with access.list_turns.acquire(key.owner):
        still_open: list[Job] = []
        if not _ENDS.keys() >= set(states):
            every = await _all_jobs(access, key.owner, is_ended=False)
            still_open = [job for job in every if state_of(job) in states]
        page = still_open[offset : offset + limit]
        total = len(still_open)
        if ends:
            passed = max(offset - total, 0)
            total += await access.read_model.count_ended(key.owner, Flavour.WORKFLOW, ends)
            page += await access.read_model.jobs(
                key.owner,
                flavour=Flavour.WORKFLOW,
                ends=ends,
                limit=limit - len(page),
                offset=passed,
            )
        pagination = {
            "offset": offset,
            "limit": limit,
            "total": total,
            "has_more": offset + len(page) < total,
        }
        return await json_answer(
            lambda: {"jobs": [job_item(job) for job in page], "pagination": pagination}
        )


@router.get(twin("/jobs/{id}"))
async def show_job(id: str, key: ReadProtocolKey, access: JobAccessDep) -> Response:
    async with access.list_turns.acquire(key.owner):
        job = await access.jobs.owned(id, key, flavour=Flavour.WORKFLOW)
        return await json_answer(lambda: job_item(job, with_request=True))
