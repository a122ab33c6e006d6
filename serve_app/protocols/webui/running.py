"""Routes that show the progress of the current job and that cancel the current job.

The WebUI runs one job at a time for all users. In Darkroom the current job is the oldest running
job that was submitted with the same key. The job is found in the read model, so every replica can
answer.
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
from serve_app.protocols.credentials import CancelProtocolKey, ReadProtocolKey
from serve_app.protocols.webui.errors import V1, refused
from serve_app.replica import JobAccess, JobAccessDep

_PAGE = 200
_MOST_PAGES = 10

router = APIRouter(prefix=V1, include_in_schema=False)


@router.get("/progress")
async def progress(
    key: ReadProtocolKey, access: JobAccessDep, skip_current_image: bool = False
) -> dict[str, Any]:
    jobs = await _open_jobs(access, key)
    current = next((job for job in jobs if job.started_at is not None), None)
    progress = None if current is None else access.live.progress.get(current.id)
    # Call `of` even if no job runs, because previews are kept only after the first call.
    image = None if skip_current_image else access.live.previews.of(current.id if current else "")
    fraction = 0.0 if progress is None else progress.fraction
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
            "job_no": 0 if progress is None else progress.images,
            "sampling_step": 0 if progress is None else progress.done,
            "sampling_steps": 0 if progress is None else progress.total,
        },
        "current_image": None if image is None else b64encode(image).decode(),
        "textinfo": None if current is not None or not jobs else "Waiting...",
    }


@router.post("/interrupt")
async def interrupt(key: CancelProtocolKey, access: JobAccessDep) -> dict[str, Any]:
    """Cancel the running jobs of the key. If no job runs, cancel the oldest waiting job."""
    jobs = await _open_jobs(access, key)
    for job in [job for job in jobs if job.started_at is not None] or jobs[:1]:
        await access.jobs.end(Cancel(), job)
    return {}


@router.post("/skip")
async def skip(key: CancelProtocolKey, access: JobAccessDep) -> dict[str, Any]:
    """Cancel the oldest running job if it has one image. Refuse if it has more images."""
    jobs = [job for job in await _open_jobs(access, key) if job.started_at is not None]
    for job in jobs[:1]:
        if job.submitted.images > 1:
            raise refused(
                "A single image of a job cannot be skipped. Use interrupt, which ends the whole "
                "job."
            )
        await access.jobs.end(Cancel(), job)
    return {}


async def _open_jobs(access: JobAccess, key: ApiKey) -> Sequence[Job]:
    """Return the open jobs of the key, oldest first. Raises DatabaseUnavailable."""
    found: list[Job] = []
    before = None
    for _ in range(_MOST_PAGES):
        page = await access.read_model.jobs(
            key.owner, status=Status.RUNNING, limit=_PAGE, before=before
        )
        found += (job for job in page if job.submitted.key_id == key.id)
        if len(page) < _PAGE:
            break
        before = page[-1].id
    return found[::-1]


def _seconds_left(job: Job | None, fraction: float) -> float:
    """Estimate the remaining seconds by linear extrapolation of the time so far."""
    if job is None or job.started_at is None or not fraction:
        return 0.0
    return max(0.0, (time.time() - job.started_at.timestamp()) * (1 - fraction) / fraction)
