"""What a key's jobs are doing, and their end.

The WebUI runs one job at a time, which is everybody's. Here it is the oldest of the jobs that were
submitted with the same key and run now; the read model knows them, whichever replica is asked.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter

from events.decisions import Cancel
from events.job import Job
from events.result import Status
from events.store.records import ApiKey
from serve_app.adapters.credentials import CancelAdapterKey, ReadAdapterKey
from serve_app.adapters.webui.errors import refused
from serve_app.adapters.webui.paths import V1
from serve_app.job_end import end_job
from serve_app.replica import Replica, ReplicaDep

_PAGE = 200
_MOST_PAGES = 10

router = APIRouter(prefix=V1, include_in_schema=False)


@router.get("/progress")
async def progress(
    key: ReadAdapterKey, replica: ReplicaDep, skip_current_image: bool = False
) -> dict[str, Any]:
    jobs = await _open_jobs(replica, key)
    current = next((job for job in jobs if job.started_at is not None), None)
    told = None if current is None else replica.services.progress.get(current.id)
    # Asked also where nothing runs: what is never asked for is not kept.
    image = None if skip_current_image else replica.previews.of(current.id if current else "")
    fraction = 0.0 if told is None else told.fraction
    return {
        "progress": fraction,
        "eta_relative": _seconds_left(current, fraction),
        "state": {
            "skipped": False,
            "interrupted": current is not None and current.cancel_requested,
            "stopping_generation": False,
            "job": "" if current is None else current.id,
            "job_count": len(jobs),
            "job_timestamp": ""
            if current is None
            else current.submitted_at.strftime("%Y%m%d%H%M%S"),
            "job_no": 0 if told is None else told.images,
            "sampling_step": 0 if told is None else told.done,
            "sampling_steps": 0 if told is None else told.total,
        },
        "current_image": None if image is None else b64encode(image).decode(),
        "textinfo": None if current is not None or not jobs else "Waiting...",
    }


@router.post("/interrupt")
async def interrupt(key: CancelAdapterKey, replica: ReplicaDep) -> dict[str, Any]:
    """Ends what runs; where nothing does, the oldest that waits."""
    jobs = await _open_jobs(replica, key)
    for job in [job for job in jobs if job.started_at is not None] or jobs[:1]:
        await end_job(replica.services, Cancel(), job)
    return {}


@router.post("/skip")
async def skip(key: CancelAdapterKey, replica: ReplicaDep) -> dict[str, Any]:
    """Ends the job that runs, if it makes one image."""
    jobs = [job for job in await _open_jobs(replica, key) if job.started_at is not None]
    for job in jobs[:1]:
        if job.submitted.images > 1:
            raise refused("One image of a job cannot be skipped alone: interrupt ends all of them.")
        await end_job(replica.services, Cancel(), job)
    return {}


async def _open_jobs(replica: Replica, key: ApiKey) -> Sequence[Job]:
    """Those of the key, oldest first. Raises DatabaseUnavailable."""
    found: list[Job] = []
    before = None
    for _ in range(_MOST_PAGES):
        page = await replica.services.read_model.jobs(
            key.owner, status=Status.RUNNING, limit=_PAGE, before=before
        )
        found += (job for job in page if job.submitted.key_id == key.id)
        if len(page) < _PAGE:
            break
        before = page[-1].id
    return found[::-1]


def _seconds_left(job: Job | None, fraction: float) -> float:
    """As if what is left took as long as what is done."""
    if job is None or job.started_at is None or not fraction:
        return 0.0
    return max(0.0, (time.time() - job.started_at.timestamp()) * (1 - fraction) / fraction)
