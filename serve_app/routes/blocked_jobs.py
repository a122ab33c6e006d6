"""Route of the jobs that the service cannot read on, for administrators."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from serve_app.auth import AdminKey
from serve_app.openapi.error_responses import documented
from serve_app.replica import ReplicaDep

logger = logging.getLogger(__name__)

router = APIRouter(
    prefix="/v1/admin/jobs/blocked",
    tags=["administration"],
    responses=documented(400, 401, 403, 500, 503),
)


_LAST_POSITION = 2**63 - 1
"""What a column for a position takes."""


class BlockedJob(BaseModel):
    request_id: str
    position: int = Field(description="Of the first event that was left out, in the event log")
    why: str
    since: datetime


class BlockedJobPage(BaseModel):
    jobs: list[BlockedJob] = Field(description="In the order of the event log")
    count: int = Field(description="How many there are in all")
    next_cursor: int | None = Field(
        default=None, description="`cursor` of the next page; absent on the last"
    )


@router.get("", response_model_exclude_none=True)
async def list_blocked_jobs(
    admin: AdminKey,
    replica: ReplicaDep,
    *,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[
        int, Query(ge=0, le=_LAST_POSITION, description="`next_cursor` of the page before")
    ] = 0,
) -> BlockedJobPage:
    """Jobs with an event that the version which runs cannot read, or whose state no row can hold.

    Each goes on by itself once a version runs that can.
    """
    blocked = replica.services.read_model.blocked
    stops = await blocked.stops(after=cursor, limit=limit + 1)
    fields = {"action": "list_jobs", "by_key_id": admin.id}
    logger.info("jobs administered", extra=fields)
    page = stops[:limit]
    return BlockedJobPage(
        jobs=[
            BlockedJob(request_id=s.job_id, position=s.position, why=s.why, since=s.since)
            for s in page
        ],
        count=await blocked.count(),
        next_cursor=page[-1].position if len(stops) > limit else None,
    )
